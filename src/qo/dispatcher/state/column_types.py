"""Column types of all tables. Migrations use them too, so the SQL that they produce must not change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

names = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = sa.MetaData(naming_convention=names)

Id = sa.String(36)
Name = sa.String(200)


class Instant(TypeDecorator[datetime]):
    """A time in UTC. SQLite stores it as text of fixed width, which sorts by time."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value if value is None or dialect.name != "sqlite" else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Json(TypeDecorator[Any]):
    """A value as JSON text."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Any) -> Any:
        return None if value is None else msgspec.json.decode(value)


def column(name: str, kind: Any, *more: Any, null: bool = False, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, *more, nullable=null, **options)


def seq(name: str = "seq") -> sa.Column[Any]:
    # SQLite increments only an INTEGER column.
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column(name, kind, primary_key=True, autoincrement=True)


def inline(value: str) -> sa.ColumnElement[str]:
    """Return a constant that is written into the SQL text.

    A planner uses a partial index only where it can see that the condition holds, and it does not look at parameters.
    """
    return sa.literal_column(f"'{value}'", sa.String)


def where(clause: str) -> dict[str, Any]:
    """Return the options of a partial index that contains only the rows of a condition."""
    return {"sqlite_where": sa.text(clause), "postgresql_where": sa.text(clause)}
