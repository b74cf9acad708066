"""What every part of the system can keep: text without NUL and half characters, numbers of 64 bits, no deep nesting.

PostgreSQL refuses NUL in a text, no encoder writes half of a surrogate pair, numbers beyond 64 bits come back as
others, and a value that is nested deeply enough ends whoever reads it. So they are named where they come in.
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
    """Where something is that cannot be kept, and what; None: there is no such thing."""
    return next(_describe_unstorable(value, "", 0), None)


def replace_unstorable(value: Any) -> Any:
    """The value with what cannot be kept replaced: for what only people read, where saying less is worse."""
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
