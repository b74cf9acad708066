"""Types of columns in Iceberg, from those that Spark writes in JSON, and the encoding of single values.

integer, short, byte   int          timestamp       timestamptz
decimal(10,2)          decimal(10, 2)               timestamp_ntz   timestamp
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

from qo.errors import UsageError

Allocate = Callable[[str], int]  # From the dotted path of a field to its id.

_PRIMITIVES = {
    "string": "string",
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "binary": "binary",
}
FLOATING = frozenset({"float", "double"})
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)\Z")
DEPTH_MAX = 30

TEXT_CHARS = 16  # Bounds of texts and bytes are no longer.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SURROGATES = range(0xD800, 0xE000)
_CODE_POINT_MAX = 0x10FFFF


def is_atomic(spark_type: Any) -> bool:
    """Whether a type has no fields within it."""
    return isinstance(spark_type, str)


def to_iceberg(spark_type: Any, path: str, allocate: Allocate, depth: int = 0) -> Any:
    """Return the Iceberg type, with ids for the fields within it. Raises UsageError for a type that Iceberg lacks."""
    if depth > DEPTH_MAX:
        raise UsageError(f"column {path.partition('.')[0]!r} has more than {DEPTH_MAX} types within each other")
    if isinstance(spark_type, str):
        return _primitive(spark_type, path)
    parts = cast("dict[str, Any]", spark_type) if isinstance(spark_type, dict) else {}
    match parts.get("type"):
        case "array":
            id_ = allocate(f"{path}.element")
            element = to_iceberg(parts.get("elementType"), f"{path}.element", allocate, depth + 1)
            return {"type": "list", "element-id": id_, "element": element, "element-required": False}
        case "map":
            key_id, value_id = allocate(f"{path}.key"), allocate(f"{path}.value")
            key = to_iceberg(parts.get("keyType"), f"{path}.key", allocate, depth + 1)
            value = to_iceberg(parts.get("valueType"), f"{path}.value", allocate, depth + 1)
            ids = {"key-id": key_id, "value-id": value_id}
            return {"type": "map", **ids, "key": key, "value": value, "value-required": False}
        case "struct":
            fields = cast("list[dict[str, Any]]", parts.get("fields") or [])
            return {"type": "struct", "fields": [_field(each, path, allocate, depth) for each in fields]}
        case _:
            raise _unknown(spark_type, path)


def _field(field: dict[str, Any], path: str, allocate: Allocate, depth: int) -> dict[str, Any]:
    inner = f"{path}.{field.get('name')}"
    id_ = allocate(inner)
    type_ = to_iceberg(field.get("type"), inner, allocate, depth + 1)
    return {"id": id_, "name": field.get("name"), "required": False, "type": type_}


def _primitive(spark_type: str, path: str) -> str:
    if spark_type in _PRIMITIVES:
        return _PRIMITIVES[spark_type]
    match = _DECIMAL.match(spark_type)
    if match is None or int(match[1]) > 38 or int(match[2]) < 0:
        raise _unknown(spark_type, path)
    return f"decimal({int(match[1])}, {int(match[2])})"


def _unknown(spark_type: Any, path: str) -> UsageError:
    return UsageError(f"column {path!r} has the type {spark_type!r}, which Iceberg does not have: cast it")


def encode_bound(value: Any, spark_type: Any, *, upper: bool) -> bytes | None:
    """Return a value that no value of a column is below, or above, as Iceberg encodes it; None if there is none.

    Floating-point numbers get none: a bound says nothing about NaN, which engines order differently.
    """
    match spark_type, value:
        case "boolean", bool():
            return bytes([value])
        case "byte" | "short" | "integer", int():
            return value.to_bytes(4, "little", signed=True)
        case "long", int():
            return value.to_bytes(8, "little", signed=True)
        case "date", date():
            return (value - _EPOCH.date()).days.to_bytes(4, "little", signed=True)
        case "timestamp" | "timestamp_ntz", datetime():
            moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return ((moment - _EPOCH) // _MICROSECOND).to_bytes(8, "little", signed=True)
        case "string", str():
            return _text_bound(value, upper=upper)
        case "binary", bytes():
            return _bytes_bound(value, upper=upper)
        case str(), Decimal():
            return _decimal_bound(value, spark_type)
        case _:
            return None


def decode_bound(bound: bytes, spark_type: Any) -> Any:
    """Return the value that ``encode_bound`` was given, or the shortened text; None for one that Python lacks."""
    try:
        match spark_type:
            case "boolean":
                return bool(bound[0])
            case "byte" | "short" | "integer" | "long":
                return int.from_bytes(bound, "little", signed=True)
            case "date":
                return _EPOCH.date() + timedelta(days=int.from_bytes(bound, "little", signed=True))
            case "timestamp":
                return _EPOCH + int.from_bytes(bound, "little", signed=True) * _MICROSECOND
            case "timestamp_ntz":
                return (_EPOCH + int.from_bytes(bound, "little", signed=True) * _MICROSECOND).replace(tzinfo=None)
            case "string":
                return bound.decode("utf-8", "replace")
            case "binary":
                return bound
            case str() if match := _DECIMAL.match(spark_type):
                unscaled = int.from_bytes(bound, "big", signed=True)
                return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -int(match[2])))
            case _:
                return None
    except (OverflowError, IndexError):
        return None


def is_shortened(bound: bytes, spark_type: Any) -> bool:
    """Whether a bound may be one of a longer text, of which only the beginning was kept."""
    match spark_type:
        case "string":
            return len(bound.decode("utf-8", "replace")) >= TEXT_CHARS
        case "binary":
            return len(bound) >= TEXT_CHARS
        case _:
            return False


def _text_bound(text: str, *, upper: bool) -> bytes | None:
    if len(text) <= TEXT_CHARS or not upper:
        return text[:TEXT_CHARS].encode("utf-8", "replace")
    for at in range(TEXT_CHARS - 1, -1, -1):
        following = ord(text[at]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _CODE_POINT_MAX:
            return (text[:at] + chr(following)).encode()
    return None


def _bytes_bound(body: bytes, *, upper: bool) -> bytes | None:
    if len(body) <= TEXT_CHARS or not upper:
        return body[:TEXT_CHARS]
    short = body[:TEXT_CHARS].rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1]) if short else None


def _decimal_bound(value: Decimal, spark_type: str) -> bytes | None:
    match = _DECIMAL.match(spark_type)
    if match is None or not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    shift = int(match[2]) + int(exponent)
    if shift < 0:
        return None
    unscaled = int("".join(map(str, digits))) * 10**shift * (-1 if sign else 1)
    return unscaled.to_bytes(
        (unscaled.bit_length() if unscaled >= 0 else (unscaled + 1).bit_length()) // 8 + 1, "big", signed=True
    )
