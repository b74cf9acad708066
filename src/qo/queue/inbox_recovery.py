"""Take tasks out of inboxes whose workers do not claim them, and offer them to all.

An offered task is written once more, without its inbox: its hint is then in the ready index, and a notice tells every
worker. So there is no third place to look for tasks. The lookout does it for workers that have died, and for those that
are alive but slow, full or paused; a worker that leaves does it for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from qo.core import keys
from qo.core.board import Board
from qo.core.dispatch import OFFERS_MAX, next_offers
from qo.core.lifecycle import Offer
from qo.core.rhythm import INBOXES_EVERY_S, INBOXES_IN_USE_S
from qo.core.sweep import is_left_behind
from qo.core.task import Status
from qo.errors import CorruptRecord
from qo.queue import roster
from qo.queue.concurrency import gather_cancellable
from qo.queue.inbox_walk import inbox_due
from qo.queue.listing import READS_AT_ONCE
from qo.queue.queue import Queue
from qo.queue.tasks import Snapshot
from qo.store.port import LIST_LIMIT_MAX, Deletion, Entry

log = logging.getLogger(__name__)

LISTS_MAX = 16  # In one round.
IN_USE_FOR = timedelta(seconds=INBOXES_IN_USE_S)
SILENT_MAX_S = 240.0  # The owner of an inbox that was silent for longer has died.


class InboxRecovery:
    def __init__(self, queue: Queue, *, silent_max_s: float = SILENT_MAX_S) -> None:
        self._queue = queue
        self._store = queue.store
        self._monotonic = queue.ambient.monotonic
        self._offer_after = timedelta(seconds=queue.dispatch.offer_after_s)
        self._silent_max = timedelta(seconds=silent_max_s)
        self._look_at = float("-inf")  # When to look, even if nothing was routed.
        self._had_entries = False
        self._offered = 0  # Of live workers, in the last round.
        self._unreadable: set[tuple[str, str]] = set()  # Entries of tasks that cannot be read.

    def is_due(self, board: Board | None, now: datetime) -> bool:
        """Whether there may be tasks in inboxes. A queue that routes none is not listed for them in every round."""
        routed_at = None if board is None else board.routed_at
        in_use = routed_at is not None and now - routed_at < IN_USE_FOR
        return in_use or self._had_entries or self._monotonic() >= self._look_at

    async def offer_overdue(self, ready: int = 0) -> int:
        """Offer what has waited too long to all, and return how many tasks that were. ``ready``: how many tasks wait
        that anybody may claim."""
        self._look_at = self._monotonic() + INBOXES_EVERY_S
        entries = await self._list(keys.INBOX)
        self._had_entries = bool(entries)
        now = await self._store.now()
        overdue = [
            entry
            for entry in entries
            if entry.modified <= now - self._offer_after and (entry.key, entry.etag) not in self._unreadable
        ]
        if not overdue:
            self._offered = 0
            return 0
        overdue.sort(key=lambda entry: entry.modified)
        last_reports = await roster.last_heard(self._store)
        live = {worker_id for worker_id, at in last_reports.items() if at >= now - self._silent_max}
        orphans = [entry for entry in overdue if _owner(entry) not in live]
        slow = [entry for entry in overdue if _owner(entry) in live]
        self._offered = min(len(slow), next_offers(self._offered, ready))
        entries = [*orphans[:OFFERS_MAX], *slow[: self._offered]]
        if orphans:
            log.info(
                "%d tasks are in the inboxes of workers that have gone: they are offered to all", len(orphans)
            )
        return await self._offer_all(entries)

    async def offer_inbox(self, worker_id: str) -> int:
        """Offer all tasks of one inbox, whose owner leaves."""
        return await self._offer_all(await self._list(f"{keys.INBOX}{worker_id}/"))

    async def _list(self, prefix: str) -> list[Entry]:
        entries, after = list[Entry](), ""
        for _ in range(LISTS_MAX):
            page = await self._store.list(prefix, start_after=after, limit=LIST_LIMIT_MAX)
            entries += [entry for entry in page.entries if keys.parse_inbox(entry.key) is not None]
            if not page.truncated:
                break
            after = page.entries[-1].key
        return entries

    async def _offer_all(self, entries: Sequence[Entry]) -> int:
        count = 0
        for start in range(0, len(entries), READS_AT_ONCE):
            batch = entries[start : start + READS_AT_ONCE]
            count += sum(await gather_cancellable(self._offer(entry) for entry in batch))
        return count

    async def _offer(self, entry: Entry) -> bool:
        """Offer one task; or remove its entry, if the task is not there to be claimed."""
        now = await self._store.now()
        due = inbox_due(entry, now)
        assert due is not None
        try:
            snapshot = await self._queue.tasks.load(due.task_id)
        except CorruptRecord as error:
            log.error("%s", error)
            self._unreadable.add((entry.key, entry.etag))  # It must not keep others from being offered.
            return False
        task = None if snapshot is None else snapshot.task
        if snapshot is not None and keys.index_key(snapshot.task) == entry.key:
            snapshot = snapshot._replace(hints=(Deletion(entry.key, etag=entry.etag),))
            moved = await self._queue.tasks.apply(snapshot, Offer(self._queue.ambient.token()))
            return isinstance(moved, Snapshot) and moved is not snapshot
        if task is None or task.status is Status.PENDING or is_left_behind(task, now):
            await self._queue.tasks.repair_hint(due, task)
        return False


def _owner(entry: Entry) -> str:
    return entry.key.split("/", 2)[1]
