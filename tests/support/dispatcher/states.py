"""State databases for tests: the same test on SQLite (fast) and on a real PostgreSQL.

The fixtures are in conftest: ``state`` is an open database with its tables, ``state_clock`` moves its time on, and
``state_url`` is where it is, for a test that opens it once more.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, database_clock, open_state
from qo.dispatcher.state.topology import use_registry
from qo.pipeline.registry import DEFAULT
from support.dispatcher import compiled_statements

compiled_statements.share()

_FIRST = {"id": 1, "epoch": 0}  # Of the topology.


class Clock:
    """The database's clock, which a test can move on."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self, connection: sa.Connection) -> datetime:
        return database_clock(connection) + self.ahead

    def advance(self, seconds: float) -> None:
        self.ahead += timedelta(seconds=seconds)


def fresh_url(request: pytest.FixtureRequest, directory: Path) -> str:
    """For a fixture with the parameters ``sqlite`` and ``postgres``: a database that was never used."""
    if request.param == "sqlite":
        return f"sqlite:{directory / 'state.db'}"
    return request.getfixturevalue("postgres_server").make_database()


@contextmanager
def opened(url: str, clock: Clock) -> Iterator[State]:
    """A state database with its tables, by that clock."""
    if url in pooled:
        state = State(borrow_engine(pooled[url]), clock=clock)
        use_registry(state, DEFAULT)  # The test before may have used another.
        yield state
        return
    state = open_state(url, clock=clock)
    if state.engine.dialect.name == "sqlite":
        event.listen(state.engine, "connect", _unordered)
    create_tables(state)
    yield state
    state.close()


# By URL, databases that have their tables and are used by one test after the other.
pooled: dict[str, sa.Engine] = {}


def borrow_engine(engine: sa.Engine) -> sa.Engine:
    """Another one with the same connections: what a test hangs on it goes with it. To connect takes longer than most
    tests do."""
    return sa.Engine(engine.pool, engine.dialect, engine.url, hide_parameters=True)


def _unordered(connection: sqlite3.Connection, _: object) -> None:
    """Rows that nobody put in order come the other way round: PostgreSQL returns them as it likes, too."""
    connection.execute("PRAGMA reverse_unordered_selects = ON")


def create_tables(state: State) -> None:
    """As the migrations do, only quicker; a test compares the two."""
    if state.engine.dialect.name == "sqlite":
        with contextlib.closing(state.engine.raw_connection()) as connection:
            _sqlite().backup(connection.driver_connection)
        return
    with state.engine.begin() as connection:
        if connection.exec_driver_sql("SELECT to_regclass('topology')").scalar() is None:
            connection.exec_driver_sql(_script())


@cache
def _sqlite() -> sqlite3.Connection:
    """A database that was never used, to be copied."""
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    schema.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(schema.topology).values(**_FIRST))
    return engine.raw_connection().driver_connection


@cache
def _script() -> str:
    """Everything in one go: PostgreSQL takes less time to do it than to be told of it piece by piece."""
    said: list[str] = []
    engine = sa.create_mock_engine("postgresql+psycopg://", lambda statement, *_: said.append(_literal(statement)))
    schema.metadata.create_all(engine, checkfirst=False)
    return ";\n".join([*said, as_new()])


def as_new() -> str:
    """What is in a database from the start, for PostgreSQL."""
    return _literal(sa.insert(schema.topology).values(**_FIRST))


def _literal(statement: sa.Executable) -> str:
    return str(statement.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True}))


# For modules that import the fixtures by name.
@pytest.fixture(name="clock")
def clock() -> Clock:
    return Clock()


@pytest.fixture(name="state")
def state(state_url: str, clock: Clock) -> Iterator[State]:
    with opened(state_url, clock) as database:
        yield database
