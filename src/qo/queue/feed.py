"""Which tasks a worker should try to claim next."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from qo.core import keys, wire
from qo.core.discovery import Due, IndexMode
from qo.core.shard import chosen_shards
from qo.core.task import Status
from qo.errors import CorruptRecord
from qo.queue.index import Walk
from qo.queue.queue import Queue
from qo.queue.scan import Scan
from qo.store.port import Entry

log = logging.getLogger(__name__)

HYBRID_SCAN_EVERY_S = 60.0
DEFERRED_MAX = 50_000


class Feed:
    """Candidates, oldest first as far as the index says. Claiming one may still fail; ``defer`` says so."""

    def __init__(
        self,
        queue: Queue,
        *,
        shards: tuple[str, ...] = (),
        mode: IndexMode = IndexMode.HYBRID,
        ready_page_size: int = 100,
        log_scan_page_size: int = 50,
    ) -> None:
        self._queue = queue
        self._monotonic = queue.ambient.monotonic
        self._mode = mode
        owned = chosen_shards(shards, queue.prefix_len)
        self._walk = Walk(queue.store, keys.READY, owned, ready_page_size, queue.ambient)
        self._scan = Scan(queue.store, owned, log_scan_page_size)
        self._scan_at = self._monotonic() + HYBRID_SCAN_EVERY_S
        self._found: deque[Due] = deque()
        self._deferred: dict[str, float] = {}  # Task id to when it may be offered again.

    async def take(self, wanted: int) -> list[Due]:
        """Up to ``wanted`` candidates, each offered once until its deferral ends. Empty: rest, then ask again."""
        if not self._found:
            self._found.extend(await self._refill())
        taken: list[Due] = []
        while self._found and len(taken) < wanted:
            due = self._found.popleft()
            if self._usable(due):
                # In our hands now: its key stays listed for a moment and must not be offered twice.
                self.defer(due.task_id, 2.0)
                taken.append(due)
        return taken

    def defer(self, task_id: str, for_s: float) -> None:
        """Do not offer this task again for a while: it is not due, not ours to run, or someone else's."""
        now = self._monotonic()
        if len(self._deferred) > DEFERRED_MAX:
            self._deferred = {tid: until for tid, until in self._deferred.items() if until > now}
        self._deferred[task_id] = now + for_s

    def _usable(self, due: Due) -> bool:
        return self._deferred.get(due.task_id, 0.0) <= self._monotonic()

    async def _refill(self) -> Sequence[Due]:
        if self._mode is not IndexMode.LOG_SCAN:
            found = await self._walk.due(self._usable)
            if found or self._mode is IndexMode.INDEX_ONLY or self._monotonic() < self._scan_at:
                return self._shuffled(found)
            self._scan_at = self._monotonic() + HYBRID_SCAN_EVERY_S
        return await self._scan_page()

    def _shuffled(self, found: list[Due]) -> list[Due]:
        """Within a minute the order means nothing, so each worker takes its own: fewer races are lost."""
        unit = self._queue.ambient.unit
        ranked = [(keys.parse_index(due.key), unit(), due) for due in found]
        ranked.sort(key=lambda rank: (rank[0].minute if rank[0] else 0, rank[1]))
        return [due for _, _, due in ranked]

    async def _scan_page(self) -> list[Due]:
        entries = await self._scan.page()
        checked = await asyncio.gather(*(self._claimable(entry) for entry in entries))
        return [due for due in checked if due is not None and self._usable(due)]

    async def _claimable(self, entry: Entry) -> Due | None:
        stored = await self._queue.store.get(entry.key)
        if stored is None:
            return None
        try:
            task = wire.decode_task(stored.body, entry.key)
        except CorruptRecord as error:
            log.error("%s", error)
            return None
        if task.ended:
            self._scan.settle(entry)
        due = task.status is Status.PENDING and task.available_at <= await self._queue.store.now()
        return Due(task.id, "", "") if due else None
