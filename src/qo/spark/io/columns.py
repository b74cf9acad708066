"""The columns of a frame, as datasets record them, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from qo.api.contract.task import ColumnBody
from qo.core.pipeline.columns import Column, Drift, Drifted, drift, refusal
from qo.errors import UsageError

# What every reader of Parquet understands the same. Others would be readable by some and not by the rest.
_PLAIN = re.compile(
    r"string|boolean|byte|short|integer|long|float|double|decimal\(\d+,\s*\d+\)|date|timestamp|timestamp_ntz|binary"
)
NAME_CHARS_MAX = 200


def columns_of(struct: StructType) -> list[Column]:
    return [Column(name=each.name, type=each.dataType.jsonValue(), nullable=each.nullable) for each in struct]


def struct_of(columns: Sequence[Column]) -> StructType:
    """What to read files with. Anything may be missing from older ones, so nothing is required.

    Raises UsageError for a type that is none of Spark's.
    """
    fields: list[dict[str, Any]] = [
        {"name": each.name, "type": each.type, "nullable": True, "metadata": {}} for each in columns
    ]
    try:
        return StructType.fromJson({"type": "struct", "fields": fields})
    except Exception as error:  # Whatever it makes of what somebody wrote by hand.
        named = ", ".join(f"{each.name}: {each.type}" for each in columns)
        raise UsageError(f"these are not columns as Spark writes them in JSON: {named} ({error})") from error


def bodies(columns: Sequence[Column]) -> list[ColumnBody]:
    return [ColumnBody(name=each.name, type=each.type, nullable=each.nullable) for each in columns]


def of_bodies(said: Sequence[ColumnBody] | None) -> list[Column]:
    return [Column(name=each.name, type=each.type, nullable=each.nullable) for each in said or ()]


def writable(struct: StructType) -> list[Column]:
    """The columns of what is about to be written. Raises UsageError for those that cannot be."""
    if not struct.fields:
        raise UsageError("the operator returned a frame without columns: select at least one")
    _refuse_doubled(struct)
    for each in struct:
        if not each.name or len(each.name) > NAME_CHARS_MAX:
            raise UsageError(f"column {each.name[:50]!r} needs a name of 1 to {NAME_CHARS_MAX} characters")
        if wrong := next(_unwritable(each.dataType), None):
            said = f"column {each.name!r} has the type {wrong}"
            raise UsageError(f"{said}, which files cannot hold for every reader: cast it, or leave it out")
    return columns_of(struct)


def _refuse_doubled(struct: StructType, within: str = "") -> None:
    """At any depth: Spark writes a struct with a field twice, and then nobody can read it."""
    seen: set[str] = set()
    for each in struct:
        if each.name.lower() in seen:
            place = f"in {within!r}" if within else "in the frame"
            raise UsageError(
                f"column {each.name!r} stands {place} twice (names are compared without regard to case): rename one"
            )
        seen.add(each.name.lower())
        for inner in _structs(each.dataType):
            _refuse_doubled(inner, f"{within}.{each.name}" if within else each.name)


def _structs(type_: DataType) -> Iterator[StructType]:
    """The outermost structs that a type is made of."""
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


def settled(known: Sequence[Column], new: Sequence[Column], policy: str) -> Drifted:
    """The columns of the dataset from now on. Raises UsageError for a change that the job does not allow."""
    after = drift(known, new, Drift(policy))
    if isinstance(after, list):
        raise UsageError(refusal(known, new, Drift(policy), after))
    return after


def _unwritable(type_: DataType) -> Iterator[str]:
    """The parts of a type that cannot be written, in Spark's words."""
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
            said: Any = type_.jsonValue()
            if not isinstance(said, str) or not _PLAIN.fullmatch(said):
                yield type_.simpleString()
