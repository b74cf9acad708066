"""State databases for tests: the same test on SQLite (fast) and on a real PostgreSQL.

Import the fixtures where they are used::

    from states import clock, state  # noqa: F401
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, database_clock, open_state


class Clock:
    """The database's clock, which a test can move on."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self, connection: sa.Connection) -> datetime:
        return database_clock(connection) + self.ahead

    def advance(self, seconds: float) -> None:
        self.ahead += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.fast), "postgres"])
def state_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty database is; no tables yet."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'state.db'}"
    return request.getfixturevalue("postgres_server").make_database()


@pytest.fixture
def state(state_url: str, clock: Clock) -> Iterator[State]:
    """An open state database with its tables."""
    opened = open_state(state_url, clock=clock)
    create_tables(opened)
    yield opened
    opened.close()


def create_tables(opened: State) -> None:
    """As the migrations do, only quicker; a test compares the two."""
    schema.metadata.create_all(opened.engine)
    with opened.write() as tx:
        tx.insert(schema.topology, [{"id": 1, "epoch": 0}])
