"""How prepared statements reach the database: to its driver directly, or through SQLAlchemy where somebody listens.

    SqliteDriver      the sqlite3 module
    PostgresDriver    psycopg, every statement prepared on the server
    ObservedDriver    SQLAlchemy, which reports every statement to its listeners

All three do the same, with the same conversion of values; only the time that it takes differs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from qo.dispatcher.state.engines import begin_postgres, postgres_begin, sqlite_driver
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.row_sets import Values

if TYPE_CHECKING:
    import psycopg

LOCK_NOT_AVAILABLE = "55P03"  # As PostgreSQL calls it.

Rows = Sequence[Sequence[Any]]


class Driver(Protocol):
    """Executes the statements of one transaction."""

    def begin(self) -> None:
        """Begin the transaction, unless it has begun: a driver may wait for the first statement."""
        ...

    def fetch(self, prepared: Prepared, values: Sequence[Values]) -> Rows:
        """Execute the statement for each of ``values``, of which there is at least one; return the rows of all."""
        ...

    def execute(self, prepared: Prepared, values: Sequence[Values]) -> int:
        """As ``fetch``, and return the number of changed rows."""
        ...

    def call(self, texts: Sequence[str]) -> Rows:
        """Execute statements without parameters one after the other, and return the rows of the last."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the transaction can still be committed."""
        ...


def driver_of(connection: sa.Connection, *, begins: bool) -> Driver:
    """Return the driver of a transaction. ``begins``: on PostgreSQL it has not begun yet."""
    if _has_listeners(connection):
        return ObservedDriver(connection, begins=begins)
    if connection.dialect.name == "postgresql":
        return PostgresDriver(connection, begins=begins)
    return SqliteDriver(connection)


def _has_listeners(connection: sa.Connection) -> bool:
    """Whether a listener wants to see every statement: SQLAlchemy reports only those that it executes itself."""
    events = connection.engine.dispatch
    return bool(events.before_cursor_execute) or bool(events.after_cursor_execute)


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a statement has given up waiting for a lock, as ``Tx.savepoint`` had asked for."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE


