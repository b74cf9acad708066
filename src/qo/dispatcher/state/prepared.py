"""Statements that are compiled once and executed often.

SQLAlchemy needs ten times as long for a small statement as SQLite itself: it looks up the compiled text, binds values
and wraps rows. A ``Prepared`` statement is therefore compiled once and then goes to the driver as text, with the same
conversion of values in both directions. On PostgreSQL its text is the same for lists of any length, so the server
prepares it once for each connection, and many rows go with one statement (``row_sets``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler

from qo.dispatcher.state.row_sets import RowSet, Values, compile_row_set, is_row_set, number_placeholders

NO_VALUES: Values = {}

_Converter = Callable[[Any], Any] | None

_LIST = re.compile(r"__\[POSTCOMPILE_(\w+)\]")  # Where SQLAlchemy inserts a list, whose length differs per call.
_LIST_CONDITION = re.compile(r"\b(NOT )?IN \(__\[POSTCOMPILE_(\w+)\]\)")


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One placeholder of a statement."""

    name: str
    constant: Any  # Its value if it is part of the statement.
    is_required: bool  # The caller passes its value.
    convert: _Converter
    is_list: bool

    def append_to(self, bound: list[Any], values: Values, *, lists_whole: bool) -> None:
        value = values[self.name] if self.is_required else self.constant
        convert = self.convert
        if not self.is_list:
            bound.append(value if convert is None else convert(value))
        elif lists_whole:
            bound.append(list(value) if convert is None else list(map(convert, value)))
        else:
            bound.extend(value if convert is None else map(convert, value))


@dataclass(frozen=True, slots=True)
class Form:
    """A statement compiled for one set of value names."""

    text: str
    parameters: tuple[_Parameter, ...]
    lists: tuple[str, ...]
    names: tuple[str, ...]  # Of the result columns.
    converters: tuple[tuple[int, Callable[[Any], Any]], ...]  # Of result columns, by position.
    has_arrays: bool = False  # A list is one value, as on PostgreSQL.

    def expand(self, values: Values) -> str:
        """Return the text with a placeholder for each member of its lists."""
        if not self.lists:
            return self.text
        return _LIST.sub(lambda match: ", ".join("?" * len(values[match[1]])) or "NULL", self.text)

    def bind(self, values: Values) -> list[Any]:
        bound: list[Any] = []
        for parameter in self.parameters:
            parameter.append_to(bound, values, lists_whole=self.has_arrays)
        return bound

    def convert_rows(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if not self.converters:
            return rows
        return [self._convert_row(list(row)) for row in rows]

    def _convert_row(self, row: list[Any]) -> tuple[Any, ...]:
        for position, convert in self.converters:
            row[position] = convert(row[position])
        return tuple(row)


class Prepared:
    """A statement that is built once. Values are passed by name, those of an UPDATE's columns too."""

    def __init__(self, statement: sa.Executable) -> None:
        self.statement = statement
        self._forms: dict[tuple[str, ...], Form] = {}
        self._row_sets: dict[tuple[str, ...], RowSet] = {}
        self.takes_row_sets = is_row_set(statement)

    def form(self, dialect: sa.Dialect, values: Values) -> Form:
        """Return the form for values with these names. Raises ValueError if one is missing."""
        key = (dialect.name, *values)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = _compile(self.statement, dialect, tuple(values))
        return form

    def row_set(self, values: Values) -> RowSet:
        """Return the form for many rows with these names, on PostgreSQL."""
        names = tuple(values)
        row_set = self._row_sets.get(names)
        if row_set is None:
            row_set = self._row_sets[names] = compile_row_set(self.statement, names)
        return row_set


def _compile(statement: sa.Executable, dialect: sa.Dialect, names: tuple[str, ...]) -> Form:
    compiled = cast("sa.ClauseElement", statement).compile(dialect=dialect, column_keys=list(names))
    if not isinstance(compiled, SQLCompiler):
        raise TypeError(f"only SQL statements can be prepared, not {type(statement).__name__}")
    if compiled.insert_prefetch or compiled.update_prefetch:
        raise ValueError("a prepared statement computes no column defaults: pass their values")
    text, order = str(compiled), compiled.positiontup or ()
    has_arrays = dialect.name == "postgresql"
    if has_arrays:
        text, order = number_placeholders(_compare_with_arrays(text, compiled.binds))
    parameters = tuple(_parameter(name, compiled.binds[name], name in names, dialect) for name in order)
    columns = _result_columns(statement)
    converters = [(position, _result_converter(type_, dialect)) for position, (_, type_) in enumerate(columns)]
    return Form(
        text=text,
        parameters=parameters,
        lists=tuple(each.name for each in parameters if each.is_list),
        names=tuple(name for name, _ in columns),
        converters=tuple((position, convert) for position, convert in converters if convert is not None),
        has_arrays=has_arrays,
    )


def _compare_with_arrays(text: str, binds: Mapping[str, sa.BindParameter[Any]]) -> str:
    """Return the text with an array in place of each list: it is the same for any number of members."""

    def compare(match: re.Match[str]) -> str:
        operator = "!= ALL" if match[1] else "= ANY"
        return f"{operator} (%({match[2]})s::{_element_type(binds[match[2]].type)}[])"

    replaced = _LIST_CONDITION.sub(compare, text)
    if _LIST.search(replaced):
        raise ValueError("a prepared statement compares one column with a list: use IN or NOT IN")
    return replaced


def _element_type(type_: Any) -> str:
    if isinstance(type_, sa.BigInteger):
        return "BIGINT"
    if isinstance(type_, sa.Integer):
        return "INTEGER"
    if isinstance(type_, sa.String | sa.types.NullType):
        return "TEXT"
    raise ValueError(f"a list of {type_} in a prepared statement: say how PostgreSQL names its type")


def _parameter(name: str, bind: sa.BindParameter[Any], is_passed: bool, dialect: sa.Dialect) -> _Parameter:
    if bind.required and not is_passed:
        raise ValueError(f"a value is missing: {name}")
    convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
    return _Parameter(name, None if is_passed else bind.effective_value, is_passed, convert, bind.expanding)


def _result_converter(type_: Any, dialect: sa.Dialect) -> _Converter:
    if isinstance(type_, sa.Float) and dialect.name == "postgresql":
        return None  # The driver returns floats. SQLAlchemy would have to know from which type of the server.
    return type_.dialect_impl(dialect).result_processor(dialect, None)


def _result_columns(statement: Any) -> list[tuple[str, Any]]:
    """Return names and types of the columns of the statement's rows."""
    if isinstance(statement, sa.Insert | sa.Update | sa.Delete):
        return [(each["name"], each["type"]) for each in statement.returning_column_descriptions]
    if isinstance(statement, sa.TextClause):
        return []  # Their types are unknown: values stay as the driver returns them.
    return [(each.key, each.type) for each in statement.selected_columns]
