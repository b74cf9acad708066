"""The JSON Schema, the reference page and the validation say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from qo.core.pipeline import dag, expectation, partitions
from qo.pipeline import fields
from qo.pipeline.document import parse
from qo.pipeline.jsonschema import schema, text
from qo.pipeline.kinds import Record
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError, Report, Spot

pytestmark = pytest.mark.fast

REFERENCE = Path(__file__).parents[2] / "docs/reference"
PAGE = (REFERENCE / "dag.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
VALIDATOR = jsonschema.Draft202012Validator(schema())

STRUCTS: list[tuple[Record, type[msgspec.Struct]]] = [
    (fields.DAG, dag.Dag),
    (fields.DEFAULTS, dag.Defaults),
    (fields.JOB, dag.Job),
    (fields.INPUT, dag.Input),
    (fields.FROM, dag.From),
    (fields.SOURCE, dag.Source),
    (fields.BOOTSTRAP, dag.Bootstrap),
    (fields.SCALING, dag.Scaling),
    (fields.UDF, dag.Udf),
    (fields.PUBLISH, dag.Publish),
    (fields.EXPECTATION, expectation.Expectation),
    (fields.PARTITIONS, partitions.Partitions),
]
PARTS: list[tuple[str, type[msgspec.Struct]]] = [
    ("range", expectation.Range),
    ("accepted", expectation.Accepted),
    ("rows", expectation.Rows),
    ("freshness", expectation.Freshness),
    ("references", expectation.References),
]

JOB: dict[str, Any] = {
    "name": "a",
    "activation": "reactive",
    "runtime": "spark",
    "operator": "sql",
    "config": {"query": "SELECT 1"},
    "outputs": 1,
    "inputs": [{"from": {"dataset": "x"}}],
    "execution_strategy": "PerPartition",
}
SOURCE: dict[str, Any] = {
    "name": "s",
    "activation": "source",
    "runtime": "dispatcher",
    "operator": "noop",
    "outputs": 1,
    "source": {"kind": "manual"},
}


SILENT = {key: part for key, part in SOURCE.items() if key not in ("runtime", "operator")}
ALWAYS_ON = {**SOURCE, "runtime": "python", "operator": "a:b", "source": {"kind": "always_on"}}


def value(example: str) -> Any:
    document = parse(example, Report(Spot("f")))
    assert document is not None
    return document.value


def test_the_published_schema_is_the_one_of_the_code():
    # To write it anew: qo dag schema > docs/reference/dag.schema.json
    assert json.loads((REFERENCE / "dag.schema.json").read_text()) == json.loads(text())


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(("record", "struct"), STRUCTS, ids=lambda each: getattr(each, "__name__", ""))
def test_the_table_has_the_fields_of_the_dag_and_no_other(record: Record, struct: type[msgspec.Struct]):
    known = {each.encode_name: each.required for each in msgspec.structs.fields(struct)}
    assert {field.name: field.required for field in record.fields if not field.shorthand} == known


@pytest.mark.parametrize(("record", "struct"), STRUCTS, ids=lambda each: getattr(each, "__name__", ""))
def test_the_defaults_of_the_table_are_those_of_the_dag(record: Record, struct: type[msgspec.Struct]):
    resolved = {"heartbeat_timeout_seconds": dag.HEARTBEAT_TIMEOUT_S, "max_attempts": dag.MAX_ATTEMPTS}
    # Where the default is worked out later, it is None in the file's own fields.
    later = {**resolved, "timezone": "UTC"}
    for each in msgspec.structs.fields(struct):
        told = record.by_name[each.encode_name].default
        if told is not None:
            assert told == (later[each.name] if each.default is None else each.default)


@pytest.mark.parametrize(("record", "struct"), STRUCTS, ids=lambda each: getattr(each, "__name__", ""))
def test_every_field_is_on_the_reference_page(record: Record, struct: type[msgspec.Struct]):
    for field in record.fields:
        assert re.search(rf"^\| `{field.name}` \|", PAGE, re.MULTILINE), field.name


@pytest.mark.parametrize(("name", "struct"), PARTS)
def test_what_an_expectation_says_has_the_fields_of_the_table(name: str, struct: type[msgspec.Struct]):
    record = fields.EXPECTATION.by_name[name].kind
    assert isinstance(record, Record)
    known = {each.encode_name: each.required for each in msgspec.structs.fields(struct)}
    assert {field.name: field.required for field in record.fields} == known
    for each in known:
        assert f"`{each}`" in PAGE


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_of_the_page_are_what_they_claim(example: str):
    if example.startswith("# invalid"):
        with pytest.raises(DefinitionError):
            read(example)
    else:
        read(example)
        VALIDATOR.validate(value(example))


def test_the_page_has_examples_of_both_sorts():
    assert {example.startswith("# invalid") for example in EXAMPLES} == {True, False}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "p"},
        {"name": "P", "jobs": [SOURCE]},
        {"name": "p", "jobs": []},
        {"name": "p", "jobs": [SOURCE], "x": 1},
        {"name": "p", "jobs": [{**SOURCE, "max_queue_depth": 1}]},
        {"name": "p", "jobs": [{**SOURCE, "outputs": -1}]},
        {"name": "p", "jobs": [{**SOURCE, "source": {"kind": "cron"}}]},
        {"name": "p", "jobs": [{**SOURCE, "source": {"kind": "manual", "path": "x"}}]},
        {"name": "p", "jobs": [{**SOURCE, "inputs": JOB["inputs"]}]},
        {"name": "p", "jobs": [{**SOURCE, "runtime": "python"}]},
        {"name": "p", "jobs": [{**SOURCE, "operator": "a:b"}]},
        {"name": "p", "jobs": [{**SILENT, "source": {"kind": "always_on"}}]},
        {"name": "p", "jobs": [{key: part for key, part in SOURCE.items() if key != "source"}]},
        {"name": "p", "jobs": [{"name": "a", "operator": "a:b"}]},
        {"name": "p", "jobs": [{**JOB, "sql": "SELECT 1"}]},
        {"name": "p", "jobs": [{**SOURCE, "source": "manuel"}]},
        {"name": "p", "jobs": [{"name": "a", "files": {"path": "in", "format": "xml"}}]},
        {"name": "p", "jobs": [{**JOB, "inputs": ["Orders"]}]},
        {"name": "p", "jobs": [{**JOB, "update_strategy": "append"}]},
        {"name": "p", "jobs": [{**JOB, "update_strategy": "replace", "unique_key": ["id"]}]},
        {"name": "p", "jobs": [{**JOB, "idle_timeout": 5}]},
        {"name": "p", "jobs": [{**JOB, "operator": "udf", "runtime": "lambda"}]},
        {"name": "p", "jobs": [{**JOB, "inputs": [{"from": {"job": "a", "dataset": "b"}}]}]},
        {"name": "p", "jobs": [{**JOB, "inputs": [{"from": {"dataset": "b"}, "where": {"x": [1, "a"]}}]}]},
        {"name": "p", "jobs": [{**JOB, "inputs": [{"from": {"dataset": "b"}, "where": {"x": None}}]}]},
        {"name": "p", "jobs": [{**JOB, "inputs": [{"from": {"dataset": "b"}, "refresh": "on_change"}]}]},
        {"name": "p", "jobs": [SOURCE], "publish": {"x": {"from": {"job": "s"}, "storage": "s3"}}},
        {"name": "p", "jobs": [SOURCE], "publish": {"x": {"from": {}}}},
        {"name": "p", "jobs": [{**JOB, "expectations": []}]},
        {"name": "p", "jobs": [{**JOB, "expectations": [{}]}]},
        {"name": "p", "jobs": [{**JOB, "expectations": [{"unique": ["a"], "rows": {"min": 1}}]}]},
        {"name": "p", "jobs": [{**JOB, "expectations": [{"range": {"column": "a", "min": True}}]}]},
        {"name": "p", "jobs": [{**JOB, "expectations": [{"freshness": {"column": "a", "within": "2w"}}]}]},
        {"name": "p", "jobs": [{**JOB, "drift": "ignore"}]},
        {"name": "p", "jobs": [{**JOB, "partitions": {"timezone": "UTC"}}]},
        {"name": "p", "jobs": [{**JOB, "partitions": {"kind": "year"}}]},
        {"name": "p", "jobs": [{key: part for key, part in JOB.items() if key != "config"}]},
        {"name": "p", "jobs": [{**JOB, "config": {"query": "SELECT 1", "file": "one.sql"}}]},
        {"name": "p", "jobs": [{**JOB, "operator": "dedupe", "config": {"keys": "id", "order_by": "at"}}]},
        {"name": "p", "jobs": [{**JOB, "operator": "compact", "config": {"target_mb": 0}}]},
        [],
    ],
)
def test_what_an_editor_underlines_is_refused(wrong: Any):
    assert not VALIDATOR.is_valid(wrong)
    with pytest.raises(DefinitionError):
        read(json.dumps(wrong))


@pytest.mark.parametrize(
    "good",
    [
        SOURCE,
        SILENT,
        ALWAYS_ON,
        JOB,
        {**JOB, "operator": "a:b", "config": {"keys": 1}},
        {**JOB, "operator": "dedupe", "config": {"keys": ["id"], "order_by": "at"}},
        {**JOB, "idle_timeout": 0},
        {**JOB, "join": "any"},
        {"name": "a", "sql": "SELECT 1", "inputs": [{"from": {"dataset": "x"}}]},
        {"name": "a", "source": "manual"},
        {"name": "a", "source": {"schedule": "0 3 * * *"}},
        {"name": "a", "source": "always_on", "operator": "a:b"},
        {"name": "a", "files": "landing/*.csv"},
        {"name": "a", "files": {"path": "landing/*.csv", "columns": "day date, delay int", "source": "landed"}},
        {"name": "a", "operator": "a:b", "inputs": [{"from": {"dataset": "x"}}], "unique_key": ["id"]},
        {**JOB, "expectations": [{"rows": {"min": 1}, "severity": "warn"}, {"sql": "a > 0"}], "drift": "add"},
    ],
)
def test_what_is_accepted_is_not_underlined(good: dict[str, Any]):
    whole = {"name": "p", "jobs": [good]}
    read(json.dumps(whole))
    VALIDATOR.validate(whole)
