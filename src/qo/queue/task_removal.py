"""Remove ended tasks for good: every version of them, and the large values that belong to them.

A task is removed by the ids of its versions, the latest last. So what was seen is removed and nothing else: a task that
is replayed meanwhile has a newer version, which stays, and only its history is shorter. Without its latest version, an
older one would be current again; that is why the others go first. Data goes after its task, since a task must never
refer to data that is gone. A process that dies midway leaves whole tasks, or data without a task, which the next round
removes.

In a bucket without versioning, objects are deleted by their ETag instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from qo.core import keys
from qo.core.retention import DATA_GRACE
from qo.core.task import Task
from qo.errors import ConcurrentWrite, PreconditionFailed
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import READS_AT_ONCE
from qo.store.port import DELETE_LIMIT_MAX, Deletion, ObjectStore, Version, VersionMark

# From so many tasks of a page on, one listing of all versions takes fewer requests than one for each task.
LIST_TOGETHER_FROM = 4
SAME_SECOND = timedelta(seconds=2)  # After so long, a new version has a later date, however dates are rounded.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task that is due, as it was read."""

    task: Task
    key: str
    etag: str
    version: str | None  # None: the bucket keeps no versions.


@dataclass(slots=True)
class Removal:
    """What was removed, and the requests that this took."""

    task_ids: frozenset[str] = frozenset()
    versions: int = 0
    bytes: int = 0
    changed: int = 0  # Tasks that somebody changed meanwhile; they stay.
    data: int = 0  # Objects beside tasks.
    orphans: int = 0  # Of these, objects whose task had been gone before.
    requests: int = 0


