"""The purger: goes over the tasks of a queue, a page at a time, and removes those that were kept long enough.

Its cursor is an object in the bucket, moved by conditional write after a page is done: a round survives restarts, a
page that was interrupted is done again, and of several purgers one gets on. A page is one LIST of tasks. Tasks are read
only as far as ``core.retention`` asks for it, and ``queue.task_removal`` removes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from qo.core import keys, wire
from qo.core.retention import (
    ROUND_EVERY,
    Allowance,
    Policy,
    PurgeCursor,
    advance,
    is_due,
    may_be_due,
    next_round,
)
from qo.core.sweep import drop_future
from qo.core.task import Status, Task
from qo.core.waits import flow_of
from qo.errors import CorruptRecord
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import READS_AT_ONCE
from qo.queue.queue import Queue
from qo.queue.task_removal import Candidate, VersionLister, remove_data, remove_tasks
from qo.store import register
from qo.store.port import LIST_LIMIT_MAX, Entry

log = logging.getLogger(__name__)

EXAMPLES_MAX = 5


@dataclass(slots=True)
class PurgeReport:
    """What a purge did, or would do."""

    listed: int = 0
    read: int = 0
    purged: Counter[tuple[str, Status]] = field(default_factory=Counter[tuple[str, Status]])  # By type and status.
    versions: int = 0
    data: int = 0  # Objects with large inputs and outputs.
    orphans: int = 0  # Among them those whose task had been gone before.
    bytes: int = 0
    changed: int = 0  # Due, but changed by somebody else before they could be removed.
    corrupt: int = 0  # Tasks that cannot be read; they stay.
    requests: int = 0
    wrapped: bool = False  # The round is complete.
    skipped: bool = False  # Another purger has done the page.
    examples: list[Task] = field(default_factory=list[Task])

    @property
    def tasks(self) -> int:
        return sum(self.purged.values())


class Purger:
    def __init__(self, queue: Queue, policy: Policy, page_size: int = LIST_LIMIT_MAX) -> None:
        self._queue = queue
        self._policy = policy
        self._page_size = page_size
        self._no_data_before = ""  # No data lies between the last page and this key.
        self._rests_until: datetime | None = None

    async def purge(
        self, allowance: Allowance | None = None, *, at_once: bool = False, wait: bool = False
    ) -> PurgeReport:
        """Go on with the round, or begin one if it is due, until it is complete or the allowance is spent.

        ``at_once``: begin a round even if none is due. ``wait``: wait for more allowance, to the end of the round.
        """
        report = PurgeReport()
        if not at_once and self._rests_until is not None and await self._queue.store.now() < self._rests_until:
            return PurgeReport(wrapped=True)
        while await self._has_allowance(allowance, wait=wait):
            before = report.requests
            await self._purge_page(report, at_once=at_once)
            if allowance is not None:
                allowance.spend(report.requests - before)
            if report.wrapped or report.skipped:
                break
        return report

    async def _has_allowance(self, allowance: Allowance | None, *, wait: bool) -> bool:
        if allowance is None:
            return True
        while not allowance.is_open(self._queue.ambient.monotonic()):
            if not wait:
                return False
            await asyncio.sleep(allowance.opens_in_s)
        return True

    async def _purge_page(self, report: PurgeReport, *, at_once: bool) -> None:
        store = self._queue.store
        now = await store.now()
        report.requests += 1
        stored = await store.get(keys.PURGE)
        cursor = drop_future(PurgeCursor() if stored is None else _decode_cursor(stored.body), now=now)
        current = next_round(cursor, self._policy, now=now, at_once=at_once)
        if current is None:
            self._rests_until = None if cursor.started_at is None else cursor.started_at + ROUND_EVERY
            report.wrapped = True
            return
        tasks_before = report.tasks
        after = await self._examine_page(report, current.after, current.settled_at, now, dry_run=False)
        token = self._queue.ambient.token()
        body = wire.encode(advance(current, after, token=token, purged=report.tasks - tasks_before))
        report.requests += 1
        wrote = await register.write(
            store,
            keys.PURGE,
            body,
            if_match=None if stored is None else stored.etag,
            ours=lambda there: there == body,
            ambient=self._queue.ambient,
        )
        report.skipped = isinstance(wrote, register.Moved)
        report.wrapped = after == ""

    async def purge_all(self, *, dry_run: bool = False, allowance: Allowance | None = None) -> PurgeReport:
        """Go over all tasks once, whatever the cursor says, and leave it as it is. ``dry_run``: remove nothing."""
        report, after = PurgeReport(), ""
        now = await self._queue.store.now()
        while not report.wrapped and await self._has_allowance(allowance, wait=True):
            before = report.requests
            after = await self._examine_page(report, after, None, now, dry_run=dry_run)
            report.wrapped = after == ""
            if allowance is not None:
                allowance.spend(report.requests - before)
        return report

    async def _examine_page(
        self, report: PurgeReport, after: str, settled_at: datetime | None, now: datetime, *, dry_run: bool
    ) -> str:
        """Purge the tasks of the page after ``after``; return where the next page begins, "" if there is none."""
        page = await self._queue.store.list(keys.TASKS, start_after=after, limit=self._page_size)
        report.requests += 1
        report.listed += len(page.entries)
        until = page.entries[-1].key if page.truncated and page.entries else ""
        limits = self._policy.limits
        entries = [
            entry for entry in page.entries if may_be_due(entry.modified, limits, settled_at=settled_at, now=now)
        ]
        due = await self._read_due(entries, now, report)
        report.examples += [each.task for each in due[: EXAMPLES_MAX - len(report.examples)]]
        purged: frozenset[str] = frozenset()
        if dry_run:
            purged = frozenset(each.task.id for each in due)
        else:
            removal = await remove_tasks(self._queue.store, await self._tell_dependents(due, report), now)
            purged = removal.task_ids
            report.versions += removal.versions
            report.changed += removal.changed
            report.bytes += removal.bytes
            report.requests += removal.requests
        report.purged.update((each.task.task_type, each.task.status) for each in due if each.task.id in purged)
        present = frozenset(
            task_id for entry in page.entries if (task_id := keys.task_id_of(entry.key)) is not None
        )
        await self._remove_data(report, after, until, present - purged, purged, now, dry_run=dry_run)
        return until

    async def _read_due(self, entries: list[Entry], now: datetime, report: PurgeReport) -> list[Candidate]:
        due: list[Candidate] = []
        for start in range(0, len(entries), READS_AT_ONCE):
            batch = entries[start : start + READS_AT_ONCE]
            bodies = await gather_cancellable(self._queue.store.get(entry.key) for entry in batch)
            report.requests += len(batch)
            report.read += len(batch)
            for entry, stored in zip(batch, bodies, strict=True):
                if stored is None or keys.task_id_of(entry.key) is None:
                    continue
                try:
                    task = wire.decode_task(stored.body, entry.key)
                except CorruptRecord as error:
                    report.corrupt += 1
                    log.error("%s", error)
                    continue
                if is_due(task, self._policy, now):
                    due.append(Candidate(task, entry.key, stored.etag, stored.version))
        return due

    async def _tell_dependents(self, due: list[Candidate], report: PurgeReport) -> list[Candidate]:
        """Return the tasks that may be removed: those without dependents, and those whose dependents know of their end.
        Nobody could tell them afterwards."""
        removable: list[Candidate] = []
        for each in due:
            dependents = flow_of(each.task).dependents
            report.requests += len(dependents)
            if not dependents or await self._queue.followers.release(each.task):
                removable.append(each)
        return removable

    async def _remove_data(
        self,
        report: PurgeReport,
        after: str,
        until: str,
        present: frozenset[str],
        purged: frozenset[str],
        now: datetime,
        *,
        dry_run: bool,
    ) -> None:
        """Remove the data of purged tasks, and data that belongs to no task, in the range of a page."""
        first = keys.data_end(after) if after else ""
        last = keys.data_end(until) if until else f"{keys.DATA}{keys.AFTER_ALL}"
        if first == "":
            self._no_data_before = ""
        if last < self._no_data_before:
            return  # The listing for an earlier page has shown that there is none.
        lister = VersionLister(self._queue.store)
        histories = await lister.between(keys.DATA, first, last)
        self._no_data_before = lister.next_key
        report.requests += lister.requests
        removal = await remove_data(
            self._queue.store, histories, present=present, purged=purged, now=now, dry_run=dry_run
        )
        report.data += removal.data
        report.orphans += removal.orphans
        report.bytes += removal.bytes
        report.requests += removal.requests


def _decode_cursor(body: bytes) -> PurgeCursor:
    try:
        return wire.decode(PurgeCursor, body, keys.PURGE)
    except CorruptRecord:
        return PurgeCursor()  # It is only a position: start over.
