"""Heartbeats: what a worker reports to the roster.

No error here ends the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from datetime import datetime

from qo.core.rhythm import BEATS_LATE_MAX
from qo.errors import CorruptRecord, LeaseLost, StoreError
from qo.queue import roster
from qo.queue.inbox_lease import InboxLease, check_namesake
from qo.queue.queue import Queue
from qo.worker.config import WorkerConfig
from qo.worker.loop.best_effort import best_effort
from qo.worker.loop.clock import now
from qo.worker.loop.control import Control
from qo.worker.loop.hold import Holds
from qo.worker.observe.stats import Stats
from qo.worker.ports import Ports, ShardScope

log = logging.getLogger(__name__)

TASKS_AGAIN_AFTER_S = 20.0  # How soon after the last report a change in the running tasks is worth another.
BURST_S = 0.1  # Changes of state that come in a burst are reported together.


class Heartbeat:
    def __init__(
        self,
        queue: Queue,
        config: WorkerConfig,
        *,
        task_types: tuple[str, ...],
        stats: Stats,
        holds: Holds,
        control: Control,
        scope: ShardScope,
        ports: Ports,
        count_requests: Callable[[], None],
        inbox_lease: InboxLease | None = None,
        on_lost: Callable[[LeaseLost], None] = lambda error: None,
    ) -> None:
        """``inbox_lease``: the lease that each report renews, if the worker owns an inbox. ``on_lost`` is called when
        another worker has taken it over."""
        self._queue = queue
        self._config = config
        self._task_types = task_types
        self._stats = stats
        self._holds = holds
        self._control = control
        self._scope = scope
        self._lifecycle = ports.lifecycle
        self._report_due = ports.report_due
        self._count_requests = count_requests
        self._inbox_lease = inbox_lease
        self._on_lost = on_lost
        self._started_at: datetime | None = None
        self._reported_tasks: list[str] = []
        self.http: str | None = None
        self.push: str | None = None

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._rest()
            await best_effort(self.report(), "reporting to the roster")

    async def _rest(self) -> None:
        """Wait until the next report is due: at once after a change of state, soon after one in the running tasks."""
        rested_since, rest_s = now(), self._config.heartbeat_s * (1 + BEATS_LATE_MAX * self._queue.ambient.unit())
        while (left_s := rested_since + rest_s - now()) > 0:
            tasks = [hold.task.id for hold in self._holds]
            if now() - rested_since >= TASKS_AGAIN_AFTER_S and self._reported_tasks != tasks:
                return
            try:
                async with asyncio.timeout(min(left_s, TASKS_AGAIN_AFTER_S)):
                    await self._report_due.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(BURST_S)
            return

    async def begin(self) -> datetime:
        """Sign on. Return when that was, by the store's clock."""
        started_at = await self._queue.store.now()
        if self._inbox_lease is None:
            await self._check_namesake(started_at)
        self._started_at = started_at
        if self._inbox_lease is None:
            await self.report()
        else:
            await self._inbox_lease.acquire(await self._make_report())
        return started_at

    async def _check_namesake(self, now: datetime) -> None:
        """Warn of another worker with the same id. Raises Refused if that one owns an inbox."""
        try:
            other = await roster.find(self._queue.store, self._config.worker_id)
        except (StoreError, CorruptRecord) as error:
            log.warning("looking for other workers failed: %s", error)
            return
        if other is None:
            return
        check_namesake(other, now)
        if not other.is_stale(now, self._config.heartbeat_s * 2):
            log.warning(
                "a worker %s has reported a moment ago (host %s, pid %s): if it still runs, give one of the two "
                "another id, or orders and shards meant for one go to both",
                other.worker_id,
                other.host,
                other.pid,
            )

    async def report(self) -> None:
        """Report to the roster what this worker is doing, and renew the lease of its inbox."""
        info = await self._make_report()
        if self._inbox_lease is None:
            await roster.report(self._queue.store, info)
            return
        try:
            await self._inbox_lease.renew(info)
        except LeaseLost as error:
            self._on_lost(error)

    async def _make_report(self) -> roster.WorkerInfo:
        self._report_due.clear()
        self._count_requests()
        config, stats, at = self._config, self._stats, await self._queue.store.now()
        leasing = config.shard_leasing if config.leases_shards else None
        self._reported_tasks = [hold.task.id for hold in self._holds]
        return roster.WorkerInfo(
            worker_id=config.worker_id,
            started_at=self._started_at or at,
            last_heartbeat=at,
            heartbeat_s=config.heartbeat_s,
            state=str(self._lifecycle.state),
            shards=list(self._scope.owned),
            paused_types=sorted(self._control.paused_types),
            current_task=self._reported_tasks[0] if self._reported_tasks else None,
            current_tasks=self._reported_tasks,
            tasks_completed=stats.completed,
            tasks_failed=stats.failed,
            released=stats.released,
            lost=stats.lost,
            task_types=list(self._task_types),
            requests=stats.requests,
            dollars=stats.dollars,
            http=self.http,
            push=self.push,
            push_place=config.push_place,
            slots=config.concurrency,
            leasing=leasing is not None,
            shards_max=0 if leasing is None else leasing.shards_per_worker,
            shard_ttl_s=0.0 if leasing is None else leasing.ttl_s,
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    async def leave(self) -> bool:
        """Return False if it never signed on: the record may then belong to another worker of the same name."""
        if self._started_at is None:
            return False
        if self._inbox_lease is not None:
            return await self._inbox_lease.release()
        await roster.leave(self._queue.store, self._config.worker_id)
        return True
