"""Shards: tasks are spread by the first hex characters of their id."""

from __future__ import annotations

import re
from functools import cache

from qo.core.words import quote
from qo.errors import UsageError

PREFIX_LEN_MAX = 4
_TASK_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")


def validate_prefix_len(prefix_len: int) -> int:
    if not 1 <= prefix_len <= PREFIX_LEN_MAX:
        raise UsageError(f"shard prefix length must be 1 to {PREFIX_LEN_MAX}, not {prefix_len}")
    return prefix_len


def shard_of(task_id: str, prefix_len: int) -> str:
    return task_id[:prefix_len]


def count(prefix_len: int) -> int:
    return 16**prefix_len


@cache
def all_shards(prefix_len: int) -> tuple[str, ...]:
    """Every shard in key order: 16, 256, 4,096 or 65,536 of them."""
    return tuple(f"{n:0{prefix_len}x}" for n in range(count(prefix_len)))


def validate_shards(shards: tuple[str, ...], prefix_len: int) -> tuple[str, ...]:
    """Return the shards in key order without repeats. Raises UsageError for one that cannot exist."""
    for shard in shards:
        if not re.fullmatch(rf"[0-9a-f]{{{prefix_len}}}", shard):
            raise UsageError(
                f"{quote(shard)} is not a shard of this queue: a shard is {prefix_len} lower-case hex "
                f"character{'s' if prefix_len > 1 else ''}, for example {'a' * prefix_len!r}"
            )
    return tuple(sorted(set(shards)))


def validate_task_id(text: str) -> str:
    """Return the id in its canonical form. Raises UsageError. Every id that becomes part of a key is checked here."""
    lowered = text.strip().lower()
    if not _TASK_ID.match(lowered):
        raise UsageError(f"{quote(text)} is not a task id; a task id is a UUID as printed by `qo submit`")
    return lowered


def chosen_shards(shards: tuple[str, ...], prefix_len: int) -> tuple[str, ...]:
    """Return the given shards, validated, or all if none are given."""
    return validate_shards(shards, prefix_len) if shards else all_shards(prefix_len)
