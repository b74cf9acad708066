"""The workers that share the units: those on the roster that lease shards."""

from __future__ import annotations

import logging
from datetime import timedelta

from qo.core import keys, wire
from qo.errors import CorruptRecord
from qo.queue import roster
from qo.queue.concurrency import gather_cancellable
from qo.queue.queue import Queue

log = logging.getLogger(__name__)

READ_AGAIN = 16  # Records that each round reads again: a worker restarted under its name may no longer lease.


class Members:
    """Finds live members with one LIST per round. Records are read once, and again a few at a time."""

    def __init__(self, queue: Queue, *, silent_max_s: float) -> None:
        self._store = queue.store
        self._silent_max = timedelta(seconds=silent_max_s)
        self._infos: dict[str, roster.WorkerInfo | None] = {}  # Those read longest ago come first.
        self._types: frozenset[tuple[str, ...]] = frozenset()

    async def live(self) -> list[str]:
        """Return the workers that lease and have reported recently, sorted, so that all workers agree on the order."""
        since = await self._store.now() - self._silent_max
        alive = {worker_id for worker_id, at in (await roster.last_heard(self._store)).items() if at >= since}
        self._infos = {worker_id: info for worker_id, info in self._infos.items() if worker_id in alive}
        old = list(self._infos)[:READ_AGAIN]
        new = sorted(alive - self._infos.keys())
        to_read = [*old, *new]
        read = await gather_cancellable(self._read(worker_id) for worker_id in to_read)
        for worker_id, info in zip(to_read, read, strict=True):
            self._infos.pop(worker_id, None)
            self._infos[worker_id] = info
        sharing = {
            worker_id: info for worker_id, info in self._infos.items() if info is not None and _shares(info)
        }
        self._compare_types(frozenset(tuple(sorted(info.task_types)) for info in sharing.values()))
        return sorted(sharing)

    async def _read(self, worker_id: str) -> roster.WorkerInfo | None:
        key = keys.worker(worker_id)
        stored = await self._store.get(key)
        try:
            return None if stored is None else wire.decode(roster.WorkerInfo, stored.body, key)
        except CorruptRecord as error:
            log.error("%s", error)
            return None

    def _compare_types(self, types: frozenset[tuple[str, ...]]) -> None:
        if len(types) > 1 and types != self._types:
            log.warning(
                "workers that lease shards of this queue handle different task types, so a task may wait in a shard "
                "whose owner cannot run it; give those types a prefix (a queue) of their own"
            )
        self._types = types


def _shares(info: roster.WorkerInfo) -> bool:
    return info.leasing and not info.is_leaving and info.state != roster.PAUSED
