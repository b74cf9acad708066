"""Transactions on the state database, the same on SQLite and PostgreSQL.

    with state.write() as tx:      # BEGIN IMMEDIATE on SQLite: who writes, waits at the beginning, not in the middle
        tx.execute(...)            # committed at the end of the block, rolled back if it raises
        tx.now                     # the database's clock; a process's own is never asked

Blocking on purpose: an event loop calls these on a thread (``asyncio.to_thread``).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from qo.ambient import SYSTEM, Ambient
from qo.dispatcher.state import sqlite_file
from qo.dispatcher.state.prepared import NOTHING, Prepared, Values, answered, carried_out
from qo.dispatcher.state.resting import try_rested
from qo.errors import ConfigError, CorruptRecord, Unavailable

BUSY_S = 30.0  # How long a process waits for another one's transaction on SQLite.
ROWS_MAX = 500  # Of one INSERT: SQLite limits how many values a statement may carry.

T = TypeVar("T")
Clock = Callable[[sa.Connection], datetime]


class Tx:
    """One transaction, and what time it is in it."""

    def __init__(self, connection: sa.Connection, clock: Clock, ambient: Ambient) -> None:
        self.connection = connection
        self.ambient = ambient
        self.execute = connection.execute
        self.known: dict[str, Any] = {}  # What cannot change until it ends, and need not be asked for twice.
        self.woken: set[str] = set()  # Loops that have something to do after it, say those who write it.
        self.durable = False
        self._clock = clock
        self._now: datetime | None = None
        self._driver = None if self.on_postgres or _listened_to(connection) else _driver(connection)

    @property
    def now(self) -> datetime:
        """What time it is in it. The database is asked once, if anybody wants to know: many only look."""
        if self._now is None:
            self._now = self._clock(self.connection)
        return self._now

    @property
    def on_postgres(self) -> bool:
        return self.connection.dialect.name == "postgresql"

    @property
    def reads(self) -> bool:
        """Whether it only looks: it sees one moment throughout, and locks nothing."""
        return bool(self.connection.get_execution_options().get("qo_reads", False))

    def one(self, query: sa.Select[*tuple[Any, ...]]) -> sa.RowMapping | None:
        """The first row, or None."""
        return self.execute(query).mappings().first()

    def all(self, query: sa.Select[*tuple[Any, ...]]) -> Sequence[sa.RowMapping]:
        return self.execute(query).mappings().all()

    def value(self, query: sa.Select[*tuple[Any, ...]]) -> Any:
        return self.execute(query).scalar()

    def rows(self, prepared: Prepared, *values: Values) -> Sequence[Sequence[Any]]:
        """What a statement that is prepared answers, for each of the values one after the other."""
        first = values[0] if values else NOTHING
        if self._driver is None:
            return self.execute(prepared.statement, values if len(values) > 1 else first).all()
        return answered(self._driver, prepared.form(self.connection.dialect, first), values or [first])

    def mappings(self, prepared: Prepared, values: Values) -> Sequence[Values]:
        """The same, by the names of columns."""
        if self._driver is None:
            return [cast("Values", row) for row in self.execute(prepared.statement, values).mappings()]
        form = prepared.form(self.connection.dialect, values)
        return [dict(zip(form.names, row, strict=True)) for row in answered(self._driver, form, [values])]

    def do(self, prepared: Prepared, *values: Values) -> int:
        """Carry out a statement that is prepared, for each of the values; how many rows were changed."""
        if not values:
            return 0
        if self._driver is None:
            return self.execute(prepared.statement, list(values)).rowcount
        return carried_out(self._driver, prepared.form(self.connection.dialect, values[0]), values)

    @contextmanager
    def part(self) -> Generator[None]:
        """If this raises, what was done in it is undone, and nothing else."""
        if self._driver is None:
            with self.connection.begin_nested():
                yield
            return
        self._driver.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            if self.lasts:
                self._driver.execute("ROLLBACK TO part")
                self._driver.execute("RELEASE part")
            raise
        self._driver.execute("RELEASE part")

    def require_durable(self) -> None:
        """Have it survive a power cut once it is committed, with all that was committed before it, whatever is set: for
        who then does something that cannot be undone."""
        self.durable = True
        if self.on_postgres:
            self.execute(sa.text("SET LOCAL synchronous_commit = on"))

    @property
    def lasts(self) -> bool:
        """Whether there is anything to commit: SQLite may undo all of a transaction by itself, when the disk is full.
        To commit it then would do nothing, and say nothing."""
        return self._driver is None or self._driver.in_transaction

    def insert(self, table: sa.Table, rows: Iterable[Values]) -> None:
        for batch in batches(rows):
            self.do(_insert(table), *batch)

    def insert_absent(self, table: sa.Table, rows: Iterable[Values], returning: sa.Column[Any]) -> set[Any]:
        """Insert the rows that break no uniqueness; ``returning`` tells which those were."""
        inserted: set[Any] = set()
        for batch in batches(rows):
            statement = _insert_absent(self.on_postgres, table, returning)
            inserted.update(value for (value,) in self.rows(statement, *batch))
        return inserted

    def upsert(self, table: sa.Table, *rows: Values) -> None:
        """Insert the rows, or change those with the same primary keys into them."""
        for batch in batches(rows):
            self.do(_upsert(self.on_postgres, table, tuple(batch[0])), *batch)

    def catch_up(self) -> None:
        """Look at the clock once more, where time decides something and others may have been waited for."""
        if self.on_postgres:  # On SQLite a writer waits before it begins.
            latest = self._clock(self.connection)
            self._now = latest if self._now is None else max(self._now, latest)

    def hold(self, number: int, *, shared: bool = False) -> None:
        """Take the lock of that number until the end, alone or with others that share it. First come, first served:
        who wants it alone is not passed by those that would share. On SQLite a writer is alone anyway."""
        if self.on_postgres:
            named = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
            self.connection.exec_driver_sql(f"SELECT {named}({number:d})").close()

    def lock(
        self, query: sa.Select[*tuple[Any, ...]], *, skip: bool = False, shared: bool = False
    ) -> sa.Select[*tuple[Any, ...]]:
        """The query with its rows locked until the end. On SQLite a writer has the whole database anyway."""
        return query.with_for_update(skip_locked=skip, read=shared) if self.on_postgres else query


class State:
    """An open state database. Safe to use from many threads and many processes."""

    def __init__(self, engine: sa.Engine, *, ambient: Ambient = SYSTEM, clock: Clock | None = None) -> None:
        self.engine = engine
        # The same connections, for those that only look: to say so anew each time takes as long as to look.
        whole = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
        self._looking = engine.execution_options(qo_reads=True, **whole)
        self.ambient = ambient
        self._clock = clock or database_clock
        # SQLite lets waiting processes poll; threads of one process queue up here instead, which is fair and quicker.
        self._turn = threading.Lock() if engine.dialect.name == "sqlite" else None
        self._path = engine.url.database if engine.dialect.name == "sqlite" else None
        self._file = _file(self._path)
        if self._path is not None:
            event.listen(engine, "connect", self._connected)

    @contextmanager
    def write(self) -> Generator[Tx]:
        if self._turn is None:
            with self._begin() as tx:
                yield tx
            return
        with self._turn, self._begin() as tx:
            yield tx

    @contextmanager
    def read(self) -> Generator[Tx]:
        """A consistent view; what is written in it is undone."""
        self._require_file()
        with _translated(), self._looking.connect() as connection, connection.begin() as transaction:
            yield Tx(connection, self._clock, self.ambient)
            transaction.rollback()

    def now(self) -> datetime | None:
        """What time it is, where nobody has to be waited for to know; None: ask in a transaction."""
        if self._path is None or self._clock is not database_clock:
            return None
        with _translated(), closing(self.engine.raw_connection()) as connection:
            driver = connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            return _sqlite_clock(driver)  # This reads nothing of the file.

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _begin(self) -> Generator[Tx]:
        self._require_file()
        with _translated(), self.engine.begin() as connection:
            tx = Tx(connection, self._clock, self.ambient)
            yield tx
        if tx.durable and self._path is not None:
            sqlite_file.flush_log(Path(self._path))

    def _connected(self, *_: Any) -> None:
        self._file = self._file or _file(self._path)  # The first connection may have made it.

    def _require_file(self) -> None:
        """Raises Unavailable once the file of the database is another one, or gone. What is open stays open: without
        looking, all would go on in a file that nobody can find any more."""
        if self._file is not None and _file(self._path) != self._file:
            raise Unavailable("the state database was moved or removed while in use: restart the dispatcher")


def _file(path: str | None) -> tuple[int, int] | None:
    """Which file is there now."""
    try:
        found = os.stat(path or "")
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_state(url: str, *, durable: bool = False, ambient: Ambient = SYSTEM, clock: Clock | None = None) -> State:
    """The database that the URL names: ``sqlite:PATH`` or ``postgresql://user@host/name``.

    ``durable``: on SQLite each transaction waits for the disk, so that a power cut undoes none that was acknowledged.

    Says nothing of the schema: ``qo.dispatcher.state.upgrade`` does. Raises ConfigError for a URL that cannot be
    read, without repeating it. A file is made by the first transaction, which raises it if that cannot be.
    """
    return State(_engine(url, durable), ambient=ambient, clock=clock)


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite database; None: it is none."""
    if not url.startswith("sqlite:"):
        return None
    return Path(url.removeprefix("sqlite:").removeprefix("///")).expanduser()


