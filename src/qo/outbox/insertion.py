"""Insert a task into the outbox, in the caller's own transaction."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from qo.ambient import SYSTEM
from qo.core import wire
from qo.errors import UsageError
from qo.outbox.outbox_table import TABLE, Dialect, insert_sql, table_sql
from qo.queue.options import NewTask, Options, check_task, check_text
from qo.queue.task_document import write_document
from qo.telemetry.trace import current_traceparent


def submit(
    connection: Any,
    task_type: str,
    input: Any = None,
    options: Options | None = None,
    *,
    group: str | None = None,
    table: str = TABLE,
) -> str:
    """Insert a task, which a relay submits once the transaction of the connection is committed. Return the row's key.

    ``connection``: one of ``sqlite3`` or ``psycopg``, or a connection or session of SQLAlchemy; nothing is committed
    here. ``group``: rows of one group are submitted in the order of their insertion. ``options.delay_s`` and
    ``expires_in_s`` count from the submission by the relay; give ``at`` and ``expires_at`` for exact times.
    Raises UsageError for a task that the queue would not take.
    """
    dialect, execute = _driver(connection)
    sql, values = statement(task_type, input, options, group=group, table=table, dialect=dialect)
    execute(sql, values)
    return str(values[0])


def statement(
    task_type: str,
    input: Any = None,
    options: Options | None = None,
    *,
    group: str | None = None,
    table: str = TABLE,
    dialect: Dialect | str = Dialect.POSTGRESQL,
) -> tuple[str, tuple[str | None, ...]]:
    """Return the statement and its values that ``submit`` would execute, for drivers that it does not know."""
    new = NewTask(task_type, wire.payload(input, "the input").value, options or Options())
    check_task(new)
    check_text("group", group)
    traceparent = new.options.traceparent or current_traceparent()
    document = wire.encode(write_document(new)).decode()
    if "\0" in (group or ""):
        raise UsageError("the group holds a NUL: remove it")
    return insert_sql(Dialect(dialect), table), (SYSTEM.task_id(), document, group, traceparent)


def create_table(connection: Any, table: str = TABLE) -> None:
    """Create the table of the outbox, unless it is there; in the transaction of the connection."""
    dialect, execute = _driver(connection)
    for each in table_sql(dialect, table).split(";\n"):
        if each.strip():
            execute(each, ())


def _driver(connection: Any) -> tuple[Dialect, Any]:
    """Return the dialect of a connection, and how to execute a statement with values on it."""
    if isinstance(connection, sqlite3.Connection | sqlite3.Cursor):
        return Dialect.SQLITE, connection.execute
    if type(connection).__name__.lower().startswith("async"):  # Its calls would only return coroutines.
        raise UsageError(
            f"an {type(connection).__name__} cannot be used here: with SQLAlchemy, await its run_sync(outbox.submit, "
            "...); otherwise execute what outbox.statement() returns"
        )
    if hasattr(connection, "exec_driver_sql"):  # A connection of SQLAlchemy.
        return _dialect(connection.dialect.name), partial(_execute_text, connection)
    if hasattr(connection, "connection") and callable(connection.connection):  # A session of SQLAlchemy.
        return _driver(connection.connection())
    if type(connection).__module__.partition(".")[0] == "psycopg":
        return Dialect.POSTGRESQL, connection.execute
    raise UsageError(
        f"a {type(connection).__name__} is no connection that the outbox knows: pass one of sqlite3, psycopg or "
        "SQLAlchemy, or execute what outbox.statement() returns"
    )


def _execute_text(connection: Any, sql: str, values: Sequence[Any]) -> None:
    """Execute a statement on a connection of SQLAlchemy, whose driver may mark values in a way of its own."""
    from sqlalchemy import text

    parts = re.split(r"%s|\?", sql) if values else [sql]
    names = [f"value_{n}" for n in range(len(values))]
    marked = parts[0] + "".join(f":{name}{part}" for name, part in zip(names, parts[1:], strict=True))
    connection.execute(text(marked), dict(zip(names, values, strict=True)))


def _dialect(name: str) -> Dialect:
    try:
        return Dialect(name)
    except ValueError:
        raise UsageError(f"an outbox needs SQLite or PostgreSQL, not {name}") from None
