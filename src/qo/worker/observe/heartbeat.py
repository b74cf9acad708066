"""Signs of life: what a worker tells the roster, and what it learns there of others.

Nothing that goes wrong here ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from datetime import datetime, timedelta

from qo.queue import roster
from qo.queue.feed import Feed
from qo.queue.queue import Queue
from qo.worker.config import WorkerConfig
from qo.worker.loop.best_effort import quietly
from qo.worker.loop.clock import now
from qo.worker.loop.hold import Holds
from qo.worker.loop.state import State
from qo.worker.observe.stats import Stats

log = logging.getLogger(__name__)

SHARE_AGAIN_AFTER_S = 0.5
TASKS_AGAIN_AFTER_S = 5.0  # How soon after the last report a change in what runs is worth another.
AT_ONCE_S = 0.1  # Changes of state that come in a burst are told together.


class Heartbeat:
    def __init__(
        self,
        queue: Queue,
        config: WorkerConfig,
        *,
        task_types: tuple[str, ...],
        stats: Stats,
        held: Holds,
        state: Callable[[], State],
        shards: Callable[[], tuple[str, ...]],
        paused_types: Callable[[], frozenset[str]],
        count_requests: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._config = config
        self._task_types = task_types
        self._stats = stats
        self._held = held
        self._state = state
        self._shards = shards
        self._paused_types = paused_types
        self._count_requests = count_requests
        self._news = asyncio.Event()
        self._started_at: datetime | None = None
        self._told: list[str] = []
        self.http: str | None = None
        self.leasing = False

    def changed(self) -> None:
        """The worker's state or its shards have changed: tell soon."""
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._rest()
            await quietly(self.report(), "telling the roster")

    async def _rest(self) -> None:
        """Until the next report is due: after a change of state at once, after one in what runs soon."""
        begun = now()
        while (left_s := begun + self._config.heartbeat_s - now()) > 0:
            if now() - begun >= TASKS_AGAIN_AFTER_S and self._told != [hold.task.id for hold in self._held]:
                return
            try:
                async with asyncio.timeout(min(left_s, TASKS_AGAIN_AFTER_S)):
                    await self._news.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(AT_ONCE_S)
            return

    async def begin(self) -> datetime:
        """Sign on. When that was, by the store's clock."""
        self._started_at = await self._queue.store.now()
        await quietly(self._look_for_namesake(), "seeing who else is here")
        await self.report()
        return self._started_at

    async def _look_for_namesake(self) -> None:
        other = await roster.find(self._queue.store, self._config.worker_id)
        if other is not None and not other.stale(
            self._started_at or other.last_heartbeat, self._config.heartbeat_s * 2
        ):
            log.warning(
                "a worker %s was heard of a moment ago (host %s, pid %s): if it still runs, give one of the two "
                "another id, or orders and shards meant for one go to both",
                other.worker_id,
                other.host,
                other.pid,
            )

    async def report(self) -> None:
        """Tell the roster what this worker is doing."""
        self._news.clear()
        self._count_requests()
        config, stats, at = self._config, self._stats, await self._queue.store.now()
        self._told = [hold.task.id for hold in self._held]
        info = roster.WorkerInfo(
            worker_id=config.worker_id,
            started_at=self._started_at or at,
            last_heartbeat=at,
            heartbeat_s=config.heartbeat_s,
            state=str(self._state()),
            shards=list(self._shards()),
            paused_types=sorted(self._paused_types()),
            current_task=self._told[0] if self._told else None,
            current_tasks=self._told,
            tasks_completed=stats.completed,
            tasks_failed=stats.failed,
            released=stats.released,
            lost=stats.lost,
            task_types=list(self._task_types),
            requests=stats.requests,
            dollars=stats.dollars,
            http=self.http,
            slots=config.concurrency,
            leasing=self.leasing,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        await roster.report(self._queue.store, info)

    async def leave(self) -> None:
        if self._started_at is None:
            return  # Never signed on: the record may be another's of the same name.
        await roster.leave(self._queue.store, self._config.worker_id)

    async def share(self, feed: Feed) -> None:
        """While there is work, learn who else is at it and begin with different shards than they do."""
        rest_s, claimed = SHARE_AGAIN_AFTER_S, -1
        while True:
            if claimed != self._stats.claimed:
                claimed = self._stats.claimed
                await quietly(self._take_share(feed), "seeing who else is here")
            await asyncio.sleep(rest_s)
            rest_s = min(rest_s * 2, self._config.heartbeat_s)

    async def _take_share(self, feed: Feed) -> None:
        since = await self._queue.store.now() - timedelta(seconds=2 * self._config.heartbeat_s)
        heard = await roster.last_heard(self._queue.store)
        here = sorted(worker_id for worker_id, at in heard.items() if at >= since)
        if self._config.worker_id in here:
            feed.prefer(here.index(self._config.worker_id), len(here))
