"""Which shards this worker polls, and whether there is any reason to poll them now.

All workers that lease shards compute the same plan from the members that the lookout publishes. Each leases the units
(groups of shards) that the plan gives it, renews them, and releases those that have become another worker's. While its
units are dark, it does not list them: it reads the lookout's lease at the pace of polling, which costs a fraction, and
polls when one of its units is lit.

Ownership does not decide which worker may run a task: claims do. Two owners of a shard would only waste requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from qo.core.cost_model import SCAN_EVERY_S
from qo.core.discovery import IndexMode
from qo.core.ownership import LeasingConfig, ShardLease, left_over, plan, units
from qo.core.poll import Pace
from qo.queue.feed import Feed
from qo.queue.queue import Queue
from qo.queue.shard_leases import Held, ShardLeases
from qo.worker.leasing.lookout import Lookout
from qo.worker.loop.best_effort import best_effort

log = logging.getLogger(__name__)

ACTION = "leasing shards"

RETRY_FIRST_S = 0.5  # While another worker still holds a unit of ours; doubles up to half a round.
FALLBACK_LOOK_S = 900.0  # A look without a reason, so that a missed signal costs no more than a delay.


class Ownership:
    def __init__(
        self,
        queue: Queue,
        config: LeasingConfig,
        *,
        worker_id: str,
        feed: Feed,
        has_room: Callable[[], bool],
        heartbeat_s: float,
        on_change: Callable[[], None],
    ) -> None:
        """``has_room`` returns whether a slot is free; ``on_change`` is called when there may be tasks to look for."""
        self._ambient = queue.ambient
        self._config = config
        self._worker_id = worker_id
        self._feed = feed
        self._on_change = on_change
        self._leases = ShardLeases(queue, worker_id=worker_id, ttl_s=config.ttl_s)
        self._lookout = Lookout(
            queue,
            config,
            self._leases,
            worker_id=worker_id,
            feed=feed,
            has_room=has_room,
            heartbeat_s=heartbeat_s,
        )
        self._units = units(queue.prefix_len)
        self._members: list[str] = []
        self._planned: tuple[str, ...] = ()
        self._left_over: tuple[str, ...] = ()
        self._releases: dict[str, asyncio.Event] = {}  # By unit: asks its keeper to release it.
        self._held: dict[str, Held] = {}
        self._last_token = ""  # Of the lookout's lease that was applied last.
        self._look_requested_at = -1  # The number of looks of the feed when there last was a reason for one more.
        self._fallback_look_s = FALLBACK_LOOK_S * (0.9 + 0.2 * queue.ambient.unit())
        feed.own(())

    @property
    def owned(self) -> tuple[str, ...]:
        """The units whose leases this worker certainly holds, in key order."""
        now = self._ambient.monotonic()
        return tuple(sorted(unit for unit, held in self._held.copy().items() if now < held.until))

    @property
    def on_duty(self) -> bool:
        """Whether this worker is the lookout."""
        return self._lookout.on_duty

    async def run(self) -> None:
        """Lease shards until cancelled; no error ends it. Call ``leave`` afterwards."""
        async with asyncio.TaskGroup() as keepers:
            while True:
                await best_effort(self._round(keepers), ACTION)
                await asyncio.sleep(self._config.round_s * (0.9 + 0.2 * self._ambient.unit()))

    async def leave(self) -> None:
        """Release all leases, after ``run`` was cancelled. Those that the store does not take run out."""
        held = list(self._held.values())
        self._held.clear()
        self._feed.own(())
        await asyncio.gather(
            best_effort(self._lookout.leave(), ACTION),
            *(best_effort(self._leases.release(lease), ACTION, level=logging.DEBUG) for lease in held),
        )
        # ``run`` may have been cancelled after a lease was written, and before we knew.
        await best_effort(self._leases.release_unanswered(), ACTION)

    def may_look(self) -> bool:
        """Whether to ask the feed for tasks now. Call it before each ``Feed.take``, which polls the units owned now.

        False: no task is known to be due. Rest, and ask again afterwards or when ``on_change`` is called.
        """
        feed, on_duty = self._feed, self.on_duty
        scope = {*self.owned, *self._left_over} if on_duty else set(self.owned)
        feed.own(scope, late_s=self._config.ttl_s if on_duty else None)
        if feed.has_offers:
            return True
        if not scope:
            return False
        if feed.deferral_ended():
            self._look_requested_at = feed.looks
        now = self._ambient.monotonic()
        idle_s = now - feed.looked_at
        return (
            feed.mode is IndexMode.LOG_SCAN
            or feed.looks == self._look_requested_at
            or feed.has_withheld  # There may be room for it now.
            or feed.fruitful_at >= feed.looked_at  # Where there was something, there may be more.
            or now - feed.fruitful_at < 2 * self._config.watch_s  # By then the pace of polling is at its slowest.
            or (on_duty and feed.mode is IndexMode.HYBRID and idle_s >= SCAN_EVERY_S)
            or idle_s >= self._fallback_look_s
        )

    async def _round(self, keepers: asyncio.TaskGroup) -> None:
        lease = await self._lookout.round()
        if lease is not None:
            self._apply(lease, keepers)

    def _apply(self, lookout: ShardLease, keepers: asyncio.TaskGroup) -> None:
        """Follow the lookout's lease: plan by its members, and look where it says that tasks are due."""
        if lookout.members != self._members:
            self._members = lookout.members
            planned = plan(lookout.members, self._units, self._config.shards_per_worker)
            self._planned = planned.get(self._worker_id, ())
            self._left_over = left_over(planned, self._units)
            log.info("%d workers share the shards; %d are for this one", len(planned), len(self._planned))
        for unit, release in self._releases.items():
            if unit not in self._planned:
                release.set()
        for unit in self._planned:
            if unit not in self._releases:
                self._releases[unit] = asyncio.Event()
                keepers.create_task(self._keep(unit, self._releases[unit]))
        if lookout.token != self._last_token:
            self._last_token = lookout.token
            scope = {*self._planned, *self._left_over} if self.on_duty else set(self._planned)
            if not scope.isdisjoint(lookout.lit):
                self._request_look()
        if self._feed.has_offers:
            self._on_change()

    def _request_look(self) -> None:
        self._look_requested_at = self._feed.looks
        self._on_change()

    async def _keep(self, unit: str, release: asyncio.Event) -> None:
        """Hold the lease of one unit until the plan gives it to another worker."""
        patience = first = Pace(RETRY_FIRST_S, max(RETRY_FIRST_S, self._config.round_s / 2))
        try:
            while not release.is_set():
                # At level debug: there are many units, and trouble of all of them shows once, with the lookout's lease.
                if await best_effort(self._acquire_or_renew(unit), ACTION, level=logging.DEBUG):
                    patience = first
                    rest_s = self._config.renew_s * (0.9 + 0.1 * self._ambient.unit())
                else:
                    patience = patience.after(found_work=False)
                    rest_s = patience.current_s * (0.5 + self._ambient.unit())
                await _sleep_unless(release, rest_s)
            held = self._held.pop(
                unit, None
            )  # Before the release: we must not poll there when another worker may.
            if held is not None:
                await best_effort(self._leases.release(held), ACTION, level=logging.DEBUG)
        finally:
            del self._releases[unit]

    async def _acquire_or_renew(self, unit: str) -> bool:
        """Acquire or renew the lease of a unit. Return whether this worker holds it now."""
        before, owned = self._held.get(unit), unit in self.owned
        held = await (self._leases.acquire(unit) if before is None else self._leases.renew(before))
        if held is None:
            if self._held.pop(unit, None) is not None:
                log.warning("shard %s belongs to another worker now: its lease was not renewed in time", unit)
            return False
        self._held[unit] = held
        if not owned:
            self._request_look()  # Whatever was published before, this worker has not looked there.
        return True


async def _sleep_unless(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
