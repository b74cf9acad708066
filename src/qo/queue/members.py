"""The workers that share the units: those on the roster that lease shards."""

from __future__ import annotations

import logging
from collections.abc import Collection

from qo.core import keys, wire
from qo.core.ownership import TTL_MAX_S, Member
from qo.core.rhythm import MEMBERS_READ
from qo.errors import CorruptRecord
from qo.queue import roster
from qo.queue.concurrency import gather_cancellable
from qo.queue.queue import Queue

log = logging.getLogger(__name__)


class Members:
    """Reads the records of live workers: each once, those of members again a few at a time."""

    def __init__(self, queue: Queue) -> None:
        self._store = queue.store
        self._infos: dict[str, roster.WorkerInfo | None] = {}  # Those read longest ago come first.
        self._types: frozenset[tuple[str, ...]] = frozenset()

    async def find(self, alive: Collection[str], *, read_all: bool = False) -> list[Member]:
        """Return those of the live workers that share the units."""
        self._infos = {} if read_all else {name: info for name, info in self._infos.items() if name in alive}
        old = [name for name, info in self._infos.items() if info is not None and info.shards_max][:MEMBERS_READ]
        to_read = [*old, *sorted(set(alive) - self._infos.keys())]
        records = await gather_cancellable(self._read(worker_id) for worker_id in to_read)
        for worker_id, info in zip(to_read, records, strict=True):
            self._infos.pop(worker_id, None)
            self._infos[worker_id] = info
        sharing = [info for info in self._infos.values() if info is not None and _shares(info)]
        self._compare_types(frozenset(tuple(sorted(info.task_types)) for info in sharing))
        return [Member(info.worker_id, info.shards_max, info.shard_ttl_s) for info in sharing]

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
                "workers that lease shards of this queue handle different task types, so a task may wait longer in a "
                "shard whose owner cannot run it; give those types a prefix (a queue) of their own"
            )
        self._types = types


def _shares(info: roster.WorkerInfo) -> bool:
    is_valid = info.shards_max > 0 and 0 < info.shard_ttl_s <= TTL_MAX_S
    return is_valid and not info.is_leaving and info.state != roster.PAUSED
