"""The columns of a dataset, and how they may change from one commit to the next.

A type is written as Spark writes it in JSON: a word such as ``"string"`` or ``"decimal(10,2)"``, or a mapping for
arrays, maps and structs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import msgspec

from qo.core.struct_preload import preload

_IGNORED = frozenset({"containsNull", "valueContainsNull", "nullable", "metadata"})


class Drift(StrEnum):
    """How a job may change the columns of its output."""

    FAIL = "fail"  # Not at all.
    ADD = "add"  # By adding new ones, which are null in older rows.


class Column(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: Any
    nullable: bool = True


preload(Column)


@dataclass(frozen=True, slots=True)
class Drifted:
    """The columns of a dataset after a commit."""

    columns: tuple[Column, ...]
    added: tuple[str, ...] = ()


def drift(
    current: Sequence[Column], new: Sequence[Column], policy: Drift, current_seen: int | None = None
) -> Drifted | list[str]:
    """Return the columns after a commit with ``new`` ones to a dataset that has ``current`` ones, or all problems.

    Neither order nor nullability matters. A dataset without columns takes any. ``current_seen``: the writer knew only
    the first so many; where columns may be added, it may lack those added since, which are null in its rows.
    """
    if repeated := _repeated_names(new):
        return [f"column {name!r} occurs twice: names are compared without regard to case" for name in repeated]
    if not current:
        return Drifted(tuple(new), tuple(each.name for each in new))
    before, after = {_key(each): each for each in current}, {_key(each): each for each in new}
    required = current if policy is Drift.FAIL or current_seen is None else current[:current_seen]
    wrong = [f"column {each.name!r} is missing" for each in required if _key(each) not in after]
    wrong += [
        f"column {before[key].name!r} was {_type_text(before[key].type)} and is {_type_text(each.type)}"
        for key, each in after.items()
        if key in before and _plain(before[key].type) != _plain(each.type)
    ]
    added = [each for key, each in after.items() if key not in before]
    if policy is Drift.FAIL:
        wrong += [f"column {each.name!r} is new" for each in added]
    return wrong or Drifted((*current, *added), tuple(each.name for each in added))


def refusal(current: Sequence[Column], new: Sequence[Column], policy: Drift, wrong: Sequence[str]) -> str:
    """Return the error message for a commit with such columns: all that is ``wrong``, and what can be done."""
    may_add = policy is not Drift.ADD and isinstance(drift(current, new, Drift.ADD), Drifted)
    ways = ["let the job make what it made before", *(["write 'drift: add' for new columns"] * may_add)]
    return f"the columns of the output have changed: {'; '.join(wrong)}; {', '.join(ways)}, or edit the job"


def describe_type(type_: Any) -> str:
    """Return a type as SQL writes it, such as array<struct<id: long>>."""
    if not isinstance(type_, dict):
        return str(type_)
    fields = cast("dict[str, Any]", type_)
    match fields.get("type"):
        case "array":
            return f"array<{describe_type(fields.get('elementType'))}>"
        case "map":
            return f"map<{describe_type(fields.get('keyType'))}, {describe_type(fields.get('valueType'))}>"
        case "struct":
            parts: list[dict[str, Any]] = fields.get("fields") or []
            members = [f"{each.get('name')}: {describe_type(each.get('type'))}" for each in parts]
            return f"struct<{', '.join(members)}>"
        case other:
            return str(other)


def columns_hash(columns: Sequence[Column]) -> str:
    """Return a hash that does not depend on the order of the columns."""
    ordered = sorted((_key(each), each.name, _json(_plain(each.type)).decode()) for each in columns)
    return hashlib.sha256(_json(ordered)).hexdigest()


def _key(column: Column) -> str:
    return column.name.lower()  # As Spark compares names.


def _repeated_names(columns: Sequence[Column]) -> list[str]:
    keys = [_key(each) for each in columns]
    return sorted({each.name for each in columns if keys.count(_key(each)) > 1})


def _plain(type_: Any) -> Any:
    """Return the type without nullability and metadata, which do not constrain its values."""
    if isinstance(type_, dict):
        parts = cast("dict[str, Any]", type_)
        return {key: _plain(value) for key, value in parts.items() if key not in _IGNORED}
    if isinstance(type_, list):
        return [_plain(each) for each in cast("list[Any]", type_)]
    return type_


def _type_text(type_: Any) -> str:
    return type_ if isinstance(type_, str) else _json(_plain(type_)).decode()


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