def _engine(url: str, durable: bool) -> sa.Engine:
    path = sqlite_path(url)
    if path is not None:
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)),
            # The sqlite3 module's own transactions stay off: the hook below begins ours.
            connect_args={"timeout": BUSY_S, "check_same_thread": False, "isolation_level": None},
            pool_size=16,
            max_overflow=64,
            # The last one used is the next one: each that is used at all fills a cache of its own.
            pool_use_lifo=True,
            hide_parameters=True,
        )
        event.listen(engine, "do_connect", lambda *_: sqlite_file.create_private(path))
        event.listen(engine, "connect", partial(sqlite_file.prepare, durable))
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if url.startswith(("postgresql:", "postgres:")):
        named = _postgres_url(url)
        try:
            # The last one used is the next one: few are in use, and those that are do not rest.
            engine = sa.create_engine(
                named, pool_size=16, max_overflow=16, pool_use_lifo=True, hide_parameters=True
            )
        except ModuleNotFoundError as missing:
            raise ConfigError(
                f"a PostgreSQL state needs {missing.name}: install qo with its extra, from a checkout, "
                "pip install '.[dispatcher,postgres]'"
            ) from None
        try_rested(engine)
        return engine
    raise ConfigError(f"{url.partition(':')[0]!r} is no state database: write sqlite:PATH or postgresql://…")


