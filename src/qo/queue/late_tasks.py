"""Tasks in other workers' shards that have waited for long: their owners are busy, stuck or gone."""

from __future__ import annotations

from collections.abc import Callable

from qo.core import keys
from qo.core.discovery import Due, due_entries
from qo.core.ownership import Within, is_overdue, units
from qo.core.shard import count
from qo.queue.queue import Queue
from qo.store.port import Page

LATE_S = 10.0  # Longer than any owner takes that has room.


class LateTasks:
    def __init__(self, queue: Queue, page_size: int) -> None:
        self._store = queue.store
        self._rng = queue.ambient.rng
        self._prefix_len = queue.prefix_len
        self._shards = Within(units(queue.prefix_len))
        self._page_size = page_size

    async def find(self, usable: Callable[[Due], bool]) -> list[Due]:
        """Return some usable tasks that have been due for long, for at most two LISTs.

        Unless the whole index fits one page, from a random place on, as owners claim those at the head next; if there
        are none behind that place, those at the head all the same.
        """
        head = await self._store.list(keys.READY, limit=self._page_size)
        if head.truncated:
            shard = f"{self._rng.randrange(count(self._prefix_len)):0{self._prefix_len}x}"
            page = await self._store.list(keys.READY, start_after=f"{keys.READY}{shard}/", limit=self._page_size)
            if tasks := await self._late_tasks(page, usable):
                return tasks
        return await self._late_tasks(head, usable)

    async def _late_tasks(self, page: Page, usable: Callable[[Due], bool]) -> list[Due]:
        now = await self._store.now()
        tasks = due_entries(page.entries, now=now, shards=self._shards)
        return [due for due in tasks if is_overdue(due, LATE_S) and usable(due)]
