"""Find the due tasks of a worker's own inbox, and those of the ready index beside it.

An inbox is listed from its head, where its oldest tasks are, so that no place in it needs to be remembered and none is
passed over. While it is never empty, the ready index is listed at every second walk: tasks that were retried, or that
no worker was found for, must not starve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple

from qo.core import keys
from qo.core.discovery import Due
from qo.queue.index import Usable, Walk
from qo.store.port import Entry, ObjectStore

ALL_AGAIN_S = 5.0
PAGES_MAX = 10  # Of tasks without room for their type; those behind wait until the lookout offers them.


class InboxScope(NamedTuple):
    """Which inboxes a worker looks into."""

    owner: str | None  # None: into all, after the index: it has to find the queue empty.
    is_held: Callable[[], bool] = lambda: True  # Whether the worker owns its inbox now.

    def holds(self, inbox: str) -> bool:
        """Whether to follow a notice of a task in that inbox."""
        return self.owner is None or (inbox == self.owner and self.is_held())


class InboxWalk:
    """A walk over the ready index that also goes over an inbox."""

    def __init__(
        self, store: ObjectStore, index: Walk, scope: InboxScope, page_size: int, monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._monotonic = monotonic
        self._all_at = float("-inf")  # When all inboxes are listed again.
        self._index = index
        self._scope = scope
        self._page_size = page_size
        self._owes_index = False  # The last walk found enough in the inbox, and did not list the index.

    def prefer(self, rank: int, workers: int) -> None:
        self._index.prefer(rank, workers)

    def own(self, units: Iterable[str]) -> None:
        self._index.own(units)

    def own_all(self) -> None:
        self._index.own_all()

    async def due(self, usable: Usable) -> list[Due]:
        """Return usable tasks. Empty if there are none, in the inbox and in the index."""
        if self._scope.owner is None:
            return await self._index.due(usable) or await self._due_anywhere(usable)
        own = await self._due(f"{keys.INBOX}{self._scope.owner}/", usable) if self._scope.is_held() else []
        if own and not self._owes_index:
            self._owes_index = True
            return own
        self._owes_index = False
        return own + await self._index.due(usable)

    async def _due_anywhere(self, usable: Usable) -> list[Due]:
        """Return tasks of all inboxes. While there are none, they are not listed with every look."""
        if self._monotonic() < self._all_at:
            return []
        tasks = await self._due(keys.INBOX, usable)
        self._all_at = float("-inf") if tasks else self._monotonic() + ALL_AGAIN_S
        return tasks

    async def _due(self, prefix: str, usable: Usable) -> list[Due]:
        now, after = await self._store.now(), ""
        minute = keys.minute_of(now)
        for _ in range(PAGES_MAX):
            page = await self._store.list(prefix, start_after=after, limit=self._page_size)
            tasks = [
                due
                for entry in page.entries
                if (due := inbox_due(entry, now)) is not None and due.minute <= minute and usable(due)
            ]
            if tasks or not page.truncated:
                return tasks
            after = page.entries[-1].key
        return []


def inbox_due(entry: Entry, now: datetime) -> Due | None:
    """Return an entry of an inbox as a candidate for claiming; None if its key is foreign."""
    parsed = keys.parse_inbox(entry.key)
    if parsed is None:
        return None
    return Due(parsed.task_id, entry.key, entry.etag, parsed.minute, now, entry.modified, parsed.minute)
