"""What a piece of work asks of the state database: statements, and round trips of a database behind a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import event

from qo.dispatcher.state.database import State


@dataclass
class Counts:
    statements: int = 0
    round_trips: int = (
        0  # Statements that travel together count once; the begin and the end of a transaction count.
    )
    texts: Counter[str] = field(default_factory=Counter[str])

    def add_statement(self, text: str) -> None:
        self.statements += 1
        self.texts[" ".join(text.split())] += 1


@contextmanager
def counted(state: State) -> Iterator[Counts]:
    """Count what is asked in the block."""
    counts = Counts()
    with (
        _counted_postgres(counts) if state.engine.dialect.name == "postgresql" else _counted_sqlite(state, counts)
    ):
        yield counts


@contextmanager
def _counted_sqlite(state: State, counts: Counts) -> Iterator[None]:
    """By the listeners of SQLAlchemy. A statement that is repeated for many rows is one: SQLite is told once."""
    engine = state.engine

    def count_statement(_: Any, __: Any, text: str, *___: Any) -> None:
        counts.add_statement(text)
        counts.round_trips += 1

    def count_turn(_: Any) -> None:
        counts.round_trips += 1

    event.listen(engine, "before_cursor_execute", count_statement)
    for turn in ("begin", "commit", "rollback"):
        event.listen(engine, turn, count_turn)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", count_statement)
        for turn in ("begin", "commit", "rollback"):
            event.remove(engine, turn, count_turn)


@contextmanager
def _counted_postgres(counts: Counts) -> Iterator[None]:
    """As the driver sends it: whoever listens to SQLAlchemy sees other statements than those that run for real."""
    execute, commit, rollback = psycopg.Cursor.execute, psycopg.Connection.commit, psycopg.Connection.rollback

    def count_statements(cursor: Any, query: Any, *rest: Any, **named: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        for each in text.split("; "):
            if not each.startswith("BEGIN"):
                counts.add_statement(each)
        counts.round_trips += 1
        return execute(cursor, query, *rest, **named)

    def count_turn(end: Any) -> Any:
        def run(connection: Any) -> None:
            counts.round_trips += connection.info.transaction_status != TransactionStatus.IDLE
            end(connection)

        return run

    with (
        mock.patch.object(psycopg.Cursor, "execute", count_statements),
        mock.patch.object(psycopg.Connection, "commit", count_turn(commit)),
        mock.patch.object(psycopg.Connection, "rollback", count_turn(rollback)),
    ):
        yield
