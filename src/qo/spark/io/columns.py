"""Converts between the columns of a frame and those that datasets record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from qo.api.contract.task import ColumnBody
from qo.core.pipeline.columns import Column, Drift, Drifted, drift, refusal
from qo.errors import UsageError

# The types that every reader of Parquet understands in the same way.
_PORTABLE = re.compile(
    r"string|boolean|byte|short|integer|long|float|double|decimal\(\d+,\s*\d+\)|date|timestamp|timestamp_ntz|binary"
)
NAME_CHARS_MAX = 200


def columns_of(struct: StructType) -> list[Column]:
    return [Column(name=each.name, type=each.dataType.jsonValue(), nullable=each.nullable) for each in struct]


def struct_of(columns: Sequence[Column]) -> StructType:
    """Return the schema to read files with. Older files may lack any column, so all are nullable.

    Raises UsageError for a type that Spark does not have.
    """
    fields: list[dict[str, Any]] = [
        {"name": each.name, "type": each.type, "nullable": True, "metadata": {}} for each in columns
    ]
    try:
        return StructType.fromJson({"type": "struct", "fields": fields})
    except Exception as error:  # Somebody may have written the type by hand.
        listed = ", ".join(f"{each.name}: {each.type}" for each in columns)
        raise UsageError(f"these are not columns as Spark writes them in JSON: {listed} ({error})") from error


def column_bodies(columns: Sequence[Column]) -> list[ColumnBody]:
    return [ColumnBody(name=each.name, type=each.type, nullable=each.nullable) for each in columns]


def columns_from_bodies(bodies: Sequence[ColumnBody] | None) -> list[Column]:
    return [Column(name=each.name, type=each.type, nullable=each.nullable) for each in bodies or ()]


def writable_columns(struct: StructType) -> list[Column]:
    """Return the columns of a frame that is to be written. Raises UsageError for one that cannot be."""
    if not struct.fields:
        raise UsageError("the operator returned a frame without columns: select at least one")
    _check_duplicates(struct)
    for each in struct:
        if not each.name or len(each.name) > NAME_CHARS_MAX:
            raise UsageError(f"column {each.name[:50]!r} needs a name of 1 to {NAME_CHARS_MAX} characters")
        if wrong := next(_unwritable(each.dataType), None):
            subject = f"column {each.name!r} has the type {wrong}"
            raise UsageError(f"{subject}, which files cannot hold for every reader: cast it, or leave it out")
    return columns_of(struct)


def _check_duplicates(struct: StructType, within: str = "") -> None:
    """Raise UsageError for a name that occurs twice at any depth: Spark would write it, and nobody could read it."""
    names: set[str] = set()
    for each in struct:
        if each.name.lower() in names:
            place = f"in {within!r}" if within else "in the frame"
            raise UsageError(
                f"column {each.name!r} is {place} twice (names are compared without regard to case): rename one"
            )
        names.add(each.name.lower())
        for inner in _structs(each.dataType):
            _check_duplicates(inner, f"{within}.{each.name}" if within else each.name)


def _structs(type_: DataType) -> Iterator[StructType]:
    """Yield the outermost structs within a type."""
    match type_:
        case StructType():
            yield type_
        case ArrayType():
            yield from _structs(type_.elementType)
        case MapType():
            yield from _structs(type_.keyType)
            yield from _structs(type_.valueType)
        case _:
            pass


def merge_columns(current: Sequence[Column], new: Sequence[Column], policy: str) -> Drifted:
    """Return the columns of the dataset after a commit. Raises UsageError for a change that the job does not allow."""
    after = drift(current, new, Drift(policy))
    if isinstance(after, list):
        raise UsageError(refusal(current, new, Drift(policy), after))
    return after


def _unwritable(type_: DataType) -> Iterator[str]:
    """Yield the parts of a type that cannot be written, as Spark names them."""
    match type_:
        case ArrayType():
            yield from _unwritable(type_.elementType)
        case MapType():
            yield from _unwritable(type_.keyType)
            yield from _unwritable(type_.valueType)
        case StructType():
            for each in type_:
                yield from _unwritable(each.dataType)
        case _:
            name: Any = type_.jsonValue()
            if not isinstance(name, str) or not _PORTABLE.fullmatch(name):
                yield type_.simpleString()
