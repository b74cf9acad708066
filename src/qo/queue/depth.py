"""Read how much waits in a queue: two listings for each thousand active tasks, and a bounded number of tasks."""

from __future__ import annotations

from collections import OrderedDict

from qo.core import keys, wire
from qo.core.depth import ActiveTask, QueueDepth, active_tasks, choose_sample, count_depth
from qo.errors import CorruptRecord
from qo.queue import roster
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import READS_AT_ONCE, pages
from qo.queue.queue import Queue
from qo.store.port import Entry

READS_MAX = 1_000
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
        for prefix in (keys.READY, keys.LEASES):  # In this order, a task that is claimed meanwhile is not missed.
            async for page in pages(store, prefix):
                entries += page
        now = await store.now()
        tasks = active_tasks(entries, now)
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
        )

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
