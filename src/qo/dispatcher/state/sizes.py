"""How large the state database is: rows and bytes of each table, with its indexes.

PostgreSQL answers from its statistics, at once; its numbers of rows are those of the last analysis. SQLite reads its
whole file for it, and its numbers are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx

MILLION = 1_000_000
TASKS_MIN = 1_000  # With fewer tasks, what the tables take up without rows would be most of it.

_OF_POSTGRES = sa.text(
    "SELECT c.relname, GREATEST(c.reltuples, 0), COALESCE(s.n_live_tup, 0), COALESCE(s.n_dead_tup, 0),"
    " pg_table_size(c.oid), pg_indexes_size(c.oid)"
    " FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid"
    " WHERE c.relkind = 'r' AND c.relnamespace = CAST(current_schema() AS regnamespace)"
)
# One pass: rows are the cells of a table's leaves.
_OF_SQLITE = sa.text(
    "SELECT m.tbl_name, m.type, SUM(d.pgsize), SUM(CASE d.pagetype WHEN 'leaf' THEN d.ncell ELSE 0 END)"
    " FROM dbstat d JOIN sqlite_schema m ON m.name = d.name GROUP BY m.tbl_name, m.type"
)


@dataclass(frozen=True, slots=True)
class TableSize:
    name: str
    rows: int
    bytes: int | None  # Of its rows; None: this SQLite cannot tell.
    index_bytes: int | None
    dead_rows: int = 0  # Deleted or replaced, and not yet reclaimed by autovacuum.


@dataclass(frozen=True, slots=True)
class DatabaseSize:
    bytes: int
    tables: Sequence[TableSize]  # The largest first.

    @property
    def tasks(self) -> int:
        return next((each.rows for each in self.tables if each.name == schema.tasks.name), 0)

    @property
    def bytes_per_million_tasks(self) -> int | None:
        """Return what a million tasks take up, with all that belongs to them; None for too few to tell."""
        return None if self.tasks < TASKS_MIN else self.bytes * MILLION // self.tasks


def measure(state: State) -> DatabaseSize:
    with state.read() as tx:
        tables = _postgres_tables(tx) if tx.on_postgres else _sqlite_tables(tx)
        total = _total(tx)
    ours = [each for each in tables if each.name in schema.metadata.tables]
    by_size = sorted(ours, key=lambda each: (-(each.bytes or 0) - (each.index_bytes or 0), -each.rows, each.name))
    return DatabaseSize(total, by_size)


def _total(tx: Tx) -> int:
    if tx.on_postgres:
        return int(tx.execute(sa.text("SELECT pg_database_size(current_database())")).scalar_one())
    pages = tx.execute(sa.text("PRAGMA page_count")).scalar_one()
    return int(pages * tx.execute(sa.text("PRAGMA page_size")).scalar_one())


def _postgres_tables(tx: Tx) -> list[TableSize]:
    # Between two analyses the counters are nearer to the truth; after a crash they are lost.
    return [
        TableSize(name, int(live or analysed), int(size), int(index), int(dead))
        for name, analysed, live, dead, size, index in tx.execute(_OF_POSTGRES)
    ]


def _sqlite_tables(tx: Tx) -> list[TableSize]:
    try:
        rows = tx.execute(_OF_SQLITE).all()
    except OperationalError:  # Not every SQLite is built with the table of pages.
        return [
            TableSize(name, int(tx.value(sa.select(sa.func.count()).select_from(table))), None, None)
            for name, table in schema.metadata.tables.items()
        ]
    sizes = {(name, kind): (int(size), int(count)) for name, kind, size, count in rows}
    return [
        TableSize(name, count, size, sizes.get((name, "index"), (0, 0))[0])
        for (name, kind), (size, count) in sizes.items()
        if kind == "table"
    ]
