"""The lookout: the one worker, of those that lease shards, which watches the whole queue for the others.

It counts the members, so that all of them compute the same plan. It finds the units where tasks are due and publishes
them (it *lights* the unit), so that no other worker lists anything while the queue is idle. And it takes tasks that no
other worker takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from qo.core.ownership import LOOKOUT, LeasingConfig, ShardLease, may_look_out, units
from qo.queue.feed import Feed
from qo.queue.members import Members
from qo.queue.queue import Queue
from qo.queue.ready_scan import ReadyScan
from qo.queue.shard_leases import Held, ShardLeases

log = logging.getLogger(__name__)


class Lookout:
    def __init__(
        self,
        queue: Queue,
        config: LeasingConfig,
        leases: ShardLeases,
        *,
        worker_id: str,
        feed: Feed,
        has_room: Callable[[], bool],
        heartbeat_s: float,
    ) -> None:
        self._store = queue.store
        self._monotonic = queue.ambient.monotonic
        self._config = config
        self._leases = leases
        self._worker_id = worker_id
        self._feed = feed
        self._has_room = has_room
        self._survey = ReadyScan(queue)
        self._members = Members(queue, silent_max_s=max(2 * heartbeat_s, config.ttl_s))
        self._units = len(units(queue.prefix_len))
        self._held: Held | None = None
        self._since = self._renew_at = 0.0

    @property
    def on_duty(self) -> bool:
        return self._held is not None and self._monotonic() < self._held.until

    async def round(self) -> ShardLease | None:
        """Do the duty if this worker has it; otherwise read the lookout's lease, and take it over if it is free.

        Returns the latest lease.
        """
        if self._held is not None and self.on_duty:
            return await self._keep_watch(self._held)
        self._held = None
        record = await self._leases.read(LOOKOUT)
        now, room = await self._store.now(), self._has_room()
        if not may_look_out(record.lease, now=now, room=room, ttl_s=self._config.ttl_s):
            return record.lease
        self._held = await self._leases.acquire(LOOKOUT, record)
        if self._held is None:
            return record.lease  # Another worker was quicker; the next round reads its lease.
        log.info("this worker is the lookout now")
        self._since = self._renew_at = self._monotonic()
        return await self._keep_watch(self._held)

    async def leave(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await self._leases.release(held)

    async def _keep_watch(self, held: Held) -> ShardLease:
        late = await self._survey.round(self._feed.wants, late_s=self._config.ttl_s)
        if late:
            self._feed.offer(late)
        lit, started = self._survey.lit, self._monotonic()
        if started < self._renew_at - self._config.round_s / 2:  # The next round will be nearer to it.
            return await self._publish(held, None, lit) if set(lit) - set(held.lease.lit) else held.lease
        if not self._has_room() and started - self._since >= self._config.ttl_s:
            await self.leave()  # A worker that can run the tasks it finds should have the duty, if there is one.
            return held.lease
        members = sorted({*await self._members.live(), self._worker_id})
        if len(members) > self._units >= len(held.lease.members):
            log.warning(
                "%d workers share %d shards, so some have none: use fewer workers or a queue with more shards",
                len(members),
                self._units,
            )
        lease = await self._publish(held, members, lit)
        self._renew_at = started + self._config.renew_s
        return lease

    async def _publish(self, held: Held, members: list[str] | None, lit: list[str]) -> ShardLease:
        self._held = await self._leases.renew(held, members=members, lit=lit)
        if self._held is None:
            log.warning("another worker is the lookout now: this one was late")
            return held.lease
        return self._held.lease
