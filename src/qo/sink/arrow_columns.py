"""The columns of Parquet files as columns of PostgreSQL: types, and values that COPY takes."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, cast

from qo.errors import UsageError

NAME_BYTES_MAX = 63  # PostgreSQL cuts longer ones.
REVISION = "_qo_revision"  # The column of the commit that a row comes from.

# From narrow to wide: a table takes values of an earlier type.
_WIDENING = (("smallint", "integer", "bigint", "numeric(20,0)"), ("real", "double precision"))

# The first test that holds counts, by the name of pyarrow's function.
_PLAIN: Sequence[tuple[str, str]] = (
    ("is_boolean", "boolean"),
    ("is_int8", "smallint"),
    ("is_int16", "smallint"),
    ("is_int32", "integer"),
    ("is_int64", "bigint"),
    ("is_uint8", "smallint"),
    ("is_uint16", "integer"),
    ("is_uint32", "bigint"),
    ("is_uint64", "numeric(20,0)"),
    ("is_float16", "real"),
    ("is_float32", "real"),
    ("is_float64", "double precision"),
    ("is_string", "text"),
    ("is_large_string", "text"),
    ("is_string_view", "text"),
    ("is_null", "text"),
    ("is_date", "date"),
    ("is_time", "time without time zone"),
    ("is_duration", "interval"),
    ("is_binary", "bytea"),
    ("is_large_binary", "bytea"),
    ("is_fixed_size_binary", "bytea"),
)
_NESTED = ("is_list", "is_large_list", "is_fixed_size_list", "is_struct", "is_map")


def column_types(schema: Any, file: str) -> dict[str, str]:
    """Return the types of PostgreSQL for the columns of an Arrow schema. Raises UsageError for one that has none."""
    types: dict[str, str] = {}
    for field in schema:
        if len(field.name.encode()) > NAME_BYTES_MAX:
            raise UsageError(
                f"the column {field.name!r} of {file} has a name of more than {NAME_BYTES_MAX} bytes, which "
                "PostgreSQL would cut: give it a shorter one"
            )
        if field.name == REVISION or field.name in types or not field.name:
            raise UsageError(f"the column {field.name!r} of {file} is reserved, unnamed or there twice: rename it")
        type_ = column_type(field.type)
        if type_ is None:
            raise UsageError(
                f"the column {field.name!r} of {file} is {field.type}, which PostgreSQL has no type for: "
                "let the job write another type, such as a string"
            )
        types[field.name] = type_
    return types


def column_type(type_: Any) -> str | None:
    """Return the type of PostgreSQL for one of Arrow; None if there is none."""
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

    is_: Any = cast("Any", pa).types
    if is_.is_dictionary(type_):
        return column_type(type_.value_type)
    if is_.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    if is_.is_timestamp(type_):
        return "timestamp without time zone" if type_.tz is None else "timestamp with time zone"
    if any(getattr(is_, test)(type_) for test in _NESTED):
        return "jsonb"
    return next((name for test, name in _PLAIN if getattr(is_, test)(type_)), None)


def find_missing(have: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that a table lacks. Raises UsageError for one that it has with a type that does not fit."""
    for name, type_ in new.items():
        if name in have and not _fits(have[name], type_):
            raise UsageError(
                f"the column {name!r} is {type_} in new data, and {have[name]} in the table: let the job write what "
                "it wrote before, or edit it, so that a new version makes everything again"
            )
    return {name: type_ for name, type_ in new.items() if name not in have}


def _fits(have: str, new: str) -> bool:
    if have == new:
        return True
    return any(have in order and new in order and order.index(new) <= order.index(have) for order in _WIDENING)


def rows(batch: Any) -> Iterable[Sequence[Any]]:
    """Yield the rows of a batch, with values that COPY takes."""
    columns = [_values(column) for column in batch.columns]
    return zip(*columns, strict=True) if columns else ([] for _ in range(batch.num_rows))


def _values(column: Any) -> Iterable[Any]:
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

    arrow: Any = pa
    type_ = column.type
    if arrow.types.is_dictionary(type_):
        return _values(column.dictionary_decode())
    if arrow.types.is_timestamp(type_):
        # PostgreSQL has microseconds; Python's own type has no more, either.
        column = column.cast(arrow.timestamp("us", type_.tz), safe=False)
    elif arrow.types.is_duration(type_):
        column = column.cast(arrow.duration("us"), safe=False)
    elif arrow.types.is_time64(type_):
        column = column.cast(arrow.time64("us"), safe=False)
    values = column.to_pylist()
    if column_type(type_) == "jsonb":
        plain = _map_of if arrow.types.is_map(type_) else json_value
        return [None if each is None else json.dumps(plain(each)) for each in values]
    return values


def _map_of(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    return {str(key): json_value(value) for key, value in pairs}


def json_value(value: Any) -> Any:
    """Return a nested value as JSON has it: no NaN, and bytes as base64."""
    kind = cast("type[Any]", type(value))
    convert = _CONVERSIONS.get(kind)
    if convert is not None:
        return convert(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


_CONVERSIONS: Mapping[type, Callable[[Any], Any]] = {
    dict: lambda value: {str(key): json_value(each) for key, each in value.items()},
    list: lambda value: [json_value(each) for each in value],
    tuple: lambda value: [json_value(each) for each in value],
    bytes: lambda value: base64.b64encode(value).decode(),
    datetime: lambda value: value.isoformat(),
    date: lambda value: value.isoformat(),
    time: lambda value: value.isoformat(),
    Decimal: str,
}
