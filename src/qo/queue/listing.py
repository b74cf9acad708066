"""Read many tasks by filter, or the whole history of one task."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from qo.core import keys, wire
from qo.core.shard import validate_shards
from qo.core.task import Status, Task
from qo.errors import CorruptRecord, NotFound, UsageError
from qo.queue.concurrency import gather_cancellable
from qo.store.port import LIST_LIMIT_MAX, Entry, ObjectStore

log = logging.getLogger(__name__)

READS_AT_ONCE = 32
# Stores round the time of a change down to the second, and a task's own time is a guess at the store's clock.
ROUNDING = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    status: Status | None = None
    task_type: str | None = None
    shard: str | None = None
    since: datetime | None = None  # Changed at or after.

    def admits(self, task: Task) -> bool:
        return (
            (task.status is self.status if self.status is not None else task.status is not Status.ARCHIVED)
            and (self.task_type is None or task.task_type == self.task_type)
            and (self.since is None or task.updated_at >= self.since)
        )


async def find(store: ObjectStore, prefix_len: int, criteria: Filter, limit: int) -> list[Task]:
    """Return up to ``limit`` tasks that match, last changed first. Stops reading once it has enough."""
    if limit < 1:
        raise UsageError(f"the limit must be at least 1, not {limit}")
    if criteria.shard is not None:
        validate_shards((criteria.shard,), prefix_len)
    matches: dict[str, Task] = {}  # By id: a stale hint beside a fresh one leads to the same task twice.
    async for batch in _task_keys(store, criteria):
        tasks = await gather_cancellable(read_task(store, key) for key in batch)
        matches.update({task.id: task for task in tasks if task is not None and criteria.admits(task)})
        if len(matches) >= limit:
            break
    return sorted(matches.values(), key=lambda task: task.updated_at, reverse=True)[:limit]


async def _task_keys(store: ObjectStore, criteria: Filter) -> AsyncIterator[list[str]]:
    """Yield the keys of tasks that may match, in batches, last changed first.

    The listing has the time of each change, so that only as many tasks are read as needed. Active tasks are found
    through their index.
    """
    index = {Status.PENDING: keys.READY, Status.RUNNING: keys.LEASES}.get(criteria.status or Status.ARCHIVED)
    prefix = (index or keys.TASKS) + (f"{criteria.shard}/" if criteria.shard is not None else "")
    oldest = None if index or criteria.since is None else criteria.since - ROUNDING
    dated: list[tuple[datetime, str]] = []
    async for entries in pages(store, prefix):
        dated += [(e.modified, e.key) for e in entries if oldest is None or e.modified >= oldest]
    dated.sort(reverse=True)
    task_keys = [key for _, key in dated]
    if index is not None:
        parsed = [keys.parse_index(key) for key in task_keys]
        task_keys = [keys.task(p.shard, p.task_id) for p in parsed if p is not None]
    for start in range(0, len(task_keys), READS_AT_ONCE):
        yield task_keys[start : start + READS_AT_ONCE]


async def pages(store: ObjectStore, prefix: str, after: str = "") -> AsyncIterator[Sequence[Entry]]:
    """Yield every entry under a prefix after ``after``, page by page; no page is empty."""
    while True:
        page = await store.list(prefix, start_after=after, limit=LIST_LIMIT_MAX)
        if page.entries:
            yield page.entries
        if not page.truncated or not page.entries:
            return
        after = page.entries[-1].key


async def read_task(store: ObjectStore, key: str) -> Task | None:
    stored = await store.get(key)
    try:
        return None if stored is None else wire.decode_task(stored.body, key)
    except CorruptRecord as error:
        log.error("%s", error)  # One broken object must not hide all the others.
        return None


async def history(store: ObjectStore, key: str, task_id: str) -> list[Task]:
    """Return the task in each of its versions, oldest first. Raises NotFound."""
    versions = [v for v in await store.versions(key) if not v.deleted]
    if not versions:
        raise NotFound(f"there is no task {task_id} in this queue")
    states: list[Task] = []
    for start in range(0, len(versions), READS_AT_ONCE):
        batch = versions[start : start + READS_AT_ONCE]
        bodies = await gather_cancellable(store.get(key, version=v.version) for v in batch)
        states += [wire.decode_task(stored.body, key) for stored in bodies if stored is not None]
    states.reverse()
    return states
