"""Tables and sources declared in Python: parameters name inputs, and variables name jobs."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import qo
from qo.core.pipeline.plan import content_hash
from qo.errors import UsageError
from qo.pipeline.loading import load_for_deploy
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError

pytestmark = pytest.mark.fast

FLIGHTS = Path(__file__).parents[2] / "examples" / "flights"

sales = qo.Pipeline("sales", max_attempts=5)
orders = sales.files(
    "landing/orders/*.csv",
    columns="day date, amount double",
    partition="day",
    expect=[qo.not_null("day", "amount")],
)
nightly = sales.cron("0 3 * * *", timezone="Europe/Berlin")
by_hand = sales.manual(partition={"kind": "month", "timezone": "Europe/Berlin"})
pushed = sales.webhook("orders/new", secret="shop")
rates = sales.http("https://example.com/rates.csv", poll_seconds=300)
table = sales.ingest(rates, format="csv", columns="currency string, rate double", missing="keep")


@sales.table(
    side=[table], expect=[qo.unique("day"), qo.rows(min=1, severity="warn", name="some")], publish="daily"
)
def totals(orders: list[int], table: list[int], config: object = None) -> list[int]:
    return [*orders, *table]


@sales.table(inputs={"days": totals, "contracts": sales.dataset("contracts", trigger=False)}, name="report_rows")
def report(days: list[int], contracts: list[int], run: qo.Run) -> list[int]:
    return days


@sales.job(inputs=[nightly], outputs=0)
def cleanup(run: qo.Run) -> str:
    return "done"


def split(b: list[int]) -> tuple[list[int], list[int]]:
    return b, b


best = sales.sql("SELECT max(amount) AS amount FROM totals", publish="best")

EXPLICIT = """\
name: sales
defaults: {max_attempts: 5}
jobs:
- {name: orders_files, activation: source, runtime: dispatcher, operator: noop, outputs: 1, partitions: {kind: day},
   source: {kind: files, path: landing/orders, pattern: "*.csv", key: "{key}.csv"}}
- name: orders
  activation: reactive
  runtime: spark
  operator: ingest
  outputs: 1
  execution_strategy: PerPartition
  inputs: [{from: {job: orders_files}}]
  config:
    format: csv
    options: {header: true}
    columns: [{name: day, type: date}, {name: amount, type: double}]
  expectations: [{not_null: [day, amount]}]
- {name: nightly, activation: source, outputs: 1,
   source: {kind: cron, schedule: "0 3 * * *", timezone: Europe/Berlin}}
- {name: by_hand, activation: source, outputs: 1, source: {kind: manual},
   partitions: {kind: month, timezone: Europe/Berlin}}
- {name: pushed, activation: source, outputs: 1, source: {kind: webhook, webhook_path: orders/new, secret: shop}}
- {name: rates, activation: source, outputs: 1,
   source: {kind: http, urls: ["https://example.com/rates.csv"], poll_seconds: 300}}
- name: table
  activation: reactive
  runtime: spark
  operator: ingest
  outputs: 1
  execution_strategy: PerPartition
  inputs: [{from: {job: rates}}]
  config:
    format: csv
    columns: [{name: currency, type: string}, {name: rate, type: double}]
    missing: keep
- name: totals
  activation: reactive
  runtime: spark
  operator: MODULE:totals
  outputs: 1
  execution_strategy: PerPartition
  inputs: [{from: {job: orders}}, {from: {job: table}, trigger: false}]
  expectations: [{unique: [day]}, {rows: {min: 1}, severity: warn, name: some}]
- name: report_rows
  activation: reactive
  runtime: spark
  operator: MODULE:report
  outputs: 1
  execution_strategy: PerPartition
  inputs: [{from: {job: totals}, as: days}, {from: {dataset: contracts}, trigger: false}]
- {name: cleanup, activation: reactive, runtime: python, operator: "MODULE:cleanup", outputs: 0,
   execution_strategy: PerUpdate, inputs: [{from: {job: nightly}}]}
