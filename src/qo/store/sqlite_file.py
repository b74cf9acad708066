"""The SQLite file of a local store, and how it is opened by many processes at a time."""

from __future__ import annotations

import errno
import sqlite3
import time
from pathlib import Path

from qo.errors import ConfigError, Unavailable
from qo.store import private, sqlite_schema
from qo.store.sqlite_schema import SCHEMA_VERSION

FILE = "store.db"

# Other processes write in bursts of milliseconds, so a longer wait means that something is broken.
BUSY_S_MAX = 30.0
# Between attempts to begin writing. SQLite's own waiting rests up to 25 ms at a time, while others write for a few.
BUSY_REST_FIRST_S, BUSY_REST_GROWTH, BUSY_REST_MAX_S = 0.0002, 1.3, 0.005
PAGE_BYTES = 4096
# How long the log may grow before a write moves what is left of it to the file proper, which costs disk flushes.
# Most of the time ``sqlite_checkpoint`` has done so before.
LOG_PAGES_MAX = 32_000
CACHE_KIB = 65_536
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def connect(path: Path, *, durable: bool, forget: tuple[str, ...] = ()) -> sqlite3.Connection:
    """Connect to the file in the directory ``path``; both are created if need be. A file of an earlier qo is converted;
    of keys that begin with one of ``forget`` it keeps no history.

    Raises ConfigError if that cannot be a store (the message says why), Unavailable if other processes keep the
    file locked, or the disk is full or fails. The connection may be used by one thread at a time, not necessarily
    this one.
    """
    deadline = time.monotonic() + BUSY_S_MAX
    while True:
        try:
            return _connect(path, durable, forget)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise _disk_failed(path, error) from error
            raise ConfigError(f"no store can be kept in {path}: {error}. Name a directory.") from error
        except sqlite3.Error as error:
            if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise _disk_failed(path, error) from error
            if _code(error) != sqlite3.SQLITE_BUSY:
                raise ConfigError(_unusable(path, error)) from error
            # While another process creates the file or closes it as the last one, SQLite does not wait.
            if time.monotonic() > deadline:
                raise Unavailable(f"other processes keep {path / FILE} locked: {error}") from error
        time.sleep(0.01)


def begin_writing(connection: sqlite3.Connection) -> None:
    """Begin a transaction that writes, when no other process is in one. Raises sqlite3.OperationalError if that takes
    longer than BUSY_S_MAX."""
    deadline, rest_s = time.monotonic() + BUSY_S_MAX, BUSY_REST_FIRST_S
    connection.execute("PRAGMA busy_timeout = 0").close()
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(rest_s)
            rest_s = min(rest_s * BUSY_REST_GROWTH, BUSY_REST_MAX_S)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_S_MAX)}").close()


def _connect(path: Path, durable: bool, forget: tuple[str, ...]) -> sqlite3.Connection:
    private.make_directory(path)
    if not private.create_file(path / FILE):
        private.close_to_others(private.of_database(path / FILE))
    connection = sqlite3.connect(path / FILE, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path, durable, forget)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, durable: bool, forget: tuple[str, ...]) -> None:
    connection.execute("BEGIN")
    _schema_version(connection, path)  # Whatever is not ours stays untouched.
    connection.execute("COMMIT")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigError(f"the file system of {path} does not support SQLite's log: use a local disk")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES_MAX}")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("BEGIN IMMEDIATE")  # Fails now, rather than at the first write, if the file is read-only.
    match _schema_version(connection, path):
        case 0:
            sqlite_schema.create(connection)
        case 1:
            sqlite_schema.upgrade(connection, forget)
        case _:
            pass
    connection.execute("COMMIT")


def _schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version. Call it within a transaction: another process may be creating the file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path / FILE} was written by a newer qo (format {version}; this one reads up to {SCHEMA_VERSION}): "
            "upgrade qo"
        )
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
        raise ConfigError(f"{path / FILE} is a database of something else: name another directory")
    return version


def _code(error: sqlite3.Error) -> int:
    # The low byte is the error; the others say more about it. Errors of the Python module carry no code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _disk_failed(path: Path, error: Exception) -> Unavailable:
    """The error for a failing or full disk: SQLite reports an I/O error if there is no room for its log."""
    return Unavailable(
        f"the store in {path} cannot be opened: {error}. If the disk is full, make room, and try again."
    )


def _unusable(path: Path, error: sqlite3.Error) -> str:
    return (
        f"{path / FILE} cannot be used as a store: {error}. Name a writable directory on a local disk, "
        "or restore the file from a backup."
    )
