"""Transactions on the state database, the same on SQLite and PostgreSQL.

    with state.write() as tx:      # BEGIN IMMEDIATE on SQLite: a writer waits at the beginning, not in the middle
        tx.execute(...)            # committed at the end of the block, rolled back if it raises
        tx.now                     # the time of the database's clock; the process's own clock is never used

Calls block: an event loop makes them on a thread (``asyncio.to_thread``).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from qo.ambient import SYSTEM, Ambient
from qo.dispatcher.state import sqlite_file
from qo.dispatcher.state.drivers import driver_of
from qo.dispatcher.state.engines import create_engine, sqlite_driver
from qo.dispatcher.state.loop_names import LoopName
from qo.dispatcher.state.prepared import NO_VALUES, Prepared
from qo.dispatcher.state.row_sets import Values
from qo.errors import CorruptRecord, Unavailable

ROWS_MAX = 500  # Of one statement: SQLite limits how many values it may carry.
SHARES = 16  # Of a sum that many transactions add to.
TIME_KEPT_S = 10.0  # For so long the process counts on from the time that it has read.

T = TypeVar("T")
Clock = Callable[[sa.Connection], datetime]


class Tx:
    """One transaction, with the time at which it happens."""

    def __init__(self, connection: sa.Connection, clock: Clock, ambient: Ambient) -> None:
        self._connection = connection
        self.ambient = ambient
        self.pool = connection.engine.pool  # What knows the database: values that belong to it are kept by it.
        self.on_postgres = connection.dialect.name == "postgresql"
        self.cache: dict[str, Any] = {}  # Values that cannot change before the transaction ends.
        self.loops_to_wake: set[LoopName] = set()  # They have work to do once it is committed.
        self.is_durable = False
        self.unfinished: set[str] = set()  # What it has written in advance and must do before it ends, in words.
        self._clock = clock
        self._now: datetime | None = None
        self._read_at_s = 0.0  # When it was read, by the process's monotonic clock.
        self._driver = driver_of(connection, begins=self.on_postgres)

    @property
    def connection(self) -> sa.Connection:
        """The connection, for statements that SQLAlchemy executes."""
        self._driver.begin()
        return self._connection

    def execute(self, statement: sa.Executable, values: Any = None) -> sa.CursorResult[*tuple[Any, ...]]:
        """Execute a statement that is not prepared."""
        self._driver.begin()
        return self._connection.execute(statement, values)

    @property
    def now(self) -> datetime:
        """The time of this transaction, read from the database at the first use: many transactions need none."""
        if self._now is None:
            self._now = self._read_clock()
            self._read_at_s = self.ambient.monotonic()
        return self._now

    def _read_clock(self) -> datetime:
        if self.on_postgres and self._clock is database_clock:
            [(now,)] = self.call("SELECT clock_timestamp()")
            return now.astimezone(UTC)
        return self._clock(self.connection)

    @property
    def time_read(self) -> tuple[datetime, float] | None:
        """The time, if it was read, and the instant of the process's monotonic clock at which it was."""
        return None if self._now is None else (self._now, self._read_at_s)

    def offer_now(self, now: datetime) -> None:
        """Take over the database's time, which came with another answer, unless the clock is somebody else's."""
        if self._now is None and self._clock is database_clock:
            self._now, self._read_at_s = now.astimezone(UTC), self.ambient.monotonic()

    @property
    def share(self) -> int:
        """Which share of a sum this transaction changes: transactions side by side should not change the same."""
        if not self.on_postgres:
            return 0
        driver: Any = self._connection.connection.driver_connection
        return int(driver.info.backend_pid) % SHARES

    @property
    def is_read_only(self) -> bool:
        """Whether it sees one snapshot throughout and locks nothing."""
        return bool(self._connection.get_execution_options().get("qo_reads", False))

    def one(self, query: sa.Select[*tuple[Any, ...]]) -> sa.RowMapping | None:
        """Return the first row, or None."""
        return self.execute(query).mappings().first()

    def all(self, query: sa.Select[*tuple[Any, ...]]) -> Sequence[sa.RowMapping]:
        return self.execute(query).mappings().all()

    def value(self, query: sa.Select[*tuple[Any, ...]]) -> Any:
        return self.execute(query).scalar()

    def rows(self, prepared: Prepared, *values: Values) -> Sequence[Sequence[Any]]:
        """Execute a prepared statement for each of the values and return the rows of all of them."""
        return self._driver.fetch(prepared, values or (NO_VALUES,))

    def mappings(self, prepared: Prepared, values: Values) -> Sequence[Values]:
        """Execute a prepared query and return its rows by the names of columns."""
        names = prepared.form(self._connection.dialect, values).names
        return [dict(zip(names, row, strict=True)) for row in self._driver.fetch(prepared, [values])]

    def do(self, prepared: Prepared, *values: Values) -> int:
        """Execute a prepared statement for each of the values and return the number of changed rows."""
        return self._driver.execute(prepared, values) if values else 0

    def call(self, *texts: str) -> Sequence[Sequence[Any]]:
        """Execute statements without parameters, one after the other in one round trip; return the rows of the last."""
        return self._driver.call(texts)

    @contextmanager
    def savepoint(self, *, wait_ms: int | None = None) -> Generator[None]:
        """Undo the statements of the block, and no others, if the block raises.

        ``wait_ms``: on PostgreSQL, raise if a lock takes longer (``drivers.is_lock_timeout``). For a block that is the
        last of its transaction: the limit stays.
        """
        limited = wait_ms is not None and self.on_postgres
        self.call("SAVEPOINT block", *([f"SET LOCAL lock_timeout = {wait_ms:d}"] if limited else []))
        try:
            yield
        except BaseException:
            if self.is_open:
                self.call("ROLLBACK TO SAVEPOINT block", "RELEASE SAVEPOINT block")  # The setting is undone, too.
            raise
        if not limited:  # The commit releases it as well, without a round trip.
            self.call("RELEASE SAVEPOINT block")

    def discard_connection(self) -> None:
        """Close the connection instead of using it again, with whatever it holds. The transaction is lost."""
        self._connection.invalidate()

    def require_durable(self) -> None:
        """Make the commit, and all commits before it, survive a power cut, whatever the settings are.

        For a caller that then does something irreversible, such as deleting files.
        """
        self.is_durable = True
        if self.on_postgres:
            self.execute(sa.text("SET LOCAL synchronous_commit = on"))

    @property
    def is_open(self) -> bool:
        """Whether the transaction can still be committed.

        SQLite may roll a transaction back by itself, for example when the disk is full; a COMMIT after that does
        nothing and reports no error.
        """
        return self._driver.is_open

    def insert(self, table: sa.Table, rows: Iterable[Values]) -> None:
        for batch in batches(rows):
            self.do(_insert(table), *batch)

    def insert_absent(self, table: sa.Table, rows: Iterable[Values], returning: sa.Column[Any]) -> set[Any]:
        """Insert the rows that violate no unique constraint and return their values of the column ``returning``."""
        inserted: set[Any] = set()
        for batch in batches(rows):
            statement = _insert_absent(self.on_postgres, table, returning)
            inserted.update(value for (value,) in self.rows(statement, *batch))
        return inserted

    def upsert(self, table: sa.Table, *rows: Values) -> None:
        """Insert the rows; replace the values of those whose primary keys exist."""
        for batch in batches(rows):
            self.do(_upsert(self.on_postgres, table, tuple(batch[0])), *batch)

    def refresh_now(self) -> None:
        """Take the time again, where it decides something and the transaction may have waited for a lock."""
        if not self.on_postgres:  # On SQLite a writer waits before it begins.
            return
        if self._now is not None and self._clock is database_clock:
            # The process counts on from the time that it has read: that needs no round trip.
            read_at_s, self._read_at_s = self._read_at_s, self.ambient.monotonic()
            self._now += timedelta(seconds=max(0.0, self._read_at_s - read_at_s))
            return
        latest = self._read_clock()
        self._now = latest if self._now is None else max(self._now, latest)
        self._read_at_s = self.ambient.monotonic()

    def hold(self, number: int, *, shared: bool = False) -> None:
        """Hold the advisory lock of that number until the transaction ends, alone or shared.

        First come, first served: those that share it do not overtake one that waits to have it alone. On SQLite a
        writer is alone anyway.
        """
        if self.on_postgres:
            function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
            self.call(f"SELECT {function}({number:d})")

    def lock(
        self, query: sa.Select[*tuple[Any, ...]], *, skip: bool = False, shared: bool = False
    ) -> sa.Select[*tuple[Any, ...]]:
        """Return the query with its rows locked until the transaction ends. On SQLite a writer is alone anyway."""
        return query.with_for_update(skip_locked=skip, read=shared) if self.on_postgres else query


class State:
    """An open state database. Safe to use from many threads and many processes."""

    def __init__(self, engine: sa.Engine, *, ambient: Ambient = SYSTEM, clock: Clock | None = None) -> None:
        self.engine = engine
        # The same connections with our options: to set these per transaction takes as long as a query. On PostgreSQL a
        # transaction begins with its first statement, and reaches the server with it.
        self._writing = engine.execution_options(qo_begins_late=True)
        self._reading = engine.execution_options(qo_reads=True, qo_begins_late=True)
        self.ambient = ambient
        self._clock = clock or database_clock
        self._last_read: tuple[datetime, float] | None = None  # See ``Tx.time_read``.
        # SQLite has waiting writers poll; threads of one process queue up here instead, which is fair and faster.
        self._turn = threading.Lock() if engine.dialect.name == "sqlite" else None
        self._path = engine.url.database if engine.dialect.name == "sqlite" else None
        self._file = _file_id(self._path)
        if self._path is not None:
            event.listen(engine, "connect", self._remember_file)

    @contextmanager
    def write(self) -> Generator[Tx]:
        """Open a transaction that is committed at the end of the block, or rolled back if the block raises."""
        if self._turn is None:
            with self._begin() as tx:
                yield tx
            return
        with self._turn, self._begin() as tx:
            yield tx

    @contextmanager
    def read(self) -> Generator[Tx]:
        """Open a transaction that sees one snapshot and writes nothing."""
        self._require_file()
        with _translate_errors(), self._reading.connect() as connection, connection.begin() as transaction:
            tx = Tx(connection, self._clock, self.ambient)
            yield tx
            if not tx.on_postgres:
                transaction.rollback()  # PostgreSQL itself refuses writes: see ``engines.postgres_begin``.
        self._last_read = tx.time_read or self._last_read

    def now(self) -> datetime | None:
        """Return the time if that needs no round trip, else None: read it in a transaction."""
        if self._clock is not database_clock:
            return None
        if self._path is None:
            return self._time_since_last_read()
        with _translate_errors(), closing(self.engine.raw_connection()) as connection:
            driver = connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            return _sqlite_clock(driver)  # Reads nothing of the file.

    def _time_since_last_read(self) -> datetime | None:
        """Return the time that a transaction has read a moment ago, and what has passed since."""
        if self._last_read is None:
            return None
        now, read_at_s = self._last_read
        passed_s = self.ambient.monotonic() - read_at_s
        return now + timedelta(seconds=passed_s) if 0 <= passed_s < TIME_KEPT_S else None

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _begin(self) -> Generator[Tx]:
        self._require_file()
        with _translate_errors(), self._writing.begin() as connection:
            tx = Tx(connection, self._clock, self.ambient)
            yield tx
            if tx.unfinished:
                raise AssertionError(f"a transaction ends without what it has promised: {sorted(tx.unfinished)}")
        self._last_read = tx.time_read or self._last_read
        if tx.is_durable and self._path is not None:
            sqlite_file.flush_log(Path(self._path))

    def _remember_file(self, *_: Any) -> None:
        self._file = self._file or _file_id(self._path)  # The first connection may have created it.

    def _require_file(self) -> None:
        """Raise Unavailable once the database file was replaced or removed.

        Open connections keep the old file open: without this check, writes would go to a file that has no name.
        """
        if self._file is not None and _file_id(self._path) != self._file:
            raise Unavailable("the state database was moved or removed while in use: restart the dispatcher")


