"""Read many tasks by filter, or the whole history of one task."""

from __future__ import annotations

import heapq
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from qo.core import keys, wire
from qo.core.shard import shard_of, validate_shards
from qo.core.task import Status, Task
from qo.errors import CorruptRecord, NotFound, UsageError
from qo.queue.concurrency import gather_cancellable
from qo.store.port import LIST_LIMIT_MAX, Entry, ObjectStore

log = logging.getLogger(__name__)

READS_AT_ONCE = 32
# Ready hints that are searched for tasks that run already: those of attempts that have just begun. In a longer backlog,
# some of these are not found, unless every due task is read.
YOUNG_MAX = 1000
# Stores round the time of a change down to the second, and a task's own time is a guess at the store's clock.
ROUNDING = timedelta(seconds=2)
SCAN_MAX = 100_000  # Keys that `qo list` looks at: a hundred LISTs.
SCANNED_PER_READ = 10
_HEX = "0123456789abcdef"
INDEXES = {Status.PENDING: (keys.READY, keys.WAITING, keys.INBOX), Status.RUNNING: (keys.LEASES,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tasks are meant; all conditions must hold."""

    status: Status | None = None  # None: any but archived.
    task_type: str | None = None
    shard: str | None = None
    since: datetime | None = None  # Changed at or after.
    before: datetime | None = None  # Last changed before.
    error: str | None = None  # Part of the last error.

    def admits(self, task: Task) -> bool:
        return (
            (task.status is self.status if self.status is not None else task.status is not Status.ARCHIVED)
            and (self.task_type is None or task.task_type == self.task_type)
            and (self.since is None or task.updated_at >= self.since)
            and (self.before is None or task.updated_at < self.before)
            and (self.error is None or self.error in (task.last_error or ""))
        )

    def may_admit(self, modified: datetime) -> bool:
        """Whether a task whose object changed at this time has to be read."""
        return (self.since is None or modified >= self.since - ROUNDING) and (
            self.before is None or modified < self.before + ROUNDING
        )


def _identity(task: Task) -> Task:
    return task


class FoundTasks(NamedTuple):
    tasks: list[Task]  # Last changed first.
    complete: bool  # False: there are more keys than were looked at, so that newer tasks may be missing.


async def find(
    store: ObjectStore,
    prefix_len: int,
    criteria: Filter,
    limit: int,
    *,
    scan_max: int | None = None,
    young_max: int | None = YOUNG_MAX,
    reveal: Callable[[Task], Task] = _identity,
) -> FoundTasks:
    """Return up to ``limit`` tasks that match, last changed first. Stops reading once it has enough.

    ``scan_max``: list at most about so many keys, and read at most a tenth as many tasks. Beyond that, an evenly spread
    part of all tasks is looked at, and those that the indexes know. ``young_max``: how many due tasks are searched for
    running ones that have just begun; None: all.
    """
    if limit < 1:
        raise UsageError(f"the limit must be at least 1, not {limit}")
    if criteria.shard is not None:
        validate_shards((criteria.shard,), prefix_len)
    task_keys, complete = await _dated_keys(store, prefix_len, criteria, scan_max, young_max)
    reads_max = len(task_keys) if scan_max is None else max(limit, scan_max // SCANNED_PER_READ)
    matches: dict[str, Task] = {}  # By id: a stale hint beside a fresh one leads to the same task twice.
    for start in range(0, min(len(task_keys), reads_max), READS_AT_ONCE):
        tasks = await read_matching(store, criteria, task_keys[start : start + READS_AT_ONCE], reveal)
        matches.update({task.id: task for task in tasks})
        if len(matches) >= limit:
            break
    else:
        complete = complete and len(task_keys) <= reads_max
    tasks = sorted(matches.values(), key=lambda task: task.updated_at, reverse=True)[:limit]
    return FoundTasks(tasks, complete)


async def _dated_keys(
    store: ObjectStore, prefix_len: int, criteria: Filter, scan_max: int | None, young_max: int | None
) -> tuple[list[str], bool]:
    """Return the keys of tasks that may match, last changed first, and whether these are all."""
    dated, complete = await dated_keys(store, criteria, scan_max, young_max)
    task_keys = (task_key for _, key in dated if (task_key := task_key_of(key, prefix_len)) is not None)
    return list(dict.fromkeys(task_keys)), complete


async def dated_keys(
    store: ObjectStore, criteria: Filter, scan_max: int | None, young_max: int | None = YOUNG_MAX
) -> tuple[list[tuple[datetime, str]], bool]:
    """Return the listed keys of tasks that may match, with the time of their change, last changed first; and whether
    these are all.

    The listing has the time of each change, so that only as many tasks are read as needed. Active tasks are found
    through their index.
    """
    indexes = INDEXES.get(criteria.status or Status.ARCHIVED)
    entries, complete = list[Entry](), True
    for prefix in indexes or (keys.TASKS,):
        listed, is_whole = await _entries(store, prefix, criteria, scan_max)
        entries, complete = entries + listed, complete and is_whole
    if not complete and criteria.status is None:
        for prefix in (prefix for prefixes in INDEXES.values() for prefix in prefixes):
            entries += (await store.list(_prefix(prefix, criteria), limit=LIST_LIMIT_MAX)).entries
    # Hints keep the time at which they were written, which may be long before the last renewal.
    dated = [
        (e.modified, e.key)
        for e in entries
        if (indexes is not None or criteria.may_admit(e.modified)) and _is_in_shard(e.key, criteria)
    ]
    if criteria.status is Status.RUNNING:
        young, is_whole = await _first_ready(store, criteria.shard, young_max)
        dated, complete = dated + young, complete and is_whole
    dated.sort(reverse=True)
    return dated, complete


async def _entries(
    store: ObjectStore, prefix: str, criteria: Filter, scan_max: int | None
) -> tuple[list[Entry], bool]:
    """Return the entries under the prefix, up to about ``scan_max``, and whether these are all."""
    page = await store.list(_prefix(prefix, criteria), limit=LIST_LIMIT_MAX)
    if not page.truncated:
        return list(page.entries), True
    prefixes = _split(prefix, criteria)
    quota = None if scan_max is None else max(1, scan_max // len(prefixes))
    parts = await gather_cancellable(_part(store, each, quota) for each in prefixes)
    return [entry for entries, _ in parts for entry in entries], all(whole for _, whole in parts)


def _split(prefix: str, criteria: Filter) -> list[str]:
    """Return prefixes of about equal size that cover the given one: ids are random, and a shard is how they begin."""
    if prefix == keys.INBOX:
        return [prefix]
    if criteria.shard is None:
        return [f"{prefix}{character}" for character in _HEX]
    within = _prefix(prefix, criteria)
    return [f"{within}{criteria.shard}{character}" for character in _HEX] if prefix == keys.TASKS else [within]


async def _part(store: ObjectStore, prefix: str, quota: int | None) -> tuple[list[Entry], bool]:
    entries: list[Entry] = []
    after, truncated = "", True
    while truncated and (quota is None or len(entries) < quota):
        limit = LIST_LIMIT_MAX if quota is None else min(LIST_LIMIT_MAX, quota - len(entries))
        page = await store.list(prefix, start_after=after, limit=limit)
        entries += page.entries
        after, truncated = (entries[-1].key if entries else ""), page.truncated
    return entries, not truncated


def _prefix(prefix: str, criteria: Filter) -> str:
    # Inboxes are those of workers, not of shards.
    return prefix + (f"{criteria.shard}/" if criteria.shard is not None and prefix != keys.INBOX else "")


def _is_in_shard(key: str, criteria: Filter) -> bool:
    """Whether a listed key may be that of a task in the shard that is meant; only those of inboxes may not."""
    routed = keys.parse_inbox(key)
    return routed is None or routed.task_id.startswith(criteria.shard or "")


def task_key_of(key: str, prefix_len: int) -> str | None:
    """Return the key of the task that a listed key belongs to; None if it is foreign."""
    if key.startswith(keys.TASKS):
        return key
    if (routed := keys.parse_inbox(key)) is not None:
        return keys.task(shard_of(routed.task_id, prefix_len), routed.task_id)
    parsed = keys.parse_index(key)
    return None if parsed is None else keys.task(parsed.shard, parsed.task_id)


async def task_pages(
    store: ObjectStore, prefix_len: int, criteria: Filter, prefix: str, after: str, size: int
) -> AsyncIterator[list[tuple[str, str]]]:
    """Yield the keys of tasks that may match in batches, in key order, each with the key that it was listed by."""
    async for entries in pages(store, _prefix(prefix, criteria), after):
        listed = [
            (entry.key, task_key)
            for entry in entries
            if (prefix != keys.TASKS or criteria.may_admit(entry.modified))
            and _is_in_shard(entry.key, criteria)
            and (task_key := task_key_of(entry.key, prefix_len)) is not None
        ]
        for start in range(0, len(listed), size):
            yield listed[start : start + size]


async def read_matching(
    store: ObjectStore, criteria: Filter, task_keys: Sequence[str], reveal: Callable[[Task], Task] = _identity
) -> list[Task]:
    """Read these tasks and return those that match. ``reveal`` decrypts a task before it is compared."""
    tasks = [
        each for each in await gather_cancellable(read_task(store, key) for key in task_keys) if each is not None
    ]
    return [task for task in map(reveal, tasks) if criteria.admits(task)]


async def _first_ready(
    store: ObjectStore, shard: str | None, most: int | None
) -> tuple[list[tuple[datetime, str]], bool]:
    """Return the first due hints of claimable tasks, with when they were written, and whether these are all: attempts
    that have just begun have no lease hint yet."""
    minute, criteria = keys.minute_of(await store.now()), Filter(shard=shard)
    first, count = list[tuple[int, datetime, str]](), 0
    for prefix in (keys.READY, keys.INBOX):
        async for entries in pages(store, _prefix(prefix, criteria)):
            parsed = [(keys.parse_inbox(entry.key) or keys.parse_index(entry.key), entry) for entry in entries]
            due = [
                (p.minute, e.modified, e.key)
                for p, e in parsed
                if p is not None and _due_minute(p) <= minute and _is_in_shard(e.key, criteria)
            ]
            count += len(due)
            first = [*first, *due] if most is None else heapq.nsmallest(most, [*first, *due])
    return [(modified, key) for _, modified, key in first], len(first) == count


def _due_minute(parsed: keys.InboxKey | keys.IndexKey) -> int:
    return parsed.minute if isinstance(parsed, keys.InboxKey) else parsed.due_minute


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
