"""What may be expected of an output, what people call it, and what is refused: place, reason, and what to write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qo.core.pipeline.expectation import KINDS, Expectation, Freshness, parse_expectations
from qo.core.pipeline.plan import plan
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError

pytestmark = pytest.mark.fast

JOB: dict[str, Any] = {
    "name": "clean",
    "activation": "reactive",
    "runtime": "spark",
    "operator": "shop.jobs:clean",
    "outputs": 2,
    "execution_strategy": "PerPartition",
    "partitions": {"kind": "day"},
    "inputs": [{"from": {"dataset": "flights"}}, {"from": {"dataset": "aircraft"}, "as": "planes"}],
}
EACH: list[tuple[dict[str, Any], str]] = [
    ({"not_null": ["carrier", "day"]}, "not_null carrier, day"),
    ({"unique": ["flight"]}, "unique flight"),
    ({"range": {"column": "delay", "min": -120, "max": 3000}}, "range delay -120..3000"),
    ({"range": {"column": "day", "min": "2024-01-01"}}, "range day 2024-01-01.."),
    ({"accepted": {"column": "origin", "values": ["EWR", "JFK"]}}, "accepted origin"),
    ({"rows": {"min": 0, "max": 5}}, "rows 0..5"),
    ({"freshness": {"column": "day", "within": "2d"}}, "freshness day within 2d"),
    ({"in_partition": "day"}, "in_partition day"),
    ({"references": {"columns": ["tailnum"], "input": "planes"}}, "references tailnum in planes"),
    ({"sql": "arrived >= departed"}, "sql arrived >= departed"),
    ({"sql": "a > 0", "name": "positive"}, "positive"),
]


def document(*expectations: dict[str, Any], **job: Any) -> str:
    told = {"expectations": list(expectations)} if expectations else {}
    return json.dumps({"name": "p", "jobs": [{**JOB, **told, **job}]})


def refused(text: str) -> str:
    with pytest.raises(DefinitionError) as error:
        read(text)
    return str(error.value)


@pytest.mark.parametrize(("written", "title"), EACH)
def test_each_says_one_thing_and_has_a_name_for_people(written: dict[str, Any], title: str) -> None:
    (found,) = read(document(written)).jobs[0].expectations
    assert found.title == title
    assert found.kind in written


def test_all_kinds_are_among_the_examples() -> None:
    assert {kind for written, _ in EACH for kind in KINDS if kind in written} == set(KINDS)


def test_what_a_task_carries_is_what_the_file_said() -> None:
    written = [each for each, _ in EACH]
    assert tuple(parse_expectations(written)) == read(document(*written)).jobs[0].expectations


@pytest.mark.parametrize(("within", "seconds"), [("90s", 90), ("15m", 900), ("6h", 21_600), ("2d", 172_800)])
def test_an_age_is_read_in_its_unit(within: str, seconds: int) -> None:
    assert Freshness(column="day", within=within).within_s == seconds


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"rows": {}}, "nothing is bounded; write 'min:', 'max:', or both"),
        ({"range": {"column": "a"}}, "nothing is bounded"),
        ({"rows": {"min": 3, "max": 2}}, "nothing lies between 3 and 2"),
        ({"range": {"column": "a", "min": "b", "max": "a"}}, "nothing lies between b and a"),
        ({"range": {"column": "a", "min": 1, "max": "2"}}, "one bound is text and the other a number"),
        ({"accepted": {"column": "a", "values": [1, "1"]}}, "the values mix numbers and text"),
        ({"accepted": {"column": "a", "values": [1, True]}}, "the values mix numbers and true or false"),
        ({"references": {"columns": ["a"], "input": "plane"}}, "no input 'plane'; did you mean 'planes'?"),
        ({"references": {"columns": ["a"], "input": "aircraft"}}, "no input 'aircraft'"),
        (
            {"references": {"columns": ["a", "b"], "input": "planes", "input_columns": ["c"]}},
            "2 columns cannot be found in 1",
        ),
        ({"rows": {"min": 1}, "output": 2}, "'clean' has no output 2: it has 2, counted from 0; write one from 0"),
        ({"unique": ["a", "a"]}, "'a' stands twice"),
        ({"unique": ["a"], "sql": "a > 0"}, "needs either"),
        ({"severity": "warn"}, "needs either"),
        ({"rows": {"min": 1}, "severity": "error"}, "write one of fail, warn"),
        ({"range": {"column": "a", "max": False}}, "write text or a number"),
    ],
)
def test_what_cannot_be_met_or_meant_is_refused(written: dict[str, Any], message: str) -> None:
    assert message in refused(document(written))


def test_a_problem_is_shown_where_it_stands() -> None:
    text = """\
name: p
jobs:
- name: clean
  activation: reactive
  runtime: spark
  operator: a:b
  outputs: 1
  execution_strategy: PerPartition
  inputs: [{from: {dataset: flights}}]
  expectations:
  - rows: {min: 3, max: 2}
  - references: {columns: [a], input: planes}
    output: 1
"""
    assert [(each.line, each.column) for each in _problems(text)] == [(11, 25), (12, 39), (13, 13)]


def _problems(text: str) -> Any:
    with pytest.raises(DefinitionError) as error:
        read(text)
    return error.value.problems


@pytest.mark.parametrize(
    "fields", [{"expectations": [{"rows": {"min": 1}}]}, {"drift": "add"}, {"cursor_column": "day"}]
)
def test_only_spark_looks_into_data(fields: dict[str, Any]) -> None:
    (name,) = fields
    said = refused(document(runtime="python", operator="a:b", config={}, **fields))
    assert f"{name!r} is for the runtime spark, and 'clean' runs on python; remove it" in said


def test_a_job_without_outputs_has_nothing_to_expect() -> None:
    assert "'clean' has no output 0: it has 0" in refused(document({"rows": {"min": 1}}, outputs=0))


def test_what_is_expected_does_not_make_another_edition() -> None:
    datasets = {"flights": "f", "aircraft": "a"}
    plain = plan(read(document()), datasets=datasets)
    strict = plan(read(document({"rows": {"min": 1}}, drift="add", cursor_column="day")), datasets=datasets)
    assert [each.edition_id for each in plain.jobs] == [each.edition_id for each in strict.jobs]


def test_an_expectation_says_what_it_is_even_if_nothing_is_unset() -> None:
    assert Expectation(rows=parse_expectations([{"rows": {}}])[0].rows).kind == "rows"
