"""Encode values to JSON and decode them. Decoding is strict, and the inverse of encoding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from qo.core.struct_preload import preload
from qo.core.task import FORMAT, Task
from qo.errors import CorruptRecord, UsageError

T = TypeVar("T")

DEPTH_MAX = (
    200  # Of lists and objects in a user's value. Fixed, so that every process can read what another writes.
)

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="sorted").encode
_decode_task = msgspec.json.Decoder(Task).decode
_decode_any = msgspec.json.Decoder().decode


class _Versioned(msgspec.Struct):
    format: int = FORMAT


preload(_Versioned)


def encode(value: Any) -> bytes:
    return _encode(value)


class Payload(NamedTuple):
    """A copy of a user's value as readers will see it, and its JSON."""

    value: Any
    body: bytes


def payload(value: Any, what: str) -> Payload:
    """Return the value and its JSON. Raises UsageError, which names it, if it has no JSON form or is nested too
    deeply."""
    try:
        body = _encode(value)
        back = _decode_any(body)
        if _too_deep(back, body):
            raise RecursionError
        # NaN and infinity would silently become null; sets and dates would come back as something else.
        if back != value and back != _lists(value):
            raise UsageError(f"{what} does not survive JSON: use only dict, list, str, int, float, bool and None")
    except RecursionError as error:
        raise UsageError(f"{what} is nested more than {DEPTH_MAX} levels deep, or contains itself") from error
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"{what} cannot be written as JSON: {error}") from error
    return Payload(back, body)


def copy_json(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    return value if value is None or isinstance(value, str | int | float) else _decode_any(_encode(value))


def _too_deep(value: Any, body: bytes) -> bool:
    if not isinstance(value, dict | list) or body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return False  # Each level has a bracket, so most values need no closer check.
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        level = [item for each in level for item in _items(each) if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _lists(value: Any) -> Any:
    """Return the value with its tuples as lists, as decoding returns them."""
    if isinstance(value, dict):
        return {name: _lists(item) for name, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_lists(item) for item in cast("list[Any]", value)]
    return value


def decode_json(body: bytes | str, what: str) -> Any:
    try:
        return _decode_any(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not valid JSON: {error}") from error


def decode_task(body: bytes, key: str) -> Task:
    return _decode(_decode_task, body, key)


def decode(kind: type[T], body: bytes, key: str) -> T:
    return _decode(msgspec.json.Decoder(kind).decode, body, key)


def _decode(decoder: Any, body: bytes, key: str) -> Any:
    try:
        value = decoder(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _refuse_newer(_format_of(body), key)
        raise CorruptRecord(
            f"{key} cannot be read: {error}. Look at its versions (`qo history`) and restore a good one."
        ) from error
    if isinstance(value, msgspec.Struct):  # Not a user's payload, whose "format" has another meaning.
        # Even if it can be decoded: its fields may have another meaning.
        _refuse_newer(getattr(value, "format", FORMAT), key)
    return value


def _format_of(body: bytes) -> int:
    try:
        return msgspec.json.decode(body, type=_Versioned).format
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return FORMAT


def _refuse_newer(written_format: int, key: str) -> None:
    if written_format > FORMAT:
        raise CorruptRecord(f"{key} has format {written_format}; this qo reads up to {FORMAT}. Upgrade qo.")


def fingerprint(value: Any) -> str:
    """Return a hash that is equal for equal JSON values, whatever the order of their keys."""
    return hashlib.sha256(_canonical(value)).hexdigest()
