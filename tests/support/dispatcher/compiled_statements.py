"""What SQLAlchemy compiles for one database serves all others of its kind.

A test has a database of its own, so an engine of its own, which would compile its fifty statements anew: a third of
what most tests of the dispatcher take. An engine that goes on for as long as a process does has no use for this.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.util import LRUCache

_dialects: dict[str, sa.Dialect] = {}  # A statement is found again only for the very dialect it was compiled for.
_statements: MutableMapping[Any, Any] = LRUCache(2000)


def _share(connection: sa.Connection) -> None:
    dialect = _dialects.setdefault(connection.dialect.name, connection.dialect)
    if connection.engine.dialect is dialect and connection.engine._compiled_cache is _statements:
        return  # Connections have both from their engine; only its first must be set right by itself.
    for each in (connection, connection.engine):
        each.dialect = dialect
    connection.engine._compiled_cache = _statements


def share() -> None:
    """For all engines of this process from now on."""
    if not event.contains(sa.Engine, "engine_connect", _share):
        event.listen(sa.Engine, "engine_connect", _share)