def is_busy(error: BaseException | None) -> bool:
    """Whether SQLite has given up waiting for another transaction: see ``engines.BUSY_S``."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


class SqliteDriver:
    def __init__(self, connection: sa.Connection) -> None:
        self._dialect = connection.dialect
        self._driver: sqlite3.Connection = sqlite_driver(connection)

    def begin(self) -> None:
        """It has begun: see ``engines``."""

    def fetch(self, prepared: Prepared, values: Sequence[Values]) -> Rows:
        form = prepared.form(self._dialect, values[0])
        rows: list[tuple[Any, ...]] = []
        for each in values:
            rows += self._driver.execute(form.expand(each), form.bind(each)).fetchall()
        return form.convert_rows(rows)

    def execute(self, prepared: Prepared, values: Sequence[Values]) -> int:
        """Raises ValueError for several values of a statement with lists: each would be a different statement."""
        form = prepared.form(self._dialect, values[0])
        if len(values) == 1:
            return self._driver.execute(form.expand(values[0]), form.bind(values[0])).rowcount
        if form.lists:
            raise ValueError(f"a statement with lists takes one set of values at a time: {', '.join(form.lists)}")
        return self._driver.executemany(form.text, [form.bind(each) for each in values]).rowcount

    def call(self, texts: Sequence[str]) -> Rows:
        rows: list[tuple[Any, ...]] = []
        for each in texts:
            rows = self._driver.execute(each).fetchall()
        return rows

    @property
    def is_open(self) -> bool:
        """SQLite may roll a transaction back by itself, for example when the disk is full; a COMMIT after that does
        nothing and reports no error."""
        return self._driver.in_transaction


class PostgresDriver:
    def __init__(self, connection: sa.Connection, *, begins: bool) -> None:
        from psycopg import Error, RawCursor

        self._connection = connection
        self._dialect = connection.dialect
        self._error = Error
        driver: psycopg.Connection[Any] | None = connection.connection.driver_connection
        assert driver is not None
        self._driver = driver
        self._cursor = RawCursor(driver)
        self._begin = postgres_begin(connection) if begins else None

    def begin(self) -> None:
        if self._begin is not None:
            self._send(self._take_begin())

    def fetch(self, prepared: Prepared, values: Sequence[Values]) -> Rows:
        form = prepared.form(self._dialect, values[0])
        rows: list[tuple[Any, ...]] = []
        for text, bound in self._bound(prepared, values):
            self._send(text, bound)
            rows += self._cursor.fetchall()
        return form.convert_rows(rows)

    def execute(self, prepared: Prepared, values: Sequence[Values]) -> int:
        changed = 0
        for text, bound in self._bound(prepared, values):
            self._send(text, bound)
            changed += self._cursor.rowcount
        return changed

    def _bound(self, prepared: Prepared, values: Sequence[Values]) -> list[tuple[str, list[Any]]]:
        """Return what is sent: one statement for all values if possible."""
        if len(values) > 1 and prepared.takes_row_sets:
            row_set = prepared.row_set(values[0])
            by_name = row_set.bind(values)
            return [(row_set.numbered, [by_name[each] for each in row_set.order])]
        form = prepared.form(self._dialect, values[0])
        return [(form.text, form.bind(each)) for each in values]

    def call(self, texts: Sequence[str]) -> Rows:
        begin = [self._take_begin()] if self._begin is not None else []
        # In one message: one round trip. Each statement still sees what was committed before it began.
        self._send("; ".join([*begin, *texts]))
        while self._cursor.nextset():
            pass
        result = self._cursor.pgresult
        return self._cursor.fetchall() if result is not None and result.nfields else []

    def _take_begin(self) -> str:
        begin, self._begin = self._begin, None
        assert begin is not None
        return begin

    def _send(self, text: str, bound: list[Any] | None = None) -> None:
        if self._begin is not None:
            self.begin()
        try:
            self._cursor.execute(text.encode(), bound, prepare=bound is not None)
        except self._error as error:
            # The same error as from SQLAlchemy, so that nobody has to know who has sent the statement.
            raise DBAPIError.instance(
                text, None, error, self._error, hide_parameters=True, dialect=self._dialect
            ) from error

    @property
    def is_open(self) -> bool:
        """After an error it can be rolled back to a savepoint, and then committed."""
        from psycopg.pq import TransactionStatus

        usable = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
        return self._begin is not None or self._driver.info.transaction_status in usable


class ObservedDriver:
    def __init__(self, connection: sa.Connection, *, begins: bool) -> None:
        self._connection = connection
        self._on_postgres = connection.dialect.name == "postgresql"
        if begins and self._on_postgres:
            begin_postgres(connection)

    def begin(self) -> None:
        """It has begun."""

    def fetch(self, prepared: Prepared, values: Sequence[Values]) -> Rows:
        if len(values) > 1 and self._on_postgres and prepared.takes_row_sets:
            form = prepared.form(self._connection.dialect, values[0])
            return form.convert_rows([tuple(row) for row in self._send_rows(prepared, values).all()])
        return self._connection.execute(prepared.statement, values if len(values) > 1 else values[0]).all()

    def execute(self, prepared: Prepared, values: Sequence[Values]) -> int:
        if len(values) > 1 and self._on_postgres and prepared.takes_row_sets:
            return self._send_rows(prepared, values).rowcount
        return self._connection.execute(prepared.statement, list(values)).rowcount

    def _send_rows(self, prepared: Prepared, values: Sequence[Values]) -> sa.CursorResult[Any]:
        row_set = prepared.row_set(values[0])
        return self._connection.exec_driver_sql(row_set.text, row_set.bind(values))

    def call(self, texts: Sequence[str]) -> Rows:
        results = [self._connection.exec_driver_sql(each) for each in texts]
        return results[-1].all() if results and results[-1].returns_rows else []

    @property
    def is_open(self) -> bool:
        return self._on_postgres or sqlite_driver(self._connection).in_transaction