class VersionLister:
    """Lists the versions of all keys in a range, and counts its requests."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests = 0
        self.next_key = ""  # The first key behind the range that was listed last; AFTER_ALL: there is none.

    async def between(self, prefix: str, after: str, until: str) -> dict[str, list[Version]]:
        """Return the versions of the keys in (``after``, ``until``], newest first for each key."""
        histories: dict[str, list[Version]] = {}
        mark = VersionMark(after) if after else None
        while True:
            page = await self._store.list_versions(prefix, after=mark)
            self.requests += 1
            for key, version in page.entries:
                if key > until:
                    self.next_key = key
                    return histories
                histories.setdefault(key, []).append(version)
            if (mark := page.next) is None:
                self.next_key = keys.AFTER_ALL
                return histories


async def remove_tasks(store: ObjectStore, due: Sequence[Candidate], now: datetime) -> Removal:
    """Remove these tasks, which are in key order, unless they have changed since they were read."""
    removal = Removal()
    if not due:
        return removal
    if any(each.version is None for each in due):
        return await _remove_unversioned(store, due)
    histories = await _histories(store, due, removal)
    older: list[Deletion] = []
    latest: list[Deletion] = []
    removed: set[str] = set()
    for each in due:
        versions = histories.get(each.key, [])
        if not _is_unchanged(each, versions, now):
            removal.changed += 1
            continue
        removed.add(each.task.id)
        latest.append(Deletion(each.key, versions[0].version))
        older += [Deletion(each.key, version.version) for version in versions[1:]]
        removal.versions += len(versions)
        removal.bytes += sum(version.size for version in versions)
    for deletions in (older, latest):
        removal.requests += await _delete(store, deletions)
    removal.task_ids = frozenset(removed)
    return removal


def _is_unchanged(each: Candidate, versions: Sequence[Version], now: datetime) -> bool:
    """Whether the version that was read is the latest, and all others are older.

    Some servers list a version that is being written before it is the latest. It is then dated now: later than the one
    that was read, unless that is so recent that both have the same second.
    """
    if not versions or versions[0].version != each.version:
        return False
    read_at = versions[0].modified
    newest = max((version.modified for version in versions[1:]), default=read_at)
    return newest < read_at or (newest == read_at and (len(versions) == 1 or now - read_at >= SAME_SECOND))


async def _histories(
    store: ObjectStore, due: Sequence[Candidate], removal: Removal
) -> Mapping[str, Sequence[Version]]:
    if len(due) < LIST_TOGETHER_FROM:
        histories = await gather_cancellable(store.versions(each.key) for each in due)
        removal.requests += len(due)
        return {each.key: history for each, history in zip(due, histories, strict=True)}
    lister = VersionLister(store)
    # The first key itself belongs to the range: begin behind a key that sorts just before it.
    first = due[0].key.removesuffix("json")
    histories = await lister.between(keys.TASKS, first, due[-1].key)
    removal.requests += lister.requests
    return histories


async def _remove_unversioned(store: ObjectStore, due: Sequence[Candidate]) -> Removal:
    removal = Removal(requests=len(due), versions=len(due))
    removed: set[str] = set()

    async def remove(each: Candidate) -> None:
        with suppress(PreconditionFailed, ConcurrentWrite):
            await store.delete(each.key, if_match=each.etag)
            removed.add(each.task.id)

    for start in range(0, len(due), READS_AT_ONCE):
        await gather_cancellable(remove(each) for each in due[start : start + READS_AT_ONCE])
    removal.task_ids = frozenset(removed)
    removal.changed = len(due) - len(removed)
    return removal


async def remove_data(
    store: ObjectStore,
    histories: Mapping[str, Sequence[Version]],
    *,
    present: frozenset[str],
    purged: frozenset[str],
    now: datetime,
    dry_run: bool = False,
) -> Removal:
    """Remove data whose task is gone, except what was written within the last day.

    ``histories``: the versions of the keys under ``data/`` in some range. ``present``: the ids of tasks in that range
    that are known to be there. Of every other, the task is looked for again: it may have been created meanwhile, or
    replayed while it was being purged.
    """
    removal = Removal()
    by_task: dict[str, list[tuple[str, Version]]] = {}
    for key, versions in histories.items():
        task_id = keys.data_task_id(key)
        if task_id is None or task_id in present:
            continue
        old = [(key, version) for version in versions if version.modified < now - DATA_GRACE]
        if old:
            by_task.setdefault(task_id, []).extend(old)
    if by_task:
        unsure = {task_id: data[0][0] for task_id, data in by_task.items() if not dry_run or task_id not in purged}
        missing_ids = [*(set(by_task) - set(unsure)), *await _find_missing(store, unsure, removal)]
        old = [(task_id, key, version) for task_id in missing_ids for key, version in by_task[task_id]]
        removal.data = len({key for _, key, _ in old})
        removal.orphans = len({key for task_id, key, _ in old if task_id not in purged})
        removal.bytes = sum(version.size for _, _, version in old)
        if not dry_run:
            removal.requests += await _delete(store, [Deletion(key, version.version) for _, key, version in old])
    return removal


async def _find_missing(store: ObjectStore, data_keys: Mapping[str, str], removal: Removal) -> list[str]:
    """Return the ids whose task does not exist. ``data_keys``: a key of the data of each."""
    ids = list(data_keys)
    missing: list[str] = []
    for start in range(0, len(ids), READS_AT_ONCE):
        batch = ids[start : start + READS_AT_ONCE]
        task_keys = [keys.task(data_keys[task_id].split("/")[1], task_id) for task_id in batch]
        stored = await gather_cancellable(store.get(key) for key in task_keys)
        missing += [task_id for task_id, task in zip(batch, stored, strict=True) if task is None]
    removal.requests += len(ids)
    return missing


async def _delete(store: ObjectStore, deletions: Sequence[Deletion]) -> int:
    """Delete all of them, and return the number of requests."""
    starts = range(0, len(deletions), DELETE_LIMIT_MAX)
    for start in starts:
        await store.delete_many(deletions[start : start + DELETE_LIMIT_MAX])
    return len(starts)