def _postgres_url(url: str) -> sa.URL:
    credentials, _, _ = url.partition("//")[2].rpartition("@")
    try:
        if any(letter in credentials for letter in "/?#@"):
            raise ValueError  # Readers disagree about where such a password ends.
        return sa.make_url(url).set(drivername="postgresql+psycopg")
    except (ValueError, ArgumentError):
        # Whatever they say may hold the password.
        raise ConfigError(
            "the URL of the state database cannot be read: write postgresql://USER:PASSWORD@HOST:PORT/NAME, "
            "and / ? # @ within user, password and options as %2F %3F %23 %40"
        ) from None


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that begins as a reader cannot become a writer once another has written: it would fail at once,
    # however long it is willing to wait.
    reads = connection.get_execution_options().get("qo_reads", False)
    _driver(connection).execute("BEGIN" if reads else "BEGIN IMMEDIATE")


def _listened_to(connection: sa.Connection) -> bool:
    """Whether somebody wants to hear of every statement: SQLAlchemy tells of those that it carries out."""
    events = connection.engine.dispatch
    return bool(events.before_cursor_execute) or bool(events.after_cursor_execute)


def _driver(connection: sa.Connection) -> sqlite3.Connection:
    """For what every transaction says first: by way of SQLAlchemy each would take ten times as long."""
    found = connection.connection.driver_connection
    assert isinstance(found, sqlite3.Connection)
    return found


def database_clock(connection: sa.Connection) -> datetime:
    """What time it is, says the database."""
    if connection.dialect.name == "postgresql":
        now: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        return now.astimezone(UTC)
    return _sqlite_clock(_driver(connection))


def _sqlite_clock(driver: sqlite3.Connection) -> datetime:
    (text,) = driver.execute("SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')").fetchone()
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# To build a statement takes longer than to carry it out; these are built once.


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
def _translated() -> Generator[None]:
    try:
        yield
    except PoolTimeout as error:
        raise Unavailable("too many transactions are open at once: call again in a while") from error
    except (OperationalError, InterfaceError, sqlite3.OperationalError) as error:
        # The driver names hosts, users and files: a note, for logs and people at this machine, not for answers.
        said = Unavailable("the state database does not answer")
        said.add_note(f"its driver says: {_drivers(error)}")
        raise said from error
    except (DatabaseError, sqlite3.DatabaseError) as error:
        if getattr(_drivers(error), "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
            raise
        raise CorruptRecord(
            "the state database is damaged, or its file is something else: restore the backup, or name another "
            "with QO_STATE"
        ) from error


def _drivers(error: DatabaseError | InterfaceError | sqlite3.DatabaseError) -> BaseException | None:
    """What the driver itself has raised."""
    return error if isinstance(error, sqlite3.DatabaseError) else error.orig


def batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """In pieces that one statement can carry."""
    listed = list(rows)
    for start in range(0, len(listed), ROWS_MAX):
        yield listed[start : start + ROWS_MAX]
