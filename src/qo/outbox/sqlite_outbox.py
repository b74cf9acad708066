"""An outbox in SQLite. Its relay sees commits of other processes by the file's data version."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qo.errors import ConfigError, Unavailable
from qo.outbox.outbox_rows import ParkedRow, Row, Statements, rows_of
from qo.outbox.outbox_table import Dialect, check_table

LOCKED_S = 10.0  # How long to wait for other writers.
LOOK_S = 0.05
# Errors that may be gone at the next try: another writer, a full or failing disk, a directory that is not mounted.
_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_SCHEMA,
    }
)


class SqliteOutbox:
    """Used by one thread at a time."""

    def __init__(self, path: Path, table: str) -> None:
        """Raises ConfigError if there is no such file: a relay creates no database."""
        if not path.exists():
            raise ConfigError(f"there is no database {path}: name that of the application")
        self._path = path
        self._statements = Statements.of(Dialect.SQLITE, check_table(table))
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None

    def claim(self, relay_id: str, limit: int, lease_s: float) -> list[Row]:
        with self._transaction() as execute:
            return rows_of(execute(self._statements.claim, (limit, relay_id, lease_s)).fetchall())

    def finish(
        self, relay_id: str, submitted: Sequence[int], parked: Mapping[int, str], later: Mapping[int, float]
    ) -> None:
        sql = self._statements
        with self._transaction() as execute:
            for row_id in submitted:
                execute(sql.delete, (row_id, relay_id))
            for row_id, reason in parked.items():
                execute(sql.park, (reason, row_id, relay_id))
            for row_id, seconds in later.items():
                execute(sql.postpone, (seconds, row_id, relay_id))

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self._transaction(writes=False) as execute:
                version = execute("PRAGMA data_version", ()).fetchone()[0]
            if version != self._version:
                self._version = version
                return
            time.sleep(min(LOOK_S, timeout_s))

    def count(self) -> tuple[int, int]:
        with self._transaction(writes=False) as execute:
            total, parked = execute(self._statements.count, ()).fetchone()
        return int(total) - int(parked), int(parked)

    def parked(self, limit: int) -> list[ParkedRow]:
        with self._transaction(writes=False) as execute:
            return [ParkedRow(*each) for each in execute(self._statements.parked, (limit,)).fetchall()]

    def retry(self, ids: Sequence[int]) -> int:
        with self._transaction() as execute:
            if not ids:
                return int(execute(self._statements.retry_all, ()).rowcount)
            return sum(int(execute(self._statements.retry, (row_id,)).rowcount) for row_id in ids)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _transaction(self, *, writes: bool = True) -> Generator[Callable[[str, tuple[Any, ...]], sqlite3.Cursor]]:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(
                    self._path, timeout=LOCKED_S, isolation_level=None, check_same_thread=False
                )
            if not writes:
                yield self._connection.execute
                return
            # Immediate: two relays that both read and then write would otherwise fail each other.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            self.close()
            if "no such table" in str(error):
                raise ConfigError(
                    f"{self._path} has no outbox: create its table with qo.outbox.create_table, or with the SQL of "
                    "qo relay table"
                ) from None
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in _PASSING:  # The rest of an extended code tells more.
                raise Unavailable(f"the database {self._path} does not answer: {error}") from error
            raise ConfigError(
                f"the outbox in {self._path} cannot be used: {error}; name the application's database, and a table as "
                "qo relay table prints it"
            ) from error