def _file_id(path: str | None) -> tuple[int, int] | None:
    """Return the device and inode of the file that has this path now."""
    try:
        status = os.stat(path or "")
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_state(url: str, *, durable: bool = False, ambient: Ambient = SYSTEM, clock: Clock | None = None) -> State:
    """Open the database of a URL: ``sqlite:PATH`` or ``postgresql://user@host/name``.

    ``durable``: on SQLite each transaction waits for the disk, so that a power cut undoes no acknowledged one.

    Does not check the schema: ``qo.dispatcher.state.upgrade`` does. Raises ConfigError for an invalid URL, without
    repeating it. The first transaction creates a missing SQLite file, and raises ConfigError if it cannot.
    """
    return State(create_engine(url, durable), ambient=ambient, clock=clock)


def database_clock(connection: sa.Connection) -> datetime:
    """Return the time of the database's clock."""
    if connection.dialect.name == "postgresql":
        now: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        return now.astimezone(UTC)
    return _sqlite_clock(sqlite_driver(connection))


def _sqlite_clock(driver: sqlite3.Connection) -> datetime:
    (text,) = driver.execute("SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')").fetchone()
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# Building a statement takes longer than executing it, so these are built once.


@cache
def _insert(table: sa.Table) -> Prepared:
    return Prepared(sa.insert(table))


@cache
def _insert_absent(on_postgres: bool, table: sa.Table, returning: sa.Column[Any]) -> Prepared:
    dialect = postgresql if on_postgres else sqlite
    return Prepared(dialect.insert(table).on_conflict_do_nothing().returning(returning))


@cache
def _upsert(on_postgres: bool, table: sa.Table, names: tuple[str, ...]) -> Prepared:
    dialect = postgresql if on_postgres else sqlite
    keys = [column.name for column in table.primary_key.columns]
    statement = dialect.insert(table)
    changed = {name: statement.excluded[name] for name in names if name not in keys}
    return Prepared(statement.on_conflict_do_update(index_elements=keys, set_=changed))


_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except PoolTimeout as error:
        raise Unavailable("too many transactions are open at once: call again in a while") from error
    except (OperationalError, InterfaceError, sqlite3.OperationalError) as error:
        # The driver's message names hosts, users and files: a note goes to logs, not into responses.
        unavailable = Unavailable("the state database does not answer")
        unavailable.add_note(f"its driver says: {_driver_error(error)}")
        raise unavailable from error
    except (DatabaseError, sqlite3.DatabaseError) as error:
        if getattr(_driver_error(error), "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
            raise
        raise CorruptRecord(
            "the state database is damaged, or its file is something else: restore the backup, or name another "
            "with QO_STATE"
        ) from error


def _driver_error(error: DatabaseError | InterfaceError | sqlite3.DatabaseError) -> BaseException | None:
    """Return the error that the driver raised."""
    return error if isinstance(error, sqlite3.DatabaseError) else error.orig


def batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """Split rows into lists that one statement can carry."""
    all_rows = list(rows)
    for start in range(0, len(all_rows), ROWS_MAX):
        yield all_rows[start : start + ROWS_MAX]
