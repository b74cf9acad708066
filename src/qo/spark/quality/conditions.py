"""Expectations about single rows as conditions on the columns of a frame, checked against its schema beforehand."""

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
from qo.core.pipeline.partition_span import PartitionSpan
from qo.errors import UsageError

_TIMES = (DateType, TimestampType, TimestampNTZType)


def col(name: str) -> Column:
    """Return a column by its name, whatever characters that has."""
    return F.col("`" + name.replace("`", "``") + "`")


def misfit(expectation: Expectation, reason: str) -> UsageError:
    """Return the error for an expectation that does not fit the data."""
    return UsageError(f"the expectation {expectation.title!r} cannot be checked: {reason}")


def field_of(expectation: Expectation, name: str, schema: StructType, owner: str = "the output") -> StructField:
    """Return a field by name. Raises UsageError if the schema has none."""
    for each in schema:
        if each.name.lower() == name.lower():  # As Spark compares names.
            return each
    raise misfit(expectation, f"{owner} has no column {name!r}: it has {', '.join(schema.names)}")


def keys_of(
    expectation: Expectation, names: Iterable[str], schema: StructType, owner: str = "the output"
) -> list[StructField]:
    """Return fields to compare rows by. Raises UsageError for a map, which cannot be compared."""
    fields = [field_of(expectation, each, schema, owner) for each in names]
    for each in fields:
        if isinstance(each.dataType, MapType):
            raise misfit(expectation, f"{each.name!r} is a map, and maps cannot be compared")
    return fields


def breaking_condition(
    expectation: Expectation, schema: StructType, span: PartitionSpan | None = None
) -> Column | None:
    """Return a condition that is true for rows that break the expectation, never for nulls; None if it is not about
    single rows."""
    if expectation.range is not None:
        return _outside_range(expectation, schema)
    if expectation.accepted is not None:
        field = field_of(expectation, expectation.accepted.column, schema)
        values = [_literal(expectation, value, field) for value in expectation.accepted.values]
        return ~col(field.name).isin(*values)
    if expectation.in_partition is not None and span is not None:
        return _outside_partition(expectation, expectation.in_partition, schema, span)
    if expectation.sql is not None:
        return ~F.expr(expectation.sql)
    return None


def _outside_partition(expectation: Expectation, name: str, schema: StructType, span: PartitionSpan) -> Column:
    field = field_of(expectation, name, schema)
    value = col(field.name)
    is_time = span.local_start is not None and span.local_end is not None
    if isinstance(field.dataType, NumericType) and not is_time:
        return (value < F.lit(span.start)) | (value >= F.lit(span.end))
    if isinstance(field.dataType, DateType) and is_time:
        return (value < F.lit(span.first_day)) | (value > F.lit(span.last_day))
    if isinstance(field.dataType, TimestampType) and is_time:
        micros = F.unix_micros(value)
        return (micros < F.lit(span.start * 1_000_000)) | (micros >= F.lit(span.end * 1_000_000))
    if isinstance(field.dataType, TimestampNTZType) and is_time:
        # Without a zone of their own, values are what the clocks of the partition's zone show.
        first, last = (F.lit(str(each)).cast("timestamp_ntz") for each in (span.local_start, span.local_end))
        return (value < first) | (value >= last)
    what = "a date or timestamp" if is_time else "a number"
    raise misfit(expectation, f"{name!r} is {field.dataType.simpleString()}, and not {what} as its partition is")


def epoch_micros(expectation: Expectation, name: str, schema: StructType) -> Column:
    """Return a date or timestamp in microseconds since 1970, UTC."""
    field = field_of(expectation, name, schema)
    if not isinstance(field.dataType, _TIMES):
        raise misfit(expectation, f"{name!r} is {field.dataType.simpleString()}, neither a date nor a timestamp")
    return F.unix_micros(col(field.name).cast("timestamp"))


def _outside_range(expectation: Expectation, schema: StructType) -> Column:
    bounds = expectation.range
    assert bounds is not None
    field = field_of(expectation, bounds.column, schema)
    sides: list[Column] = []
    if bounds.min is not None:
        sides.append(col(field.name) < _literal(expectation, bounds.min, field))
    if bounds.max is not None:
        sides.append(col(field.name) > _literal(expectation, bounds.max, field))
    return sides[0] if len(sides) == 1 else sides[0] | sides[1]


def _literal(expectation: Expectation, value: Any, field: StructField) -> Column:
    """Return a value to compare a column with. Raises UsageError for one of another type: Spark would convert it row by
    row, and fail at the first that it cannot."""
    if not _fits(value, field.dataType):
        reason = f"{field.name!r} is {field.dataType.simpleString()} and cannot be compared with {value!r}"
        raise misfit(expectation, reason)
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
