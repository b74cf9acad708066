"""Finding claimable tasks: the modes, and reading a page of index keys."""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import StrEnum
from typing import NamedTuple

from qo.core import keys


class IndexMode(StrEnum):
    """How a worker finds tasks.

    ``index-only`` trusts the ready index; ``hybrid`` also reads a page of task objects now and then, so that a
    task whose index key was lost is found before the sweeper comes by; ``log-scan`` reads task objects only.
    """

    INDEX_ONLY = "index-only"
    HYBRID = "hybrid"
    LOG_SCAN = "log-scan"


class Due(NamedTuple):
    """An index key whose minute has begun."""

    task_id: str
    key: str
    etag: str


def harvest(entries: Sequence[tuple[str, str]], *, minute: int, shards: Container[str]) -> list[Due]:
    """The due keys among ``(key, etag)`` entries of our shards, in the order listed."""
    due: list[Due] = []
    for key, etag in entries:
        parsed = keys.parse_index(key)
        if parsed is not None and parsed.minute <= minute and parsed.shard in shards:
            due.append(Due(parsed.task_id, key, etag))
    return due
