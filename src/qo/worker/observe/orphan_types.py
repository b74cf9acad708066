"""Types of waiting tasks that no running worker has a handler for.

That this worker has none is normal; that nobody has one means that such tasks wait for ever. Only a worker that has
seen tasks of foreign types asks who is there, and seldom.
"""

from __future__ import annotations

import asyncio
import logging

from qo.queue.queue import Queue
from qo.queue.waiting import types_without_handler
from qo.worker.loop.best_effort import best_effort
from qo.worker.loop.type_filter import TypeFilter
from qo.worker.observe.stats import Stats

log = logging.getLogger(__name__)

LOOK_EVERY_S = 60.0
ASK_AGAIN_AFTER_S = 600.0


class OrphanTypes:
    def __init__(self, queue: Queue, type_filter: TypeFilter, stats: Stats) -> None:
        self._queue = queue
        self._type_filter = type_filter
        self._stats = stats
        self._asked_at = float("-inf")
        self._asked_about: tuple[str, ...] = ()

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await best_effort(self._look(), "looking for handlers of waiting tasks", level=logging.DEBUG)

    async def _look(self) -> None:
        unhandled, now = self._type_filter.unhandled_types(), self._queue.ambient.monotonic()
        if not unhandled:
            self._stats.orphan_types = 0
            return
        if unhandled == self._asked_about and now < self._asked_at + ASK_AGAIN_AFTER_S:
            return
        self._asked_at, self._asked_about = now, unhandled
        orphans = await types_without_handler(self._queue, unhandled)
        self._stats.orphan_types = len(orphans)
        if orphans:
            names = ", ".join(map(repr, orphans))
            log.warning("tasks of type %s wait, and no running worker has a handler for them", names)
