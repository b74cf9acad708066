"""The sweeper: makes the hints agree with the tasks, one page of tasks at a time.

Its cursor is an object in the bucket, moved by conditional write: it survives restarts, and several sweepers share one
round instead of each doing all of it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from qo.core import keys, wire
from qo.core.lifecycle import Expire, Lapse
from qo.core.shard import all_shards
from qo.core.sweep import (
    SweepCursor,
    drop_future,
    finish_page,
    is_lapsed,
    is_past_expiry,
    is_stuck,
    needs_reading,
    pages_per_sweep,
    pass_page,
    repair,
    take_page,
)
from qo.errors import CorruptRecord
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import READS_AT_ONCE, pages
from qo.queue.queue import Queue
from qo.queue.scan import Scan
from qo.queue.tasks import Snapshot
from qo.store import register
from qo.store.port import Entry

log = logging.getLogger(__name__)

READ_PAGES_MAX = 5  # A sweep ends when it has read the tasks of so many pages.


@dataclass(slots=True)
class SweepReport:
    """What a sweep did."""

    checked: int = 0
    restored: int = 0  # Hints that were missing.
    removed: int = 0  # Hints that were stale.
    expired: int = 0
    lapsed: int = 0
    corrupt: int = 0
    wrapped: bool = False  # The page was the last: the next sweep starts over.
    skipped: bool = False  # Another sweeper took the page, or did one recently.


class Sweeper:
    def __init__(self, queue: Queue, page_size: int = 1000) -> None:
        self._queue = queue
        self._page_size = page_size
        self._scan = Scan(queue.store, all_shards(queue.prefix_len), page_size)

    async def sweep(self, *, unless_within_s: float = 0.0, full: bool = False) -> SweepReport:
        """Check the next page of tasks and their hints, unless a page was swept within ``unless_within_s`` seconds.

        In a large queue several pages are checked, so that a round does not take longer the more tasks are kept.
        ``full``: also read tasks that need no second look.
        """
        report = SweepReport()
        stored = await self._queue.store.get(keys.SWEEP)
        cursor = SweepCursor() if stored is None else _decode_cursor(stored.body)
        cursor = drop_future(cursor, now=await self._queue.store.now())
        recent = timedelta(seconds=unless_within_s)
        if cursor.moved_at is not None and await self._queue.store.now() - cursor.moved_at < recent:
            return SweepReport(skipped=True)
        etag = None if stored is None else stored.etag
        shard_hints: dict[str, list[Entry]] = {}
        planned = take_page(cursor, now=await self._queue.store.now())
        for page in range(pages_per_sweep(planned, unless_within_s)):
            passes_first = is_stuck(cursor, unless_within_s, now=await self._queue.store.now())
            step = await self._sweep_page(cursor, etag, report, shard_hints, full=full, passes_first=passes_first)
            if step is None:
                report.skipped = page == 0
                break
            cursor, etag = step
            if report.wrapped or report.checked >= READ_PAGES_MAX * self._page_size:
                break
        return report

    async def _sweep_page(
        self,
        cursor: SweepCursor,
        etag: str | None,
        report: SweepReport,
        shard_hints: dict[str, list[Entry]],
        *,
        full: bool,
        passes_first: bool,
    ) -> tuple[SweepCursor, str | None] | None:
        """Sweep one page; return the cursor after it and its ETag, or None if another sweeper has moved it.

        ``passes_first``: move the cursor before the work as well, so that a page which ends sweepers does not stop all
        of them.
        """
        cursor = take_page(cursor, now=await self._queue.store.now())
        self._scan.after = cursor.after
        entries = await self._scan.page()
        until = self._scan.after
        passed = pass_page(cursor, until, now=await self._queue.store.now(), token=self._queue.ambient.token())
        if passes_first and (etag := await self._write(passed, etag)) is None:
            return None
        report.wrapped = until == ""
        hints = await self._hints_between(cursor.after, until, shard_hints)
        listed = {keys.task_id_of(entry.key): entry for entry in entries}
        unread = [task_id for task_id, entry in listed.items() if full or needs_reading(cursor, entry.modified)]
        ids = [task_id for task_id in dict.fromkeys([*unread, *hints]) if task_id is not None]
        for start in range(0, len(ids), READS_AT_ONCE):
            batch = ids[start : start + READS_AT_ONCE]
            await gather_cancellable(
                self._check(tid, listed.get(tid), hints.get(tid, {}), report) for tid in batch
            )
        finished = finish_page(passed, token=self._queue.ambient.token())
        etag = await self._write(finished, etag)  # If another has moved it, the round does not count as settled.
        return None if etag is None else (finished, etag)

    async def is_overdue(self, after_s: float) -> bool:
        """Whether no page was swept for so long."""
        stored = await self._queue.store.get(keys.SWEEP)
        now = await self._queue.store.now()
        moved_at = None if stored is None else drop_future(_decode_cursor(stored.body), now=now).moved_at
        return moved_at is None or now - moved_at > timedelta(seconds=after_s)

    async def _write(self, cursor: SweepCursor, etag: str | None) -> str | None:
        """Replace the cursor with that ETag, and return the new ETag; None if another sweeper was quicker."""
        body = wire.encode(cursor)
        wrote = await register.write(
            self._queue.store,
            keys.SWEEP,
            body,
            if_match=etag,
            ours=lambda body_there: body_there == body,
            ambient=self._queue.ambient,
        )
        return None if isinstance(wrote, register.Moved) else wrote.etag

    async def _hints_between(
        self, after: str, until: str, shard_hints: dict[str, list[Entry]]
    ) -> dict[str, dict[str, str]]:
        """Return, by task id, the index keys with their ETags of tasks whose keys are in (``after``, ``until``].

        ``shard_hints`` remembers the hints of a shard for further pages of the same sweep.
        """
        first, last = _shard(after), _shard(until)
        only_shard = first if first and first == last else ""
        if only_shard and only_shard in shard_hints:
            entries = shard_hints[only_shard]
        else:
            entries = [
                entry
                for prefix in (keys.READY, keys.LEASES, keys.WAITING)
                async for entry in self._list(prefix, first, last)
            ]
            entries += [entry async for page in pages(self._queue.store, keys.INBOX) for entry in page]
            shard_hints.clear()
            shard_hints[only_shard] = entries
        hints: dict[str, dict[str, str]] = defaultdict(dict)
        for entry in entries:
            parsed = keys.parse_inbox(entry.key) or keys.parse_index(entry.key)
            if parsed is None:
                continue
            if after < self._queue.tasks.key(parsed.task_id) <= (until or keys.AFTER_ALL):
                hints[parsed.task_id][entry.key] = entry.etag
        return hints

    async def _list(self, prefix: str, first: str, last: str) -> AsyncIterator[Entry]:
        """Yield the keys of an index from shard ``first`` to shard ``last``; empty: from the first, to the last."""
        async for entries in pages(self._queue.store, prefix, after=f"{prefix}{first}/" if first else ""):
            for entry in entries:
                yield entry
            if last and entries[-1].key > f"{prefix}{last}/{keys.AFTER_ALL}":
                break

    async def _check(
        self, task_id: str, entry: Entry | None, hints: Mapping[str, str], report: SweepReport
    ) -> None:
        """Expire or lapse one task if its time is up, then make its hints agree with it."""
        try:
            snapshot = await self._queue.tasks.load(task_id)
            if snapshot is not None:
                snapshot = await self._end(snapshot, report)
                if snapshot.task.waiting:
                    snapshot = await self._queue.followers.settle(snapshot)
        except CorruptRecord as error:
            report.corrupt += 1
            log.error("%s", error)
            return
        report.checked += 1
        if snapshot is not None and snapshot.task.ended and entry is not None and entry.etag == snapshot.etag:
            self._scan.settle(entry)
        needed = repair(None if snapshot is None else snapshot.task, hints, now=await self._queue.store.now())
        if needed.missing is not None and snapshot is not None:
            # Awaited before it is added: others add to the same report meanwhile.
            restored = await self._queue.hints.restore(needed.missing, snapshot.task.token)
            report.restored += restored
        for key in needed.stale:
            removed = await self._queue.hints.drop_stale(key, hints[key])
            report.removed += removed

    async def _end(self, snapshot: Snapshot, report: SweepReport) -> Snapshot:
        now = await self._queue.store.now()
        ambient = self._queue.ambient
        if is_past_expiry(snapshot.task, now):
            moved = await self._queue.tasks.apply(snapshot, Expire(ambient.token()))
            report.expired += isinstance(moved, Snapshot)
        elif is_lapsed(snapshot.task, now):
            # Normally the monitor has found it by the lease index long before.
            command = Lapse(ambient.token(), snapshot.task.lease_id, ambient.unit())
            moved = await self._queue.tasks.apply(snapshot, command)
            report.lapsed += isinstance(moved, Snapshot)
        else:
            return snapshot
        return moved if isinstance(moved, Snapshot) else snapshot


def _decode_cursor(body: bytes) -> SweepCursor:
    try:
        return wire.decode(SweepCursor, body, keys.SWEEP)
    except CorruptRecord:
        return SweepCursor()  # It is only a position: start over.


def _shard(task_key: str) -> str:
    return task_key.split("/")[1] if task_key else ""
