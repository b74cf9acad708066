"""Which shards this worker polls, and whether there is any reason to poll them now.

All workers that lease work out the same plan from the members that the lookout publishes. Each takes what the plan
gives it, renews it, and lets go of what has become another's. While its units are dark, it does not list them: it
reads the lookout's lease at the pace of polling, which costs a fraction, and looks when one of them is lit.

Nothing of this decides who may run a task: claims do, as ever. Two owners of a shard would waste requests, no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from qo.core.discovery import IndexMode
from qo.core.ownership import LeasingConfig, ShardLease, left_over, plan, units
from qo.core.poll import Pace
from qo.queue.feed import HYBRID_SCAN_EVERY_S, Feed
from qo.queue.queue import Queue
from qo.queue.shard_leases import Held, ShardLeases
from qo.worker.leasing.lookout import Lookout
from qo.worker.loop.best_effort import best_effort

log = logging.getLogger(__name__)

WHAT = "leasing shards"

RETRY_FIRST_S = 0.5  # After finding that another still holds what the plan gives us; doubles up to half a round.
ANYHOW_S = 900.0  # A look without a reason, so that no error in what we were told costs more than a delay.


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
        """``has_room`` says whether a slot is free; ``on_change`` is called when there may be something to look for."""
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
        self._tended: dict[str, asyncio.Event] = {}  # By unit, what tells its keeper to let go.
        self._held: dict[str, Held] = {}
        self._heard = ""  # The token of the news heard last.
        self._rung_after = -1  # How often the feed had looked when there last was a reason to.
        self._anyhow_s = ANYHOW_S * (0.9 + 0.2 * queue.ambient.unit())
        feed.own(())

    @property
    def owned(self) -> tuple[str, ...]:
        """The units whose leases are ours beyond doubt, in key order."""
        now = self._ambient.monotonic()
        return tuple(sorted(unit for unit, held in self._held.copy().items() if now < held.until))

    @property
    def on_duty(self) -> bool:
        """Whether this worker looks after what needs looking after only once: it is the lookout."""
        return self._lookout.on_duty

    async def run(self) -> None:
        """Until cancelled. Nothing that fails ends it; then call ``leave``."""
        async with asyncio.TaskGroup() as keepers:
            while True:
                await best_effort(self._round(keepers), WHAT)
                await asyncio.sleep(self._config.round_s * (0.9 + 0.2 * self._ambient.unit()))

    async def leave(self) -> None:
        """Give everything back at once, after ``run`` was cancelled. What the store does not take runs out."""
        held = list(self._held.values())
        self._held.clear()
        self._feed.own(())
        await asyncio.gather(
            best_effort(self._lookout.leave(), WHAT),
            *(best_effort(self._leases.release(each), WHAT, level=logging.DEBUG) for each in held),
        )
        # ``run`` may have been cancelled after a lease was written, and before we knew.
        await best_effort(self._leases.release_unanswered(), WHAT)

    def may_look(self) -> bool:
        """Whether to ask the feed now. Call it before each ``take``, which then looks at what is owned by now.

        False: there is nothing to look for as far as is known; rest, and ask again then or when ``on_change`` is
        called.
        """
        feed, on_duty = self._feed, self.on_duty
        scope = {*self.owned, *self._left_over} if on_duty else set(self.owned)
        feed.own(scope, late_s=self._config.ttl_s if on_duty else None)
        if feed.offered:
            return True
        if not scope:
            return False
        if feed.deferral_ended():
            self._rung_after = feed.looks
        now = self._ambient.monotonic()
        idle_s = now - feed.looked_at
        return (
            feed.mode is IndexMode.LOG_SCAN
            or feed.looks == self._rung_after
            or feed.withheld  # There may be room for it now.
            or feed.fruitful_at >= feed.looked_at  # Where there was something, there may be more.
            or now - feed.fruitful_at < 2 * self._config.watch_s  # By then the pace of polling is at its slowest.
            or (on_duty and feed.mode is IndexMode.HYBRID and idle_s >= HYBRID_SCAN_EVERY_S)
            or idle_s >= self._anyhow_s
        )

    async def _round(self, keepers: asyncio.TaskGroup) -> None:
        news = await self._lookout.round()
        if news is not None:
            self._heed(news, keepers)

    def _heed(self, news: ShardLease, keepers: asyncio.TaskGroup) -> None:
        if news.members != self._members:
            self._members = news.members
            planned = plan(news.members, self._units, self._config.shards_per_worker)
            self._planned = planned.get(self._worker_id, ())
            self._left_over = left_over(planned, self._units)
            log.info("%d workers share the shards; %d are for this one", len(planned), len(self._planned))
        for unit, over in self._tended.items():
            if unit not in self._planned:
                over.set()
        for unit in self._planned:
            if unit not in self._tended:
                self._tended[unit] = asyncio.Event()
                keepers.create_task(self._tend(unit, self._tended[unit]))
        if news.token != self._heard:
            self._heard = news.token
            scope = {*self._planned, *self._left_over} if self.on_duty else set(self._planned)
            if not scope.isdisjoint(news.lit):
                self._ring()
        if self._feed.offered:
            self._on_change()

    def _ring(self) -> None:
        self._rung_after = self._feed.looks
        self._on_change()

    async def _tend(self, unit: str, over: asyncio.Event) -> None:
        """Keep one unit from when the plan gives it to us until the plan takes it away."""
        patience = first = Pace(RETRY_FIRST_S, max(RETRY_FIRST_S, self._config.round_s / 2))
        try:
            while not over.is_set():
                # There are many units, and what befalls all of them the lookout's lease tells once.
                if await best_effort(self._hold(unit), WHAT, level=logging.DEBUG):
                    patience = first
                    rest_s = self._config.renew_s * (0.9 + 0.1 * self._ambient.unit())
                else:
                    patience = patience.after(found_work=False)
                    rest_s = patience.current_s * (0.5 + self._ambient.unit())
                await _sleep_unless(over, rest_s)
            held = self._held.pop(unit, None)  # We look there no more, and only then may somebody else.
            if held is not None:
                await best_effort(self._leases.release(held), WHAT, level=logging.DEBUG)
        finally:
            del self._tended[unit]

    async def _hold(self, unit: str) -> bool:
        """Take the unit, or renew it. Whether it is ours now."""
        before, owned = self._held.get(unit), unit in self.owned
        held = await (self._leases.acquire(unit) if before is None else self._leases.renew(before))
        if held is None:
            if self._held.pop(unit, None) is not None:
                log.warning("shard %s belongs to another worker now: its lease was not renewed in time", unit)
            return False
        self._held[unit] = held
        if not owned:
            self._ring()  # Whatever was said before, nobody has looked there for us.
        return True


async def _sleep_unless(over: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await over.wait()
    except TimeoutError:
        return
