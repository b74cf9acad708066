"""Waiting tasks as the monitor sees them: those that nobody has told what they wait for are told now.

Normally whoever ends a task tells its dependents. This finds what a process left behind that died in between. A task
is read when its key is first seen, and again after a quarter of the time for which it has waited.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from qo.core import keys
from qo.core.commands import Expire
from qo.core.rhythm import DEFAULT_RHYTHM
from qo.core.sweep import is_past_expiry, repair
from qo.errors import CorruptRecord, Refused
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import READS_AT_ONCE, pages
from qo.queue.queue import Queue
from qo.queue.tasks import Snapshot
from qo.store.port import Deletion, Entry

log = logging.getLogger(__name__)

LIST_EVERY_S = DEFAULT_RHYTHM.waiting_s
SETTLED_WITHIN = timedelta(seconds=10)  # Whoever submits a task settles it itself.
AGE_SHARE = 0.25
READ_AGAIN_MAX = timedelta(hours=1)


class WaitingTasks:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._list_at = float("-inf")
        self._read_at: dict[str, datetime] = {}  # By key: when its task was last read.

    async def check(self) -> int:
        """Settle the waiting tasks that are to be read now. Return how many wait no longer."""
        monotonic = self._queue.ambient.monotonic
        if monotonic() < self._list_at:
            return 0
        now = await self._queue.store.now()
        listed: dict[str, Entry] = {}
        async for entries in pages(self._queue.store, keys.WAITING):
            listed.update({entry.key: entry for entry in entries if keys.parse_index(entry.key) is not None})
        self._list_at = monotonic() + LIST_EVERY_S
        self._read_at = {key: at for key, at in self._read_at.items() if key in listed}
        due = [entry for entry in listed.values() if self._is_due(entry, now)]
        settled = 0
        for start in range(0, len(due), READS_AT_ONCE):
            batch = due[start : start + READS_AT_ONCE]
            settled += sum(await gather_cancellable(self._examine(entry, now) for entry in batch))
        return settled

    def _is_due(self, entry: Entry, now: datetime) -> bool:
        if now - entry.modified < SETTLED_WITHIN:
            return False
        read_at = self._read_at.get(entry.key)
        rest = min(max((now - entry.modified) * AGE_SHARE, SETTLED_WITHIN), READ_AGAIN_MAX)
        return read_at is None or now - read_at >= rest

    async def _examine(self, entry: Entry, now: datetime) -> bool:
        parsed = keys.parse_index(entry.key)
        assert parsed is not None
        self._read_at[entry.key] = now
        queue = self._queue
        try:
            snapshot = await queue.tasks.load(parsed.task_id)
            if snapshot is not None and is_past_expiry(snapshot.task, now):
                moved = await queue.tasks.apply(snapshot, Expire(queue.ambient.token()))
                snapshot = moved if isinstance(moved, Snapshot) else snapshot
            elif snapshot is not None and snapshot.task.waiting:
                hint = Deletion(entry.key, etag=entry.etag)
                settled = await queue.followers.settle(snapshot._replace(hints=(hint,)))
                return not settled.task.waiting
            await self._remove_stale(entry, snapshot)
        except (CorruptRecord, Refused) as error:
            log.error("%s", error)
        return False

    async def _remove_stale(self, entry: Entry, snapshot: Snapshot | None) -> None:
        """Remove a key whose task waits no longer: whoever moved the task died before it did."""
        task = None if snapshot is None else snapshot.task
        needed = repair(task, [entry.key])
        if needed.missing is not None and task is not None:
            await self._queue.hints.restore(needed.missing, task.token)
        if entry.key in needed.stale and (
            task is None or not task.ended or await self._queue.followers.release(task)
        ):
            await self._queue.hints.drop_stale(entry.key, entry.etag)
