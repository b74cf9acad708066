"""SQLAlchemy engines for the state database: SQLite with transactions of our own, or PostgreSQL."""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DisconnectionError

from qo.dispatcher.state import sqlite_file
from qo.errors import ConfigError

BUSY_S = 30.0  # How long a process waits for another process's transaction on SQLite.
PREPARED_MAX = 400  # Statements that one connection to PostgreSQL keeps prepared: more than there are.
IDLE_S = 1.0  # A connection that broke within this time fails the transaction that gets it, as one in use does.

_IDLE_SINCE = "qo_idle_since"


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite database, or None for another database."""
    if not url.startswith("sqlite:"):
        return None
    return Path(url.removeprefix("sqlite:").removeprefix("///")).expanduser()


def create_engine(url: str, durable: bool) -> sa.Engine:
    """Return the engine of a state database. Raises ConfigError for an invalid URL or a missing driver."""
    path = sqlite_path(url)
    if path is not None:
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)),
            # Turns off the transactions of the sqlite3 module: the hook below begins ours.
            connect_args={"timeout": BUSY_S, "check_same_thread": False, "isolation_level": None},
            pool_size=16,
            max_overflow=64,
            # Reuse the last connection first: each connection fills a cache of its own.
            pool_use_lifo=True,
            hide_parameters=True,
        )
        event.listen(engine, "do_connect", lambda *_: sqlite_file.create_private(path))
        event.listen(engine, "connect", partial(sqlite_file.prepare, durable))
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if url.startswith(("postgresql:", "postgres:")):
        address = _postgres_url(url)
        try:
            # Reuse the last connection first: few are in use, and these do not become idle.
            engine = sa.create_engine(
                address, pool_size=16, max_overflow=16, pool_use_lifo=True, hide_parameters=True
            )
        except ModuleNotFoundError as missing:
            raise ConfigError(
                f"a PostgreSQL state needs {missing.name}: install qo with its extra, from a checkout, "
                "pip install '.[dispatcher,postgres]'"
            ) from None
        _ping_idle_connections(engine)
        event.listen(engine, "connect", _prepare_postgres)
        event.listen(engine, "begin", _begin_postgres)
        return engine
    raise ConfigError(f"{url.partition(':')[0]!r} is no state database: write sqlite:PATH or postgresql://…")


def _postgres_url(url: str) -> sa.URL:
    credentials, _, _ = url.partition("//")[2].rpartition("@")
    try:
        if any(letter in credentials for letter in "/?#@"):
            raise ValueError  # Parsers disagree about where such a password ends.
        return sa.make_url(url).set(drivername="postgresql+psycopg")
    except (ValueError, ArgumentError):
        # The message of the cause may contain the password.
        raise ConfigError(
            "the URL of the state database cannot be read: write postgresql://USER:PASSWORD@HOST:PORT/NAME, "
            "and / ? # @ within user, password and options as %2F %3F %23 %40"
        ) from None


def _ping_idle_connections(engine: sa.Engine) -> None:
    """Have the pool ping a connection that was idle for ``IDLE_S``: the server, or a proxy, may have closed it.

    Under load no connection is idle for so long, so no round trip is spent on it.
    """
    dialect = engine.dialect

    def record_checkin(_: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()

    def ping(connection: Any, record: Any, _: Any) -> None:
        if not connection.autocommit:
            connection.autocommit = True  # SQLAlchemy turns it off after somebody has asked for it.
        since = record.info.get(_IDLE_SINCE)
        if since is None or time.monotonic() - since < IDLE_S:
            return
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error  # The pool opens a new connection.

    event.listen(engine, "checkin", record_checkin)
    event.listen(engine, "checkout", ping)


def _prepare_postgres(driver: Any, _: Any) -> None:
    driver.autocommit = True  # Turns off the transactions of psycopg: they would take a round trip to begin.
    driver.prepared_max = PREPARED_MAX


def _begin_postgres(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    if options.get("isolation_level") != "AUTOCOMMIT" and not options.get("qo_begins_late", False):
        begin_postgres(connection)


def begin_postgres(connection: sa.Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute(postgres_begin(connection))


def postgres_begin(connection: sa.Connection) -> str:
    """Return the statement that begins a transaction on PostgreSQL.

    One that reads is committed like any other: psycopg forgets all prepared statements when one is rolled back.
    """
    is_read_only = connection.get_execution_options().get("qo_reads", False)
    return "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if is_read_only else "BEGIN"


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that began as a reader fails at once when it writes after another has written, whatever its
    # timeout is.
    is_read_only = connection.get_execution_options().get("qo_reads", False)
    sqlite_driver(connection).execute("BEGIN" if is_read_only else "BEGIN IMMEDIATE")


def sqlite_driver(connection: sa.Connection) -> sqlite3.Connection:
    """Return the connection of the sqlite3 module: through SQLAlchemy a small statement takes ten times as long."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver
