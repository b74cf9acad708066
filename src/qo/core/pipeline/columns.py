"""The columns of a dataset, and what may become of them from one commit to the next.

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

_SAYS_NOTHING = frozenset({"containsNull", "valueContainsNull", "nullable", "metadata"})


class Drift(StrEnum):
    """What a job may do to the columns of what it has made before."""

    FAIL = "fail"  # They stay as they are.
    ADD = "add"  # New ones may appear. Older rows have nothing in them.


class Column(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: Any
    nullable: bool = True


preload(Column)


@dataclass(frozen=True, slots=True)
class Drifted:
    """The columns from now on."""

    columns: tuple[Column, ...]
    added: tuple[str, ...] = ()


def drift(
    known: Sequence[Column], new: Sequence[Column], policy: Drift, seen: int | None = None
) -> Drifted | list[str]:
    """What a dataset that has ``known`` columns has after a commit with ``new`` ones, or everything that is wrong.

    Order means nothing, and neither does nullability: what a column holds, expectations say. Nothing known: anything
    goes. ``seen``: the writer knew the first so many; where columns may be added, it may lack those that were added
    since, and its rows have nothing in them.
    """
    if doubled := _doubled(new):
        return [
            f"column {name!r} stands there twice: names are compared without regard to case" for name in doubled
        ]
    if not known:
        return Drifted(tuple(new), tuple(each.name for each in new))
    before, after = {_key(each): each for each in known}, {_key(each): each for each in new}
    required = known if policy is Drift.FAIL or seen is None else known[:seen]
    wrong = [f"column {each.name!r} is missing" for each in required if _key(each) not in after]
    wrong += [
        f"column {before[key].name!r} was {_said(before[key].type)} and is {_said(each.type)}"
        for key, each in after.items()
        if key in before and _plain(before[key].type) != _plain(each.type)
    ]
    added = [each for key, each in after.items() if key not in before]
    if policy is Drift.FAIL:
        wrong += [f"column {each.name!r} is new" for each in added]
    return wrong or Drifted((*known, *added), tuple(each.name for each in added))


def refusal(known: Sequence[Column], new: Sequence[Column], policy: Drift, wrong: Sequence[str]) -> str:
    """What to tell whoever made such columns: all that is ``wrong``, and the ways out that there are."""
    may_add = policy is not Drift.ADD and isinstance(drift(known, new, Drift.ADD), Drifted)
    ways = ["let the job make what it made before", *(["write 'drift: add' for new columns"] * may_add)]
    return f"the columns of the output have changed: {'; '.join(wrong)}; {', '.join(ways)}, or edit the job"


def columns_hash(columns: Sequence[Column]) -> str:
    """The same for the same columns in any order."""
    ordered = sorted((_key(each), each.name, _json(_plain(each.type)).decode()) for each in columns)
    return hashlib.sha256(_json(ordered)).hexdigest()


def _key(column: Column) -> str:
    return column.name.lower()  # As Spark compares names.


def _doubled(columns: Sequence[Column]) -> list[str]:
    keys = [_key(each) for each in columns]
    return sorted({each.name for each in columns if keys.count(_key(each)) > 1})


def _plain(type_: Any) -> Any:
    """The type without what says nothing about values: nullability and metadata."""
    if isinstance(type_, dict):
        parts = cast("dict[str, Any]", type_)
        return {key: _plain(value) for key, value in parts.items() if key not in _SAYS_NOTHING}
    if isinstance(type_, list):
        return [_plain(each) for each in cast("list[Any]", type_)]
    return type_


def _said(type_: Any) -> str:
    return type_ if isinstance(type_, str) else _json(_plain(type_)).decode()


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
