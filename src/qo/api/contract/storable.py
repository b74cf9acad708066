"""Which values every part of the system can store: no NUL, lone surrogates, numbers beyond 64 bits or deep nesting.

PostgreSQL refuses NUL in text, encoders refuse lone surrogates, numbers beyond 64 bits come back changed, and deep
nesting overflows the stack of the reader. So such values are refused when they arrive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, cast

DEPTH_MAX = 64
NUMBER_MAX = 2**63 - 1

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "�"


def find_unstorable(value: Any) -> str | None:
    """Describe the first value that cannot be stored, with its place; None if all can."""
    return next(_describe_unstorable(value, "", 0), None)


def replace_unstorable(value: Any) -> Any:
    """Return the value with everything unstorable replaced, for fields that only people read."""
    return _replace_unstorable(value, 0)


def is_storable(text: str) -> bool:
    return _UNSTORABLE.search(text) is None


def _describe_unstorable(value: Any, place: str, depth: int) -> Iterator[str]:
    match value:
        case str() if not is_storable(value):
            yield f"{place or 'the text'} holds a NUL or half of a character: remove it"
        case float() if not isfinite(value):
            yield f"{place or 'the number'} is no finite number: leave it out, or send it as a text"
        case int() if not -NUMBER_MAX <= value <= NUMBER_MAX:
            yield f"{place or 'the number'} is beyond 64 bits: send it as a text"
        case dict() | list() if depth >= DEPTH_MAX:
            yield f"there are more than {DEPTH_MAX} levels: send less deeply nested values"
        case dict() | list():
            yield from _describe_unstorable_members(cast("dict[Any, Any] | list[Any]", value), place, depth)
        case _:
            pass


def _describe_unstorable_members(value: dict[Any, Any] | list[Any], place: str, depth: int) -> Iterator[str]:
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(name, str) and not is_storable(name):
            yield f"a name in {place or 'the body'} holds a NUL or half of a character: remove it"
        else:
            yield from _describe_unstorable(each, f"{place}.{name}" if place else str(name), depth + 1)


def _replace_unstorable(value: Any, depth: int) -> Any:
    match value:
        case str():
            return _UNSTORABLE.sub(_REPLACEMENT, value)
        case float():
            return value if isfinite(value) else str(value)
        case int():
            return value if -NUMBER_MAX <= value <= NUMBER_MAX else f"{value:#x}"
        case Mapping() | list() | tuple() if depth >= DEPTH_MAX:
            return "…"
        case Mapping():
            members = cast("Mapping[Any, Any]", value).items()
            return {
                _replace_unstorable(name, depth + 1): _replace_unstorable(each, depth + 1)
                for name, each in members
            }
        case list() | tuple():
            return [_replace_unstorable(each, depth + 1) for each in cast("list[Any]", value)]
        case _:
            return value
