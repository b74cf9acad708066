"""Statements that every task needs, ready for the driver.

SQLAlchemy takes ten times as long for such a statement as SQLite: to find what it has compiled before, to bind values
and to wrap rows. On SQLite, where both are in our process, a statement is compiled by it once and from then on goes to
the driver as text, with the same treatment of values on their way in and out. On PostgreSQL, where the way there takes
longest, SQLAlchemy carries it out as any other.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler

Values = Mapping[str, Any]
NOTHING: Values = {}  # Of a statement that takes none.

_Process = Callable[[Any], Any] | None

_LIST = re.compile(r"__\[POSTCOMPILE_(\w+)\]")  # Where SQLAlchemy puts in lists, whose length differs.


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a value goes in."""

    name: str
    constant: Any  # Written in the statement; None where the caller has to give it.
    given: bool
    process: _Process
    many: bool

    def put(self, values: Values, into: list[Any]) -> None:
        value = values[self.name] if self.given else self.constant
        process = self.process
        if self.many:
            into.extend(value if process is None else map(process, value))
        else:
            into.append(value if process is None else process(value))


@dataclass(frozen=True, slots=True)
class Form:
    """A statement for callers that give these values."""

    text: str
    slots: tuple[_Slot, ...]
    lists: tuple[str, ...]
    names: tuple[str, ...]  # Of the columns of its rows.
    processes: tuple[tuple[int, Callable[[Any], Any]], ...]

    def said(self, values: Values) -> str:
        if not self.lists:
            return self.text
        # A list without members stands for rows that there are not.
        return _LIST.sub(lambda found: ", ".join("?" * len(values[found[1]])) or "NULL", self.text)

    def bound(self, values: Values) -> list[Any]:
        into: list[Any] = []
        for slot in self.slots:
            slot.put(values, into)
        return into

    def read(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if not self.processes:
            return rows
        return [self._row(list(row)) for row in rows]

    def _row(self, row: list[Any]) -> tuple[Any, ...]:
        for at, process in self.processes:
            row[at] = process(row[at])
        return tuple(row)


class Prepared:
    """A statement that is built once. Values are given by name, those of an update's columns too."""

    def __init__(self, statement: sa.Executable) -> None:
        self.statement = statement
        self._forms: dict[tuple[str, ...], Form] = {}

    def form(self, dialect: sa.Dialect, values: Values) -> Form:
        """For SQLite."""
        keys = tuple(values)
        found = self._forms.get(keys)
        if found is None:
            found = self._forms[keys] = _formed(self.statement, dialect, keys)
        return found


def carried_out(driver: sqlite3.Connection, form: Form, given: Sequence[Values]) -> int:
    """For each of these values; how many rows were changed."""
    if len(given) == 1:
        return driver.execute(form.said(given[0]), form.bound(given[0])).rowcount
    assert not form.lists, "each of them would be another statement"
    return driver.executemany(form.text, [form.bound(each) for each in given]).rowcount


def answered(driver: sqlite3.Connection, form: Form, given: Sequence[Values]) -> list[tuple[Any, ...]]:
    """The rows of all of them."""
    rows: list[tuple[Any, ...]] = []
    for each in given:
        rows += driver.execute(form.said(each), form.bound(each)).fetchall()
    return form.read(rows)


def _formed(statement: sa.Executable, dialect: sa.Dialect, keys: tuple[str, ...]) -> Form:
    compiled = cast("sa.ClauseElement", statement).compile(dialect=dialect, column_keys=list(keys))
    assert isinstance(compiled, SQLCompiler)
    assert not compiled.insert_prefetch, "defaults of columns are for the caller to give"
    assert not compiled.update_prefetch, "defaults of columns are for the caller to give"
    slots = tuple(_slot(name, compiled.binds[name], name in keys, dialect) for name in compiled.positiontup or ())
    columns = _columns(statement)
    processes = [(at, _reader(kind, dialect)) for at, (_, kind) in enumerate(columns)]
    return Form(
        text=str(compiled),
        slots=slots,
        lists=tuple(each.name for each in slots if each.many),
        names=tuple(name for name, _ in columns),
        processes=tuple((at, process) for at, process in processes if process is not None),
    )


def _slot(name: str, bind: sa.BindParameter[Any], given: bool, dialect: sa.Dialect) -> _Slot:
    assert given or not bind.required, f"a value is missing: {name}"
    process = bind.type.dialect_impl(dialect).bind_processor(dialect)
    return _Slot(name, None if given else bind.effective_value, given, process, bind.expanding)


def _reader(kind: Any, dialect: sa.Dialect) -> _Process:
    return kind.dialect_impl(dialect).result_processor(dialect, None)


def _columns(statement: Any) -> list[tuple[str, Any]]:
    """Of the rows that it answers with: names and types."""
    if isinstance(statement, sa.Insert | sa.Update | sa.Delete):
        return [(each["name"], each["type"]) for each in statement.returning_column_descriptions]
    if isinstance(statement, sa.TextClause):
        return []  # Nothing is known of them: they stay as the driver has them.
    return [(each.key, each.type) for each in statement.selected_columns]
