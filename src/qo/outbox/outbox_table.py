"""The table of an outbox, and the statements on it, for SQLite and PostgreSQL.

A row is a task to submit: ``task`` is the document that ``qo submit --from`` and the HTTP API take, too. The row's
``key`` becomes the idempotency key of the task, so that submitting a row twice makes one task. A relay claims rows
for a while, submits them and deletes them; a row that can never be submitted is parked with the reason.
"""

from __future__ import annotations

import re
from enum import StrEnum

from qo.errors import UsageError

TABLE = "qo_outbox"
KEY_SCOPE = "qo-outbox"
CHANNEL = "qo_outbox"  # On which PostgreSQL notifies relays of new rows.

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?\Z")


class Dialect(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"

    @property
    def mark(self) -> str:
        """How a parameter is marked."""
        return "?" if self is Dialect.SQLITE else "%s"


def check_table(table: str) -> str:
    """Return the name, which becomes part of statements. Raises UsageError."""
    if not _NAME.match(table):
        raise UsageError(
            f"{table!r} cannot name the table of an outbox: use letters, digits and '_', as qo_outbox"
        )
    return table


def table_sql(dialect: Dialect | str, table: str = TABLE) -> str:
    """Return the statements that create the table, unless it is there."""
    check_table(table)
    index = f"{table.rpartition('.')[2]}_group"
    if Dialect(dialect) is Dialect.SQLITE:
        columns = """id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE DEFAULT (lower(hex(randomblob(16)))),
    task TEXT NOT NULL,
    group_key TEXT,
    traceparent TEXT,
    created_at REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400.0),
    claimed_by TEXT,
    claimed_until REAL,
    tries INTEGER NOT NULL DEFAULT 0,
    parked_at REAL,
    parked_reason TEXT"""
    else:
        columns = """id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key TEXT NOT NULL UNIQUE DEFAULT gen_random_uuid()::text,
    task TEXT NOT NULL,
    group_key TEXT,
    traceparent TEXT,
    created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    claimed_by TEXT,
    claimed_until TIMESTAMPTZ,
    tries INTEGER NOT NULL DEFAULT 0,
    parked_at TIMESTAMPTZ,
    parked_reason TEXT"""
    return (
        f"CREATE TABLE IF NOT EXISTS {table} (\n    {columns}\n);\n"
        f"CREATE INDEX IF NOT EXISTS {index} ON {table} (group_key, id)\n"
        "    WHERE group_key IS NOT NULL AND parked_at IS NULL;\n"
    )


def insert_sql(dialect: Dialect, table: str) -> str:
    """Return the statement that inserts key, task, group_key and traceparent."""
    marks = ", ".join([dialect.mark] * 4)
    insert = f"INSERT INTO {check_table(table)} (key, task, group_key, traceparent) VALUES ({marks})"
    if dialect is Dialect.SQLITE:
        return insert
    # The notification is sent when the transaction is committed, and only then. Nothing is returned from the row: for
    # that, the application would need the right to read the table.
    return f"WITH inserted AS ({insert}) SELECT pg_notify('{CHANNEL}', '')"


def claim_sql(dialect: Dialect, table: str) -> str:
    """Return the statement that claims rows: parameters limit, claimed_by, seconds, in this order.

    Of each group only the first row can be claimed, so that rows of a group are submitted one after the other. A row
    that somebody holds is skipped.
    """
    now = now_sql(dialect)
    lock = "" if dialect is Dialect.SQLITE else " FOR UPDATE SKIP LOCKED"
    mark = dialect.mark
    later = f"{now} + {mark}" if dialect is Dialect.SQLITE else f"{now} + {mark} * interval '1 second'"
    return (
        f"WITH due AS MATERIALIZED (SELECT id FROM {table} AS r WHERE parked_at IS NULL"
        f" AND (claimed_until IS NULL OR claimed_until < {now})"
        f" AND (group_key IS NULL OR NOT EXISTS (SELECT 1 FROM {table} AS e WHERE e.group_key = r.group_key"
        f" AND e.parked_at IS NULL AND e.id < r.id)) ORDER BY id LIMIT {mark}{lock})"
        f" UPDATE {table} SET claimed_by = {mark}, claimed_until = {later}, tries = tries + 1"
        f" WHERE id IN (SELECT id FROM due) RETURNING id, key, task, traceparent, tries"
    )


def now_sql(dialect: Dialect) -> str:
    """Return the database's clock: the only one that decides about claims."""
    return "((julianday('now') - 2440587.5) * 86400.0)" if dialect is Dialect.SQLITE else "clock_timestamp()"
