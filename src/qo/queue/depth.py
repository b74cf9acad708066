"""Read how much waits in a queue: a listing for each thousand active tasks, and a bounded number of tasks."""

from __future__ import annotations

from collections import OrderedDict

from qo.core import keys, wire
from qo.core.depth import ActiveTask, QueueDepth, active_tasks, choose_sample, count_depth
from qo.errors import CorruptRecord
from qo.queue import roster
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import READS_AT_ONCE, pages
from qo.queue.queue import Queue
from qo.store.port import LIST_LIMIT_MAX, Entry

READS_MAX = 1_000
WAITING_LISTS_MAX = 20  # Tasks that wait for others can be very many, and no worker is needed for them yet.
REMEMBERED_MAX = 200_000


class DepthReader:
    """Reads the depth of a queue again and again. A task never changes its type, so each is read once at most."""

    def __init__(self, queue: Queue, reads_max: int = READS_MAX) -> None:
        self._queue = queue
        self._reads_max = reads_max
        self._types: OrderedDict[str, str] = OrderedDict()  # By task id.

    async def read(self) -> QueueDepth:
        """Return the depth now. Reads the types of up to ``reads_max`` tasks that it has not read before."""
        store = self._queue.store
        entries: list[Entry] = []
        waiting, waiting_complete = await self._list_waiting()
        # In this order, a task that is offered to all or claimed meanwhile is not missed.
        for prefix in (keys.INBOX, keys.READY, keys.LEASES):
            async for page in pages(store, prefix):
                entries += page
        now = await store.now()
        tasks = active_tasks([*waiting, *entries], now)
        unknown = [task for task in tasks if task.task_id not in self._types]
        sample = choose_sample(unknown, self._reads_max)
        stale_ids: set[str] = set()
        for start in range(0, len(sample), READS_AT_ONCE):
            batch = sample[start : start + READS_AT_ONCE]
            types = await gather_cancellable(self._read_type(task) for task in batch)
            for task, task_type in zip(batch, types, strict=True):
                if task_type is None:
                    stale_ids.add(task.task_id)
                else:
                    self._types[task.task_id] = task_type
        while len(self._types) > max(REMEMBERED_MAX, len(tasks)):
            self._types.popitem(last=False)
        infos = [info for info in await roster.workers(store) if not info.is_stale(now) and not info.is_leaving]
        return count_depth(
            [task for task in tasks if task.task_id not in stale_ids],
            self._types,
            handled={task_type for info in infos for task_type in info.task_types},
            workers=len(infos),
            at=now,
            waiting_complete=waiting_complete,
        )

    async def _list_waiting(self) -> tuple[list[Entry], bool]:
        """Return the hints of tasks that wait for others, up to a bounded number, and whether these are all."""
        entries, lists = list[Entry](), 0
        async for page in pages(self._queue.store, keys.WAITING):
            entries, lists = [*entries, *page], lists + 1
            if lists == WAITING_LISTS_MAX:
                return entries, len(page) < LIST_LIMIT_MAX
        return entries, True

    async def _read_type(self, task: ActiveTask) -> str | None:
        """Return the type of a task; None if its hint is stale: it has ended, or cannot be read."""
        key = self._queue.tasks.key(task.task_id)
        stored = await self._queue.store.get(key)
        if stored is None:
            return None
        try:
            task_there = wire.decode_task(stored.body, key)
        except CorruptRecord:
            return None
        return None if task_there.ended else task_there.task_type
