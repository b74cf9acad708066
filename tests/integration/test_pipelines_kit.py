"""Pipelines within a test, by the fixture of the test kit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import qo
from qo.errors import UsageError
from qo.testing import DrainFailed
from qo.testing.pipelines import Pipelines

pytestmark = pytest.mark.fast

DAYS = """
import qo

pipeline = qo.Pipeline("days")
orders = pipeline.add("orders", source={"kind": "manual"}, runtime="dispatcher", operator="noop")


@pipeline.job(inputs=[orders], strategy="PerPartition")
def totals(run):
    if run.work.attempt < 3:
        raise ConnectionError("not yet")
    run.output().write("total", run.partition_key)


@pipeline.job(inputs=[totals], strategy="PerPartition")
async def twice(run):
    (found,) = run.input().read()
    if found == b"bad":
        raise qo.Reject("a bad day")
    run.output().write("twice", found + found)


pipeline.publish("doubled", twice)
"""


@pytest.fixture
def days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> qo.Pipeline:
    (tmp_path / "kit_days.py").write_text(DAYS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kit_days", raising=False)
    from kit_days import pipeline  # type: ignore[import-not-found]

    return pipeline


def test_events_go_down_a_pipeline_and_retries_take_no_time(
    days: qo.Pipeline, qo_pipelines: Pipelines, qo_run: Any
) -> None:
    qo_pipelines.deploy(days)
    qo_pipelines.emit("days.orders", "monday")
    qo_pipelines.emit("days.orders", "bad")
    with pytest.raises(DrainFailed) as told:
        qo_run(qo_pipelines.drain())
    assert str(told.value).startswith("1 of 4 tasks failed:\n  days.twice@bad  failed after 1 attempt: a bad day")
    assert qo_pipelines.read("doubled") == {"monday": [b"mondaymonday"]}
    assert qo_pipelines.read("days.totals") == {"monday": [b"monday"], "bad": [b"bad"]}
    qo_pipelines.emit("days.orders", "friday")
    drained = qo_run(qo_pipelines.drain())
    assert [(ran.job, ran.partition_key, ran.attempts) for ran in drained.completed] == [
        ("days.totals", "friday", 3),
        ("days.twice", "friday", 1),
    ]
    assert drained.remaining == ()


def test_an_operator_of_another_runtime_is_refused(qo_pipelines: Pipelines) -> None:
    pipeline = qo.Pipeline("shop")
    sales = pipeline.add("sales", source={"kind": "manual"}, runtime="dispatcher", operator="noop")
    pipeline.add(
        "totals",
        operator="sql",
        runtime="spark",
        inputs=[sales],
        strategy="PerPartition",
        config={"query": "SELECT 1"},
    )
    with pytest.raises(UsageError, match=r"shop\.totals has the runtime 'spark'"):
        qo_pipelines.deploy(pipeline)
