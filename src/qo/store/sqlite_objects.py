"""Versioned objects in one SQLite file, one synchronous operation at a time, for the thread that owns the file.

Every version of every key is a row. The row of the current one is marked ``current``; a row without a body is a
delete marker and never current. A number is drawn for each row and never again, so the newest version of a key
is the one with the greatest number.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from qo.errors import ConfigError, PreconditionFailed, Unavailable
from qo.store.embedded import Clock, etag_of
from qo.store.port import Doomed, Entry, Page, Stored, Version, Written

FILE = "store.db"
SCHEMA_VERSION = 1  # Raised when an older qo could no longer read or write the file correctly.

# Other processes write in bursts of milliseconds, so whoever waits this long waits for something broken.
BUSY_S_MAX = 30.0
# Pages in the log before they are moved to the file proper. More makes writing faster, and the log longer.
CHECKPOINT_PAGES = 4_000
CACHE_KIB = 32_768

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# One index finds and lists what is current and makes a second current version of a key impossible; the other
# finds the rest. So creating an object pays for one index only, and lists never meet what is gone.
_SCHEMA = (
    """
    CREATE TABLE objects (
        version INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL,
        current INTEGER NOT NULL,
        etag TEXT NOT NULL,
        modified INTEGER NOT NULL,
        body BLOB
    )
    """,
    "CREATE UNIQUE INDEX objects_current ON objects (key) WHERE current",
    "CREATE INDEX objects_past ON objects (key) WHERE NOT current",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_GET = "SELECT body, etag, version FROM objects WHERE key = ? AND current"
_GET_VERSION = "SELECT body, etag, version FROM objects WHERE version = ? AND key = ? AND body IS NOT NULL"
_ADD = """
    INSERT INTO objects (key, current, etag, modified, body) VALUES (?, 1, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_ADD_MARKER = "INSERT INTO objects (key, current, etag, modified) VALUES (?, 0, '', ?)"
_RETIRE = "UPDATE objects SET current = 0 WHERE key = ? AND current AND etag = ifnull(?, etag)"
_FORGET = "DELETE FROM objects WHERE key = ? AND current AND etag = ifnull(?, etag)"
_ERASE = "DELETE FROM objects WHERE version = ? AND key = ?"
_PROMOTE = """
    UPDATE objects SET current = 1
    WHERE version = (SELECT max(version) FROM objects WHERE key = ?1 AND NOT current)
    AND body IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM objects WHERE key = ?1 AND current)
"""
_LIST_FROM, _LIST_AFTER = (
    f"""
    SELECT key, etag, length(body), modified FROM objects WHERE current AND key {bound} ? ORDER BY key LIMIT ?
    """
    for bound in (">=", ">")
)
_VERSIONS = """
    SELECT version, etag, length(body), modified FROM objects WHERE key = ?1 AND current
    UNION ALL
    SELECT version, etag, length(body), modified FROM objects WHERE key = ?1 AND NOT current
    ORDER BY version DESC
"""


def _instant(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


class SqliteObjects:
    """The objects in ``path``. Operations run between ``begin`` and ``commit`` or ``rollback``.

    An operation that raises an error of qo has changed nothing. After any sqlite3.Error, roll back.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Clock, forget: tuple[str, ...]) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._clock = clock
        self._forget = forget
        self._modified = 0

    @classmethod
    def open(cls, path: Path, clock: Clock, *, forget: tuple[str, ...], durable: bool) -> SqliteObjects:
        """Open the file in the directory ``path``; create both if need be.

        Raises ConfigError if that cannot be a store (the message says why), Unavailable if other processes keep
        the file locked. The object may be used by one thread at a time, not necessarily this one.
        """
        deadline = time.monotonic() + BUSY_S_MAX
        while True:
            try:
                return cls(_connect(path, durable), clock, forget)
            except OSError as error:
                raise ConfigError(f"no store can be kept in {path}: {error}. Name a directory.") from error
            except sqlite3.Error as error:
                if not _busy(error):
                    raise ConfigError(_unusable(path, error)) from error
                # While another process creates the file or closes it as the last one, SQLite does not wait.
                if time.monotonic() > deadline:
                    raise Unavailable(f"other processes keep {path / FILE} locked: {error}") from error
            time.sleep(0.01)

    def begin(self, *, writing: bool) -> None:
        self._execute("BEGIN IMMEDIATE" if writing else "BEGIN")
        if writing:
            self._modified = (self._clock.now() - _EPOCH) // _MICROSECOND

    def commit(self) -> None:
        self._execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()

    def get(self, key: str, version: str | None) -> Stored | None:
        if version is None:
            row = self._execute(_GET, (key,)).fetchone()
        else:
            row = self._execute(_GET_VERSION, (version, key)).fetchone()
        return row and Stored(row[0], row[1], str(row[2]))

    def put(self, key: str, body: bytes, if_match: str | None, if_absent: bool) -> Written:
        etag = etag_of(body)
        if not if_absent:
            retired = self._retire(key, if_match)
            if if_match is not None and not retired:
                raise PreconditionFailed(f"{key} has changed since it was read")
        added = self._execute(_ADD, (key, etag, self._modified, body))
        if added.rowcount == 0:
            raise PreconditionFailed(f"{key} exists already")
        return Written(etag, str(added.lastrowid))

    def delete(self, key: str, if_match: str | None) -> None:
        if self._retire(key, if_match):
            if not key.startswith(self._forget):
                self._execute(_ADD_MARKER, (key, self._modified))
        elif if_match is not None and self._execute(_GET, (key,)).fetchone() is not None:
            raise PreconditionFailed(f"{key} has changed since it was read")

    def delete_many(self, doomed: Sequence[Doomed]) -> None:
        for key, version in doomed:
            if version is None:
                self.delete(key, None)
            elif self._execute(_ERASE, (version, key)).rowcount:
                self._execute(_PROMOTE, (key,))

    def list(self, prefix: str, start_after: str, limit: int) -> Page:
        query, start = (_LIST_FROM, prefix) if start_after < prefix else (_LIST_AFTER, start_after)
        entries: list[Entry] = []
        rows = self._execute(query, (start, limit + 1))
        for key, etag, size, modified in rows:
            if not key.startswith(prefix):
                break
            entries.append(Entry(key, etag, size, _instant(modified)))
        rows.close()
        return Page(entries[:limit], truncated=len(entries) > limit)

    def versions(self, key: str) -> Sequence[Version]:
        return [
            Version(str(version), etag, size or 0, _instant(modified), latest=place == 0, deleted=size is None)
            for place, (version, etag, size, modified) in enumerate(self._execute(_VERSIONS, (key,)))
        ]

    def _retire(self, key: str, if_match: str | None) -> bool:
        """Whether there was a current version (with that ETag), which now is none."""
        statement = _FORGET if key.startswith(self._forget) else _RETIRE
        return self._execute(statement, (key, if_match)).rowcount == 1


def _connect(path: Path, durable: bool) -> sqlite3.Connection:
    path.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path / FILE, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path, durable)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, durable: bool) -> None:
    _schema_version(connection, path)  # Whatever is not ours stays untouched.
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigError(f"the file system of {path} does not support SQLite's log: use a local disk")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("BEGIN IMMEDIATE")  # Fails now, rather than at the first write, if the file is read-only.
    if _schema_version(connection, path) == 0:
        for statement in _SCHEMA:
            connection.execute(statement)
    connection.execute("COMMIT")


def _schema_version(connection: sqlite3.Connection, path: Path) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path / FILE} was written by a newer qo (format {version}; this one reads up to {SCHEMA_VERSION}): "
            "upgrade qo"
        )
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
        raise ConfigError(f"{path / FILE} is a database of something else: name another directory")
    return version


def _busy(error: sqlite3.Error) -> bool:
    # The low byte is the error; the others say more about it. Errors of the Python module carry no code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _unusable(path: Path, error: sqlite3.Error) -> str:
    return (
        f"{path / FILE} cannot be used as a store: {error}. Name a writable directory on a local disk, "
        "or restore the file from a backup."
    )
