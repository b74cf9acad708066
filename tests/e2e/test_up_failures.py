"""``qo up`` where something has failed: what waits for that does not keep it for ever, and what was mended is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli.command import Qo
from support.servers.postgres import PostgresServer

# Many processes of their own.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PIPELINE = """\
name: shop
defaults: {max_attempts: 1}
jobs:
  - name: inbox
    activation: source
    source: {kind: files, path: inbox, pattern: "*.txt", poll_seconds: 1}
    outputs: 1
  - name: months
    activation: source
    source: {kind: files, path: months, pattern: "*.txt", poll_seconds: 1}
    outputs: 1
  - name: daily
    activation: reactive
    runtime: python
    operator: shop:daily
    inputs: [{from: {job: inbox}}]
    execution_strategy: PerPartition
    outputs: 1
  - name: closed
    activation: reactive
    runtime: python
    operator: shop:closed
    inputs: [{from: {job: months}}, {from: {job: daily}, trigger: false}]
    execution_strategy: PerPartition
    outputs: 1
publish:
  closed: {from: {job: closed}}
"""

OPERATORS = """\
import qo


def daily(run):
    [text] = [body.decode() for body in run.input().read()]
    if text == "bad":
        raise qo.Reject("this day cannot be read")
    run.output().write("day.txt", text, rows=1)


def closed(run):
    days = set(run.input("months").lines())
    missing = days - {piece.partition_key for piece in run.input("daily").pieces}
    if missing:
        raise qo.Reschedule(1, reason=f"waits for {len(missing)} of {len(days)} days")
    run.output().write("days.txt", str(len(days)), rows=1)
"""

LIMIT_S = 120.0


@pytest.fixture
def qo(tmp_path: Path, postgres_server: PostgresServer) -> Qo:
    """With its state in PostgreSQL."""
    for name in ("inbox", "months"):
        (tmp_path / name).mkdir()
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "shop.py").write_text(OPERATORS)
    for name, text in (("d1", "good"), ("d2", "bad")):
        (tmp_path / "inbox" / f"{name}.txt").write_text(text)
    (tmp_path / "months" / "m1.txt").write_text("d1.txt\nd2.txt\n")
    return Qo(tmp_path, {"QO_LEASE_S": "3", "QO_STATE": postgres_server.make_database()})


def test_once_ends_though_something_waits_for_what_has_failed(qo: Qo) -> None:
    stuck = qo("up", "--once", timeout_s=LIMIT_S)
    assert stuck.code == 1, stuck
    assert "failed: daily d2.txt" in stuck.out
    assert "unfinished: closed m1.txt (task " in stuck.out
    assert ": waits for 1 of 2 days" in stuck.out
    assert "it waits for the failed tasks of daily" in stuck.out
    assert "rescheduled" in qo.ok("why", "closed@m1.txt")
    (qo.cwd / "inbox" / "d2.txt").write_text("corrected")
    mended = qo("up", "--once", timeout_s=LIMIT_S)
    assert mended.code == 0, mended
    assert "failed:" not in mended.out
    assert "unfinished" not in mended.out
    assert "is there" in qo.ok("why", "closed@m1.txt")
    assert qo.json("run", "list", "--status", "failed") == []
    [gone] = qo.json("run", "list", "--status", "failed", "--all")
    assert gone["superseded"]["text"].startswith("committed later by task ")
    assert gone["partition_key"] == "d2.txt"
