"""Tasks by filter, a page at a time: last changed first, continued by a cursor."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import NamedTuple

from qo.core import keys, wire
from qo.core.shard import validate_shards
from qo.core.task import Status, Task
from qo.errors import UsageError
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import INDEXES, READS_AT_ONCE, ROUNDING, Filter, pages, read_task
from qo.store.port import ObjectStore

PAGE_MAX = 1_000


class Position(NamedTuple):
    """A place in the listing: when an object was last changed, as the store lists it, and its key."""

    modified: datetime
    key: str


class TaskPage(NamedTuple):
    tasks: list[Task]
    next: str | None  # The cursor of the following page; None: there is none.


async def read_page(
    store: ObjectStore, prefix_len: int, criteria: Filter, limit: int, after: str | None = None
) -> TaskPage:
    """Return up to ``limit`` tasks that match, in the order of the store's listing, last changed first.

    A task that changes between two pages moves to the front, so it may be listed again, or no longer: list from the
    beginning to see it. Raises UsageError for a cursor that is none.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"the limit must be between 1 and {PAGE_MAX:,}, not {limit}")
    if criteria.shard is not None:
        validate_shards((criteria.shard,), prefix_len)
    tasks: dict[str, Task] = {}
    last = None if after is None else _decode(after)
    async for position, task in _matching(store, criteria, last, limit):
        if last is not None and len(tasks) == limit and task.id not in tasks:
            return TaskPage(list(tasks.values()), _encode(last))
        tasks.setdefault(task.id, task)
        last = position
    return TaskPage(list(tasks.values()), None)


async def _matching(
    store: ObjectStore, criteria: Filter, after: Position | None, limit: int
) -> AsyncIterator[tuple[Position, Task]]:
    positions = await _list_positions(store, criteria)
    positions = [each for each in positions if after is None or each < after]
    positions.sort(reverse=True)
    at_once = min(READS_AT_ONCE, limit + 1)
    for start in range(0, len(positions), at_once):
        batch = positions[start : start + at_once]
        tasks = await gather_cancellable(read_task(store, _task_key(each.key)) for each in batch)
        for position, task in zip(batch, tasks, strict=True):
            if task is not None and criteria.admits(task):
                yield position, task


async def _list_positions(store: ObjectStore, criteria: Filter) -> list[Position]:
    """Active tasks are listed through their index, all others by their objects."""
    indexes = INDEXES.get(criteria.status or Status.ARCHIVED)
    within = f"{criteria.shard}/" if criteria.shard is not None else ""
    oldest = None if indexes or criteria.since is None else criteria.since - ROUNDING
    return [
        Position(entry.modified, entry.key)
        for prefix in indexes or (keys.TASKS,)
        async for entries in pages(store, prefix + within)
        for entry in entries
        if (oldest is None or entry.modified >= oldest)
        and (indexes is None or keys.parse_index(entry.key) is not None)
    ]


def _task_key(key: str) -> str:
    parsed = keys.parse_index(key)
    return key if parsed is None else keys.task(parsed.shard, parsed.task_id)


def _encode(position: Position) -> str:
    text = wire.encode([position.modified.astimezone(UTC).isoformat(), position.key])
    return urlsafe_b64encode(text).decode().rstrip("=")


def _decode(cursor: str) -> Position:
    try:
        value = wire.decode_json(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), "the cursor")
        modified, key = datetime.fromisoformat(value[0]), value[1]
        if modified.tzinfo is None or not isinstance(key, str):
            raise ValueError
    except (binascii.Error, ValueError, TypeError, LookupError, UsageError):
        raise UsageError("that is no cursor: pass the next of the page before, or leave it out") from None
    return Position(modified, key)
