"""Values of a column that rows are ordered by: collected without loss, and moved back by a distance."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    DoubleType,
    FloatType,
    NumericType,
    TimestampNTZType,
    TimestampType,
)

from qo.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DAY_S = 86_400


def collectable(column: Column, type_: DataType) -> Column:
    """Return a value as it can be collected: Python's timestamps do not tell the two hours of a change of clocks."""
    return F.unix_micros(column) if isinstance(type_, TimestampType) else column


def literal_of(value: Any, type_: DataType) -> Column | None:
    """Return a collected value as a literal of its type; None if there is none, or it is no bound (NaN has no order in
    Python)."""
    if value is None or isinstance(type_, FloatType | DoubleType):
        return None
    if isinstance(type_, TimestampType):
        return F.timestamp_micros(F.lit(value))
    return F.lit(value.isoformat(sep=" ") if isinstance(value, datetime) else value).cast(type_)


def move_back(column: Column, distance: str, type_: DataType, name: str) -> Column:
    """Return the value that lies a distance before another. Raises UsageError for a distance that the type has not."""
    number, unit = (int(distance), "") if distance[-1].isdecimal() else (int(distance[:-1]), distance[-1])
    if isinstance(type_, NumericType) and not unit:
        return column - F.lit(number)
    if isinstance(type_, DateType) and unit and number * _SECONDS[unit] % _DAY_S == 0:
        return F.date_sub(column, number * _SECONDS[unit] // _DAY_S)
    if isinstance(type_, TimestampType | TimestampNTZType) and unit:
        return column - F.make_dt_interval(secs=F.lit(number * _SECONDS[unit]).cast("decimal(18,6)"))
    raise UsageError(
        f"'keep_deletes' is {distance}, and {name!r} is {type_.simpleString()}: write a number for numbers, days "
        "such as 30d for dates, a time such as 12h for timestamps; text has no distances"
    )
