"""Find claimable tasks: the modes of discovery, and the due keys in a page of the index."""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import NamedTuple, Protocol

from qo.core import keys

STALE_AFTER = timedelta(seconds=10)  # Whoever moves a task has removed its old hint by then, or has died.


class IndexMode(StrEnum):
    """How a worker finds tasks.

    ``index-only`` trusts the ready index; ``hybrid`` also reads a page of task objects now and then, so that a
    task whose index key was lost is found before the sweeper comes by; ``log-scan`` reads task objects only.
    """

    INDEX_ONLY = "index-only"
    HYBRID = "hybrid"
    LOG_SCAN = "log-scan"


class UnknownTypes(StrEnum):
    """What a worker does with a task that it has no handler for."""

    LEAVE = "leave"  # Another worker may have one.
    FAIL = "fail"  # No worker has one: fail the task rather than let it wait for ever.


class Verdict(Enum):
    """Whether tasks of a type are for this worker."""

    TAKE = auto()
    LATER = auto()  # It has no room for them just now.
    PASS = auto()  # It does not run this type, or the type is paused.


class Due(NamedTuple):
    """A hint whose minute has begun, as it was listed. Written again, the same key has another ETag."""

    task_id: str
    key: str
    etag: str
    minute: int
    listed_at: datetime
    written_at: datetime
    due_minute: int  # Later than ``minute`` for an urgent task that was written before it was due.
    version: str | None = None


class Listed(Protocol):
    """An entry of a listing."""

    @property
    def key(self) -> str: ...
    @property
    def etag(self) -> str: ...
    @property
    def modified(self) -> datetime: ...


def due_entries(entries: Sequence[Listed], *, now: datetime, shards: Container[str]) -> list[Due]:
    """Return the due keys of the given shards, in the order listed."""
    minute = keys.minute_of(now)
    due: list[Due] = []
    for entry in entries:
        parsed = keys.parse_index(entry.key)
        if parsed is not None and max(parsed.minute, parsed.due_minute) <= minute and parsed.shard in shards:
            due.append(
                Due(parsed.task_id, entry.key, entry.etag, parsed.minute, now, entry.modified, parsed.due_minute)
            )
    return due


def share(segments: Sequence[str], rank: int, workers: int) -> frozenset[str]:
    """Return the segments that worker number ``rank`` of ``workers`` should list first.

    Adjacent ones, spread evenly, none left out; with more workers than segments, several share one.
    """
    count = len(segments)
    if workers > count:
        return frozenset({segments[rank % count]})
    return frozenset(segment for place, segment in enumerate(segments) if place * workers // count == rank)
