"""An outbox in PostgreSQL. Relays are notified of commits, and skip rows that others are claiming."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from qo.core.redaction import redact
from qo.errors import ConfigError, Unavailable
from qo.outbox.outbox_rows import ParkedRow, Row, Statements, rows_of
from qo.outbox.outbox_table import CHANNEL, Dialect, check_table

CONNECT_S = 10


class PostgresOutbox:
    """Used by one thread at a time. Connects at the first call."""

    def __init__(self, url: str, table: str) -> None:
        self._url = url
        self._statements = Statements.of(Dialect.POSTGRESQL, check_table(table))
        self._connection: Any = None

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
        with self._errors():
            # A notification that came since the last call is returned at once.
            for _ in self._connect().notifies(timeout=timeout_s, stop_after=1):
                return

    def count(self) -> tuple[int, int]:
        with self._transaction() as execute:
            total, parked = execute(self._statements.count, ()).fetchone()
        return int(total) - int(parked), int(parked)

    def parked(self, limit: int) -> list[ParkedRow]:
        with self._transaction() as execute:
            return [ParkedRow(*each) for each in execute(self._statements.parked, (limit,)).fetchall()]

    def retry(self, ids: Sequence[int]) -> int:
        with self._transaction() as execute:
            if not ids:
                return int(execute(self._statements.retry_all, ()).rowcount)
            return sum(int(execute(self._statements.retry, (row_id,)).rowcount) for row_id in ids)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _connect(self) -> Any:
        import psycopg

        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_S)
            self._connection.execute(f"LISTEN {CHANNEL}")
        return self._connection

    @contextmanager
    def _transaction(self) -> Generator[Callable[[str, tuple[Any, ...]], Any]]:
        with self._errors():
            connection = self._connect()
            with connection.transaction():
                yield connection.execute

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            import psycopg
        except ModuleNotFoundError:
            raise ConfigError(
                "an outbox in PostgreSQL needs psycopg: install qo with its extra postgres"
            ) from None
        try:
            yield
        except psycopg.errors.UndefinedTable:
            raise ConfigError(
                "the database has no outbox: create its table with qo.outbox.create_table, or the SQL of qo relay table"
            ) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(
                f"the relay's user may not use the outbox: {error}; grant it SELECT, UPDATE and DELETE on the table"
            ) from None
        except psycopg.ProgrammingError as error:  # The URL, the name of the table, or its columns.
            raise ConfigError(f"the outbox cannot be used: {redact(str(error))}") from None
        except psycopg.Error as error:
            self.close()
            raise Unavailable(f"the application's database does not answer: {redact(str(error))}") from None
