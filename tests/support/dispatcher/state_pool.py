"""State databases on PostgreSQL with all their tables, used again once they are emptied.

To empty one takes a twentieth of the time that it takes to copy one, and a run needs several hundred.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import open_state
from support.dispatcher.states import as_new, create_tables, pooled

if TYPE_CHECKING:
    from support.servers.postgres import PostgresServer

LOCK_MS = 500  # Who keeps a lock for longer has forgotten it.


class StatePool:
    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._template: str | None = None
        self._free: list[str] = []

    @contextmanager
    def borrowed(self) -> Iterator[str]:
        """The URL of a database that is as new."""
        url = self._free.pop() if self._free else self._copied()
        if url not in pooled:
            pooled[url] = open_state(url).engine
            pooled[url].connect().close()  # Its dialect gets to know the server.
        try:
            yield url
        finally:
            if _emptied(pooled[url]):
                self._free.append(url)
            else:
                pooled.pop(url).dispose()

    def close(self) -> None:
        """Close all connections."""
        while pooled:
            pooled.popitem()[1].dispose()

    def _copied(self) -> str:
        if self._template is None:
            state = open_state(self._server.make_database())
            create_tables(state)
            state.close()
            self._template = state.engine.url.database
        assert self._template is not None
        return self._server.make_database(self._template)


def _emptied(engine: sa.Engine) -> bool:
    """Whether that was possible: a test may have left a transaction open, or have changed the tables."""
    if engine.pool.checkedout():  # type: ignore[attr-defined]
        return False
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(_emptying())
    except sa.exc.DBAPIError:
        return False
    return True


@cache
def _emptying() -> str:
    tables = list(reversed(schema.metadata.sorted_tables))
    numbers = [(table.name, column.name) for table in tables if (column := table.autoincrement_column) is not None]
    return ";\n".join(
        [
            f"SET lock_timeout = {LOCK_MS}",
            *(f"DELETE FROM {table.name}" for table in tables),
            *(f"ALTER SEQUENCE {table}_{column}_seq RESTART" for table, column in numbers),
            as_new(),
            "RESET lock_timeout",
        ]
    )
