"""A state database that is removed or damaged under a running dispatcher."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.dispatcher.http import health
from qo.dispatcher.state import schema, upgrade
from qo.dispatcher.state.database import State, open_state
from qo.errors import CorruptRecord, Refused, Unavailable
from support.cli.command import Qo


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def opened(path: Path) -> State:
    state = open_state(f"sqlite:{path}")
    upgrade.upgrade(state)
    return state


def epoch(state: State) -> Any:
    with state.read() as tx:
        return tx.value(sa.select(schema.topology.c.epoch))


@pytest.mark.fast
@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_was_taken_away_is_not_written_to(path: Path, replaced: bool) -> None:
    state = opened(path)
    path.rename(path.with_suffix(".old"))
    if replaced:
        opened(path).close()
    with pytest.raises(Unavailable, match="moved or removed"), state.write() as tx:
        tx.execute(sa.update(schema.topology).values(epoch=7))
    with pytest.raises(Unavailable, match="restart the dispatcher"):
        epoch(state)
    if not replaced:
        path.with_suffix(".old").rename(path)
        assert epoch(state) == 0  # Back in its place, it goes on.
    state.close()


@pytest.mark.fast
def test_a_dispatcher_without_its_file_is_not_ready(path: Path) -> None:
    state = opened(path)
    here: Any = type("Here", (), {"state": state})()
    assert health.readyz(here).status == "ok"
    path.unlink()
    with pytest.raises(Unavailable, match="moved or removed"):
        health.readyz(here)
    state.close()


@pytest.mark.fast
def test_a_damaged_page_is_corruption_and_not_an_outage(path: Path) -> None:
    opened(path).close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    state = open_state(f"sqlite:{path}")
    here: Any = type("Here", (), {"state": state})()
    with pytest.raises(CorruptRecord, match="restore the backup"):
        epoch(state)
    with pytest.raises(Unavailable, match="damaged"):
        health.readyz(here)
    state.close()


@pytest.mark.fast
def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE tasks (id TEXT)")
    theirs.close()
    state = open_state(f"sqlite:{path}")
    with pytest.raises(Refused, match="tables of something else: tasks"):
        upgrade.upgrade(state)
    with state.read() as tx:
        assert sa.inspect(tx.connection).get_table_names() == ["tasks"]
    state.close()


@pytest.mark.fast
def test_damage_that_is_met_late_is_one_line_too(tmp_path: Path) -> None:
    qo = Qo(tmp_path)
    qo.ok("db", "upgrade")
    path = tmp_path / ".qo/state.db"
    found = sqlite3.connect(path)
    (size,) = found.execute("PRAGMA page_size").fetchone()
    pages = found.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'dags' AND rootpage > 0").fetchall()
    found.close()
    with path.open("r+b") as file:
        for (page,) in pages:
            file.seek((page - 1) * size)
            file.write(b"damaged " * (size // 8))
    answer = qo.here("dag", "list")
    assert (answer.code, len(answer.err.splitlines())) == (7, 1), answer