- {name: best, activation: reactive, runtime: spark, operator: sql, outputs: 1, execution_strategy: PerPartition,
   inputs: [{from: {job: totals}}], config: {query: SELECT max(amount) AS amount FROM totals}}
publish:
  daily: {from: {job: totals}}
  best: {from: {job: best}}
"""


def test_a_declaration_is_the_explicit_document():
    assert sales.document() == read(EXPLICIT.replace("MODULE", __name__))


def test_a_declared_function_stays_a_plain_function():
    assert totals([1], [2]) == [1, 2]
    assert inspect.signature(cleanup).parameters.keys() == {"run"}


def test_the_flights_pipeline_is_one_document_in_yaml_and_in_python(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    written = load_for_deploy(str(FLIGHTS / "pipeline.yaml"))
    declared = load_for_deploy(str(FLIGHTS / "in_python.py"))
    assert declared.dag == written.dag
    assert content_hash(declared.dag) == content_hash(written.dag)
    assert len((FLIGHTS / "pipeline.yaml").read_text().splitlines()) <= 90
    assert len((FLIGHTS / "in_python.py").read_text().splitlines()) <= 60
    for name in ("flights", "in_python"):
        sys.modules.pop(name, None)


def test_variables_inside_functions_name_jobs_too():
    pipeline = qo.Pipeline("p")
    first: Any = pipeline.manual()
    second, third = pipeline.manual(name="other"), pipeline.manual(name="another")
    assert [job.name for job in pipeline.document().jobs] == ["another", "first", "other"]
    assert (first.name, second.name, third.name) == ("first", "other", "another")


def test_a_job_without_a_name_is_refused_where_it_is_declared():
    pipeline = qo.Pipeline("p")
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="needs a name: assign it to a variable, or pass name=") as caught:
        pipeline.manual()
    assert str(caught.value).startswith(f"{__file__}:{line}: pipeline.manual")


def test_a_parameter_that_names_no_job_is_reported_at_its_function():
    pipeline = qo.Pipeline("p")
    pipeline.manual(name="orders")

    def clean(order: object) -> object:
        return order

    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    pipeline.table(clean, name="clean")
    with pytest.raises(DefinitionError) as caught:
        pipeline.document()
    problems = {problem.message: problem for problem in caught.value.problems}
    assert problems["there is no job 'order'"].hint == "did you mean 'orders'?"
    assert (problems["there is no job 'order'"].file, problems["there is no job 'order'"].line) == (__file__, line)


@pytest.mark.parametrize(
    ("expectation", "written"),
    [
        (qo.not_null("a", "b"), {"not_null": ["a", "b"]}),
        (qo.unique("a", severity="warn"), {"unique": ["a"], "severity": "warn"}),
        (qo.range("a", max="2026-01-31"), {"range": {"column": "a", "max": "2026-01-31"}}),
        (qo.accepted("a", [1, 2], output=1), {"accepted": {"column": "a", "values": [1, 2]}, "output": 1}),
        (qo.rows(1, 9), {"rows": {"min": 1, "max": 9}}),
        (qo.freshness("at", "2d"), {"freshness": {"column": "at", "within": "2d"}}),
        (qo.in_partition("at"), {"in_partition": "at"}),
        (qo.references("a", "b"), {"references": {"columns": ["a"], "input": "b"}}),
        (
            qo.references(["a"], "b", ["c"], name="known"),
            {"references": {"columns": ["a"], "input": "b", "input_columns": ["c"]}, "name": "known"},
        ),
        (qo.condition("a > 0"), {"sql": "a > 0"}),
    ],
)
def test_each_expectation_is_that_of_a_file(expectation: Any, written: dict[str, Any]):
    pipeline = qo.Pipeline("p")
    source = pipeline.manual(partition="day")
    common: dict[str, Any] = {"inputs": {"b": source}, "outputs": 2}
    pipeline.table(split, name="as_in_a_file", expectations=[written], **common)
    pipeline.table(split, name="as_a_function", expect=[expectation], **common)
    [one, other, _] = pipeline.document().jobs
    assert one.expectations == other.expectations
