"""What a piece of work asks of the state database: statements, and round trips of a database behind a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from qo.dispatcher.state.database import State


@dataclass
class Counts:
    statements: int = 0
    round_trips: int = (
        0  # Statements that travel together count once; the begin and the end of a transaction count.
    )
    texts: Counter[str] = field(default_factory=Counter[str])


@contextmanager
def counted(state: State) -> Iterator[Counts]:
    """Count what is asked in the block."""
    counts, engine = Counts(), state.engine
    on_postgres = engine.dialect.name == "postgresql"

    def count_statement(_: Any, __: Any, text: str, parameters: Any, ___: Any, executemany: bool) -> None:
        # PostgreSQL gets a statement for each row, though in one go. SQLite is told once, and repeats it.
        counts.statements += len(parameters) if executemany and on_postgres else 1
        counts.round_trips += 1
        counts.texts[" ".join(text.split())] += 1

    def count_turn(_: Any) -> None:
        counts.round_trips += 1

    event.listen(engine, "before_cursor_execute", count_statement)
    for turn in ("begin", "commit", "rollback"):
        event.listen(engine, turn, count_turn)
    try:
        yield counts
    finally:
        event.remove(engine, "before_cursor_execute", count_statement)
        for turn in ("begin", "commit", "rollback"):
            event.remove(engine, turn, count_turn)
