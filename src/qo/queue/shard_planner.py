"""The lookout's part in leasing shards: it finds out which workers share them, and writes the plan."""

from __future__ import annotations

import logging
from collections.abc import Collection

from qo.core import keys, wire
from qo.core.ownership import Member, ShardPlan, decode_plan, replan, units
from qo.errors import CorruptRecord
from qo.queue.members import Members
from qo.queue.queue import Queue
from qo.store import register
from qo.store.port import Stored

log = logging.getLogger(__name__)


class ShardPlanner:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._members = Members(queue)
        self._units = units(queue.prefix_len)
        self._few_for = 0  # How many members there were when they were warned of.
        self.number = 0  # Of the plan that is stored, as far as this process knows; 0: no worker leases shards.
        self.is_used = False  # Whether there are workers that lease shards.

    async def plan(self, alive: Collection[str], *, shown_number: int, read_all: bool) -> None:
        """Make the stored plan one for the live workers. ``shown_number`` is the one on the board.

        Raises StoreError if the store gives no answer; calling again is safe.
        """
        members = await self._members.find(alive, read_all=read_all)
        self.is_used = bool(members)
        if not members and not shown_number and not self.number:
            return  # Nobody leases shards, and nobody ever did.
        self._warn_of_few_shards(members)
        stored = await self._queue.store.get(keys.SHARD_PLAN)
        old, ambient = self._decode(stored), self._queue.ambient
        now = await self._queue.store.now()
        new = replan(old, members, self._units, shown_number=shown_number, now=now, token=ambient.token())
        if new is None:
            return
        if new is not old and not await self._write(new, stored):
            return  # Another lookout was quicker. The next count reads its plan.
        self.number = new.number

    async def _write(self, plan: ShardPlan, stored: Stored | None) -> bool:
        body = wire.encode(plan)
        wrote = await register.write(
            self._queue.store,
            keys.SHARD_PLAN,
            body,
            if_match=None if stored is None else stored.etag,
            ours=lambda there: there == body,
            ambient=self._queue.ambient,
        )
        if isinstance(wrote, register.Moved):
            return False
        log.info("%d workers share the shards now", len(plan.members))
        return True

    def _decode(self, stored: Stored | None) -> ShardPlan | None:
        try:
            return None if stored is None else decode_plan(stored.body, self._units)
        except CorruptRecord as error:
            log.error("%s It is replaced.", error)
            return None

    def _warn_of_few_shards(self, members: Collection[Member]) -> None:
        if len(members) > len(self._units) and len(members) > self._few_for:
            log.warning(
                "%d workers share %d shards, so some own none, and look everywhere: a queue with more shards divides "
                "better",
                len(members),
                len(self._units),
            )
        self._few_for = len(members)
