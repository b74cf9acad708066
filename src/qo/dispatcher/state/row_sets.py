"""One statement for many rows, on PostgreSQL.

The driver would send a statement for each row. A row set sends the rows as one JSON value instead:

    UPDATE t SET a = :a WHERE t.id = :key
    UPDATE t SET a = v."a" FROM jsonb_to_recordset(:rows) AS v("a" TEXT, "key" TEXT) WHERE t.id = v."key"

    INSERT INTO t (a) VALUES (:a) ON CONFLICT DO NOTHING RETURNING a
    INSERT INTO t (a) SELECT v."a" FROM jsonb_to_recordset(:rows) AS v("a" TEXT) ON CONFLICT DO NOTHING RETURNING a

The text is the same for any number of rows, so it is built once and the server prepares it once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.compiler import SQLCompiler

Values = Mapping[str, Any]

_BIND = re.compile(r"(?<![:\w]):(\w+)")
_PLACEHOLDER = re.compile(r"%%|%\((\w+)\)s")
_VALUES = re.compile(r"VALUES \(([^()]*)\)")
_WHERE = re.compile(r"\sWHERE\s")
# Without the casts that the dialect of the driver adds to every value.
_DIALECT = postgresql.dialect(paramstyle="named")


@dataclass(frozen=True, slots=True)
class RowSet:
    """A statement compiled for rows with one set of names."""

    text: str  # With a name for each placeholder.
    numbered: str  # With a number for each.
    order: tuple[str, ...]  # The names, by number.
    constants: Values  # Values that are part of the statement.
    columns: tuple[tuple[str, Callable[[Any], Any] | None], ...]  # Name, and conversion, of each value of a row.

    def bind(self, rows: Sequence[Values]) -> dict[str, Any]:
        """Return the values of the placeholders, by name."""
        return {**self.constants, "rows": self._encode(rows)}

    def _encode(self, rows: Sequence[Values]) -> str:
        converted = [
            {name: row[name] if convert is None else convert(row[name]) for name, convert in self.columns}
            for row in rows
        ]
        return msgspec.json.encode(converted).decode()


def is_row_set(statement: sa.Executable) -> bool:
    """Whether ``compile_row_set`` takes the statement."""
    return isinstance(statement, sa.Update | sa.Insert)


def compile_row_set(statement: sa.Executable, names: Sequence[str]) -> RowSet:
    """Compile an INSERT or UPDATE whose rows have values of these names."""
    compiled = cast("sa.ClauseElement", statement).compile(
        dialect=_DIALECT, column_keys=list(names), for_executemany=True
    )
    assert isinstance(compiled, SQLCompiler)
    of_row = {name: bind for name, bind in compiled.binds.items() if name in names}
    constants = {name: _constant(bind) for name, bind in compiled.binds.items() if name not in of_row}
    listed = ", ".join(f'"{name}" {_type(bind)}' for name, bind in of_row.items())
    source = f"FROM jsonb_to_recordset(%(rows)s::jsonb) AS v({listed})"
    text = str(compiled).replace("%", "%%")  # The driver's own placeholders begin with a percent sign.
    if isinstance(statement, sa.Insert):
        text = _VALUES.sub(lambda match: f"SELECT {match[1]} {source}", text, count=1)
    else:
        text = _WHERE.sub(lambda _: f" {source} WHERE ", text, count=1)

    def reference(match: re.Match[str]) -> str:
        name = match[1]
        if name in of_row:
            return f'v."{name}"'
        return f"%({name})s" if name in constants else match[0]

    columns = tuple((name, _converter(bind)) for name, bind in of_row.items())
    with_names = _BIND.sub(reference, text)
    return RowSet(with_names, *number_placeholders(with_names), constants, columns)


def number_placeholders(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the text as PostgreSQL itself takes it, with ``$1`` for ``%(name)s``, and the names by number."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return "%" if match[1] is None else f"${numbers.setdefault(match[1], len(numbers) + 1)}"

    return _PLACEHOLDER.sub(number, text), tuple(numbers)


def _type(bind: sa.BindParameter[Any]) -> str:
    return bind.type.dialect_impl(_DIALECT).compile(dialect=_DIALECT)


def _converter(bind: sa.BindParameter[Any]) -> Callable[[Any], Any] | None:
    return bind.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)


def _constant(bind: sa.BindParameter[Any]) -> Any:
    convert = _converter(bind)
    return bind.effective_value if convert is None else convert(bind.effective_value)
