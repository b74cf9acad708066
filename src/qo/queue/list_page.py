"""Tasks by filter, a page at a time: last changed first, continued by a cursor."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import NamedTuple

from qo.core import wire
from qo.core.shard import validate_shards
from qo.core.task import Task
from qo.errors import UsageError
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import READS_AT_ONCE, SCAN_MAX, Filter, dated_keys, read_task, task_key_of
from qo.store.port import ObjectStore

PAGE_MAX = 1_000
READS_MAX = 1_000  # Tasks that are read for one page at most.


class Position(NamedTuple):
    """A place in the listing: when an object was last changed, as the store lists it, and its key."""

    modified: datetime
    key: str


class TaskPage(NamedTuple):
    tasks: list[Task]
    next: str | None  # The cursor of the following page; None: there is none.
    complete: bool  # False: there are more keys than were looked at, so that some tasks are on no page.
    reads: int = 0  # How many tasks were read for it.


async def read_page(
    store: ObjectStore,
    prefix_len: int,
    criteria: Filter,
    limit: int,
    after: str | None = None,
    *,
    scan_max: int = SCAN_MAX,
) -> TaskPage:
    """Return up to ``limit`` tasks that match, in the order of the store's listing, last changed first.

    A page may have fewer tasks, or none, and yet be followed by another: READS_MAX bounds what is read for it, and
    ``scan_max`` what is listed. A task that changes between two pages moves to the front, so it may be listed again, or
    no longer: list from the beginning to see it. Raises UsageError for a cursor that is none.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"the limit must be between 1 and {PAGE_MAX:,}, not {limit}")
    if criteria.shard is not None:
        validate_shards((criteria.shard,), prefix_len)
    dated, complete = await dated_keys(store, criteria, scan_max)
    positions = [Position(*each) for each in dated]
    if after is not None:
        start = _decode(after)
        positions = [each for each in positions if each < start]
    tasks: dict[str, Task] = {}  # By id: a stale hint beside a fresh one leads to the same task twice.
    reads = 0
    while reads < min(len(positions), READS_MAX) and len(tasks) < limit:
        batch = positions[reads : reads + min(READS_AT_ONCE, READS_MAX - reads)]
        for task in await gather_cancellable(_read(store, prefix_len, each.key) for each in batch):
            reads += 1
            if task is not None and criteria.admits(task):
                tasks.setdefault(task.id, task)
            if len(tasks) == limit:
                break
    following = _encode(positions[reads - 1]) if reads < len(positions) else None
    return TaskPage(list(tasks.values()), following, complete, reads)


async def _read(store: ObjectStore, prefix_len: int, key: str) -> Task | None:
    task_key = task_key_of(key, prefix_len)
    return None if task_key is None else await read_task(store, task_key)


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
