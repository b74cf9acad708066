"""``qo up`` with datasets that are published as tables of a database."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest

from support.cli.command import Qo
from support.cli.letters import processes, until
from support.servers.postgres import PostgresServer

pytestmark = [pytest.mark.timeout(300)]

LIMIT_S = 120.0
PIPELINE = """\
name: letters
jobs:
  - name: inbox
    activation: source
    source: {kind: files, path: inbox, pattern: "*.txt", poll_seconds: 1}
    outputs: 1
  - name: counted
    activation: reactive
    runtime: python
    operator: letters:counted
    inputs: [{from: {job: inbox}}]
    execution_strategy: PerPartition
    outputs: 1
publish:
  counts: {from: {job: counted}, to: postgres}
"""
OPERATORS = """\
import io

import pyarrow as pa
import pyarrow.parquet as pq


def counted(run):
    size = sum(len(body) for body in run.input().read())
    file = io.BytesIO()
    pq.write_table(pa.table({"letter": [run.partition_key], "size": [size]}), file)
    run.output().write("count.parquet", file.getvalue(), rows=1)
"""


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    return postgres_server.make_database()


@pytest.fixture
def qo(tmp_path: Path, database: str) -> Qo:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "letters.py").write_text(OPERATORS)
    write(tmp_path, a="one", b="three")
    return Qo(tmp_path, {"QO_SINK_DATABASES": f"data={database}", "QO_SINK_POLL_MS": "50"})


def write(directory: Path, **letters: str) -> None:
    for name, text in letters.items():
        (directory / "inbox" / f"{name}.txt").write_text(text)


def rows(database: str) -> list[tuple[str, int]]:
    with psycopg.connect(database) as connection:
        try:
            return connection.execute("SELECT letter, size FROM counts ORDER BY 1").fetchall()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            return []  # It has columns from the first commit on.


def test_once_ends_with_every_commit_in_the_table_and_later_ones_follow(qo: Qo, database: str) -> None:
    first = qo("--json", "up", "--once", timeout_s=LIMIT_S)
    assert first.code == 0, first
    assert rows(database) == [("a.txt", 3), ("b.txt", 5)]
    assert [(each["name"], each["is_current"]) for each in first.document["sinks"]] == [("counts", True)]
    write(qo.cwd, b="more than before", c="")
    again = qo("up", "--once", timeout_s=LIMIT_S)
    assert again.code == 0, again
    assert "sink counts: the table public.counts of 'data' is current, as of revision" in again.out
    assert rows(database) == [("a.txt", 3), ("b.txt", 16), ("c.txt", 0)]
    assert not processes(qo)


def test_a_sink_that_is_killed_is_started_again_and_loads_nothing_twice(qo: Qo, database: str) -> None:
    process = qo.start("up")
    try:
        until(lambda: len(rows(database)) == 2)
        victim = sink_of(qo)
        os.kill(victim, signal.SIGKILL)
        write(qo.cwd, c="four")
        until(lambda: rows(database) == [("a.txt", 3), ("b.txt", 5), ("c.txt", 4)])
        assert sink_of(qo) != victim
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    until(lambda: not processes(qo))


def test_a_table_that_cannot_be_loaded_is_reported_and_holds_up_nothing(qo: Qo) -> None:
    unconfigured = Qo(qo.cwd, {**qo.environ, "QO_SINK_DATABASES": "other=postgresql:///nowhere"})
    ended = unconfigured("up", "--once", timeout_s=LIMIT_S)
    assert ended.code == 1, ended
    assert "sink counts: " in ended.out
    assert "the database 'data' is not configured" in ended.out
    assert "counted 2/2" in ended.out or "counts: 2 rows" in ended.out


def sink_of(qo: Qo) -> int:
    """The process id of the sink."""
    found = [pid for pid, words in processes(qo).items() if "sink" in words and "qo.up.child_main" in words]
    assert len(found) == 1, found
    return found[0]
