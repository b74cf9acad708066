"""A chaos run reads every version of every task of an embedded store, and can lock its file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import qo
from chaos import history
from chaos.locks import WriteLock
from chaos.versions import read_directory
from qo.queue.queue import Claim
from qo.store.sqlite_file import FILE

pytestmark = pytest.mark.fast


async def test_every_version_of_every_task_is_read_in_the_order_of_writing(tmp_path: Path) -> None:
    async with qo.connect(f"local:{tmp_path}") as queue:
        ids = [(await queue.submit("copy", {"number": number})).id for number in range(3)]
        for each in ids:
            claimed = await queue.claim(each, worker_id="w1")
            assert isinstance(claimed, Claim)
            await queue.complete(claimed, {"done": True})
    found = read_directory(tmp_path)
    assert sorted(versions[0].task.id for versions in found.values()) == sorted(ids)
    for versions in found.values():
        states = [each.task for each in versions]
        assert [each.status for each in states] == ["pending", "running", "completed"]
        assert history.violations(states) == []
        assert history.violations([states[0], states[2]])


def test_a_store_that_nobody_has_opened_has_no_versions(tmp_path: Path) -> None:
    assert read_directory(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_locked_file_can_be_read_and_not_written_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE things (n)")
        lock = WriteLock(path)
        lock.take()
        assert other.execute("SELECT count(*) FROM things").fetchone() == (0,)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("INSERT INTO things VALUES (1)")
        lock.release()
        other.execute("INSERT INTO things VALUES (1)")
