"""A pipeline declared in Python is the document that a file would be."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qo
from qo.core.pipeline.plan import content_hash
from qo.errors import UsageError
from qo.pipeline.loading import load
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError

pytestmark = pytest.mark.fast

MODULE = """\
import qo

pipeline = qo.Pipeline("sales", max_attempts=5, description="What was sold.")

orders = pipeline.add("orders", source={"kind": "manual"}, outputs=2)


@pipeline.source(kind="always_on")
def ticks(run):
    return "ticks"


@pipeline.job(
    inputs=[orders, pipeline.dataset("rates", trigger=False, refresh="on_change")],
    strategy="PerPartition",
    runtime="spark",
)
def totals(orders, rates):
    return orders


@pipeline.job(
    inputs=[totals, "ticks", pipeline.input(orders, output=1, name="late", where={"country": ["DE", "FR"]})],
    strategy="PerPartition",
    update_strategy="append",
    unique_key=["id"],
    scaling={"max_concurrency": 2},
    name="report_rows",
)
def report(totals, ticks, late):
    return totals


pipeline.publish("daily_totals", totals)
pipeline.publish("late_orders", orders, output=1)
"""

FILE = """\
name: sales
description: What was sold.
defaults: {max_attempts: 5}
jobs:
- {name: orders, activation: source, runtime: dispatcher, operator: noop, outputs: 2, source: {kind: manual}}
- {name: ticks, activation: source, runtime: python, operator: "declared_sales:ticks", outputs: 1,
   source: {kind: always_on}}
- name: totals
  activation: reactive
  runtime: spark
  operator: declared_sales:totals
  outputs: 1
  execution_strategy: PerPartition
  inputs:
  - from: {job: orders}
  - from: {dataset: rates}
    trigger: false
    refresh: on_change
- name: report_rows
  activation: reactive
  runtime: python
  operator: declared_sales:report
  outputs: 1
  execution_strategy: PerPartition
  update_strategy: append
  unique_key: [id]
  scaling: {max_concurrency: 2}
  inputs:
  - from: {job: totals}
  - from: {job: ticks}
  - {from: {job: orders, output: 1}, as: late, where: {country: [DE, FR]}}
publish:
  daily_totals: {from: {job: totals}}
  late_orders: {from: {job: orders, output: 1}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("declared_"):
            del sys.modules[name]


def test_a_function_that_nobody_would_call_is_refused():
    pipeline = qo.Pipeline("sales")

    @pipeline.source(kind="cron", schedule="rate(1 day)")
    def nightly(run: object) -> None: ...

    with pytest.raises(DefinitionError, match="a cron source runs no code of its own, and 'nightly' names some"):
        pipeline.document()


def test_a_declared_pipeline_is_the_document_of_its_file(here: Path):
    (here / "declared_sales.py").write_text(MODULE)
    (here / "sales.yaml").write_text(FILE)
    declared, source = load("declared_sales:pipeline")
    written, text = load("sales.yaml")
    assert declared == written
    assert content_hash(declared) == content_hash(written)
    assert text == FILE
    assert read(source) == declared


def test_a_decorated_function_stays_what_it_was(here: Path):
    (here / "declared_sales.py").write_text(MODULE)
    load("declared_sales:pipeline")
    module = sys.modules["declared_sales"]
    assert module.ticks(None) == "ticks"
    assert module.pipeline.to_yaml().startswith("name: sales\n")


def test_problems_point_to_the_declaration():
    pipeline = qo.Pipeline("sales")
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    orders = pipeline.add("orders", source={"kind": "cron"}, runtime="dispatcher", operator="noop")
    pipeline.publish("raw", orders, output=3)
    pipeline.publish("raw", orders)

    @pipeline.job(inputs=[orders], strategy="PerUpdate")
    def inner(rows: object) -> object:
        return rows

    with pytest.raises(DefinitionError) as caught:
        pipeline.document()
    assert {problem.file for problem in caught.value.problems} == {__file__}
    assert [problem.line for problem in caught.value.problems] == [line, line + 2, line + 4]
    messages = [str(problem) for problem in caught.value.problems]
    assert "a cron source needs 'schedule'" in messages[0]
    assert "published twice" in messages[1]
    assert "declare the function at the top of a module" in messages[2]


def test_values_that_no_file_can_hold_are_refused():
    pipeline = qo.Pipeline("sales")
    config = {"when": {1, 2}}
    pipeline.add("a", source={"kind": "manual"}, runtime="dispatcher", operator="noop", config=config)
    with pytest.raises(DefinitionError, match="a set cannot be written to a file"):
        pipeline.document()


def test_an_undeclared_function_is_no_input():
    pipeline = qo.Pipeline("sales")
    pipeline.add("a", inputs=[len], strategy="PerUpdate", runtime="spark", operator="sql")
    with pytest.raises(DefinitionError, match="there is no job 'len'"):
        pipeline.document()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.yaml", "cannot read nowhere.yaml: No such file"),
        ("pipeline", "there is no pipeline pipeline: give a file"),
        ("declared_nowhere:pipeline", "importing 'declared_nowhere' failed"),
        ("declared_broken:pipeline", "importing 'declared_broken' failed: ZeroDivisionError"),
        ("declared_sales:totals", "is no pipeline"),
        ("declared_sales:missing.name", "is no pipeline"),
        ("binary.yaml", "not text in UTF-8"),
    ],
)
def test_what_cannot_be_loaded_is_explained(here: Path, target: str, message: str):
    (here / "declared_sales.py").write_text(MODULE)
    (here / "declared_broken.py").write_text("1 / 0\n")
    (here / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=message):
        load(target)


def test_a_file_of_any_name_can_be_loaded(here: Path):
    (here / "sales").write_text("\ufeff" + FILE)
    assert load("sales")[0].name == "sales"
