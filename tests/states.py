"""State databases for tests: the same test on SQLite (fast) and on a real PostgreSQL.

The fixtures are in conftest: ``state`` is an open database with its tables, ``state_clock`` moves its time on, and
``state_url`` is where it is, for a test that opens it once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

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


@contextmanager
def opened(url: str, clock: Clock) -> Iterator[State]:
    """A state database with its tables, by that clock."""
    state = open_state(url, clock=clock)
    create_tables(state)
    yield state
    state.close()


def create_tables(state: State) -> None:
    """As the migrations do, only quicker; a test compares the two."""
    schema.metadata.create_all(state.engine)
    with state.write() as tx:
        tx.insert(schema.topology, [{"id": 1, "epoch": 0}])


# For modules that import the fixtures by name.
@pytest.fixture(name="clock")
def clock() -> Clock:
    return Clock()


@pytest.fixture(name="state")
def state(state_url: str, clock: Clock) -> Iterator[State]:
    with opened(state_url, clock) as database:
        yield database
