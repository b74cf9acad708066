"""Expectations of single rows, as conditions on the columns of a frame. Whatever does not fit is said beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from qo.core.pipeline.expectation import Expectation
from qo.errors import UsageError

_TIMES = (DateType, TimestampType, TimestampNTZType)


def col(name: str) -> Column:
    """A column by its name, whatever characters that has."""
    return F.col("`" + name.replace("`", "``") + "`")


def wrong(expectation: Expectation, said: str) -> UsageError:
    return UsageError(f"the expectation {expectation.title!r} cannot be looked at: {said}")


def field_of(expectation: Expectation, name: str, schema: StructType, owner: str = "the output") -> StructField:
    """Raises UsageError for a column that is not there."""
    for each in schema:
        if each.name.lower() == name.lower():  # As Spark compares names.
            return each
    raise wrong(expectation, f"{owner} has no column {name!r}: it has {', '.join(schema.names)}")


def keys_of(
    expectation: Expectation, names: Iterable[str], schema: StructType, owner: str = "the output"
) -> list[StructField]:
    """Columns that can be compared with each other."""
    found = [field_of(expectation, each, schema, owner) for each in names]
    for each in found:
        if isinstance(each.dataType, MapType):
            raise wrong(expectation, f"{each.name!r} is a map, and maps cannot be compared")
    return found


def breaking(expectation: Expectation, schema: StructType) -> Column | None:
    """True for rows that break the expectation, and never for nulls. None: it is not about single rows."""
    if expectation.range is not None:
        return _outside(expectation, schema)
    if expectation.accepted is not None:
        field = field_of(expectation, expectation.accepted.column, schema)
        values = [_literal(expectation, value, field) for value in expectation.accepted.values]
        return ~col(field.name).isin(*values)
    if expectation.sql is not None:
        return ~F.expr(expectation.sql)
    return None


def moment(expectation: Expectation, name: str, schema: StructType) -> Column:
    """A date or timestamp in microseconds since 1970, UTC."""
    field = field_of(expectation, name, schema)
    if not isinstance(field.dataType, _TIMES):
        raise wrong(expectation, f"{name!r} is {field.dataType.simpleString()}, neither a date nor a timestamp")
    return F.unix_micros(col(field.name).cast("timestamp"))


def _outside(expectation: Expectation, schema: StructType) -> Column:
    given = expectation.range
    assert given is not None
    field = field_of(expectation, given.column, schema)
    sides: list[Column] = []
    if given.min is not None:
        sides.append(col(field.name) < _literal(expectation, given.min, field))
    if given.max is not None:
        sides.append(col(field.name) > _literal(expectation, given.max, field))
    return sides[0] if len(sides) == 1 else sides[0] | sides[1]


def _literal(expectation: Expectation, value: Any, field: StructField) -> Column:
    """A value to compare a column with. Spark would convert one that does not fit, row by row, and fail at the first
    that it cannot."""
    if not _fits(value, field.dataType):
        said = f"{field.name!r} is {field.dataType.simpleString()} and cannot be compared with {value!r}"
        raise wrong(expectation, said)
    return F.lit(value).cast(field.dataType) if isinstance(field.dataType, _TIMES) else F.lit(value)


def _fits(value: Any, type_: DataType) -> bool:
    if isinstance(value, bool):
        return isinstance(type_, BooleanType)
    if isinstance(value, int | float):
        return isinstance(type_, NumericType)
    if isinstance(type_, DateType):
        return _parses(date, value)
    if isinstance(type_, _TIMES):
        return _parses(datetime, value)
    return isinstance(type_, StringType)


def _parses(kind: type[date], text: str) -> bool:
    try:
        kind.fromisoformat(text)
    except ValueError:
        return False
    return True
