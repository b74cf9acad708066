"""What a worker does beside its tasks: hold their leases, say that it is alive, and see who else is.

Nothing that goes wrong here ends it: a worker whose leases are no longer renewed loses everything it holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import ParamSpec

from qo.errors import LeaseLost, QoError
from qo.queue import roster
from qo.queue.feed import Feed
from qo.queue.queue import Claim, Queue
from qo.worker.app import App
from qo.worker.config import Tally, WorkerConfig

log = logging.getLogger(__name__)

P = ParamSpec("P")

SHARE_AGAIN_AFTER_S = 0.5


class Heartbeat:
    def __init__(
        self,
        queue: Queue,
        config: WorkerConfig,
        *,
        app: App,
        tally: Tally,
        claims: Mapping[str, Claim],
        break_off: Callable[[str], object],
        feed: Feed,
    ) -> None:
        """``claims`` is the worker's own, as it changes; ``break_off`` ends its attempt at a task."""
        self._queue = queue
        self._config = config
        self._app = app
        self._tally = tally
        self._claims = claims
        self._break_off = break_off
        self._feed = feed

    async def run(self, started_at: datetime) -> None:
        """Until cancelled."""
        await asyncio.gather(self._beat(started_at), self._share())

    async def report(self, started_at: datetime) -> None:
        """Tell the roster what this worker is doing."""
        self.count_requests()
        held = list(self._claims)
        info = roster.WorkerInfo(
            worker_id=self._config.worker_id,
            started_at=started_at,
            last_heartbeat=await self._queue.store.now(),
            shards=list(self._config.shards),
            current_task=held[0] if held else None,
            current_tasks=held,
            tasks_completed=self._tally.completed,
            tasks_failed=self._tally.failed,
            task_types=list(self._app.task_types),
            requests=self._tally.requests,
            dollars=self._tally.dollars,
        )
        await roster.report(self._queue.store, info)

    def count_requests(self) -> None:
        if self._queue.meter is not None:
            usage = self._queue.meter.snapshot()
            self._tally.requests, self._tally.dollars = usage.requests, usage.dollars()

    async def _beat(self, started_at: datetime) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            # Side by side: whatever one of them waits for, the other is not late.
            await asyncio.gather(quietly(self.report, started_at), quietly(self._keep_all))

    async def _keep_all(self) -> None:
        now = await self._queue.store.now()
        old = [
            self._keep(task_id, claim)
            for task_id, claim in self._claims.items()
            if (now - claim.task.updated_at).total_seconds() >= self._config.heartbeat_s / 2
        ]
        await asyncio.gather(*old)

    async def _keep(self, task_id: str, claim: Claim) -> None:
        """Renew a long-running task's lease, and stop it if that is lost or cancellation was requested."""
        try:
            task = await self._queue.renew(claim)
        except LeaseLost as lost:
            self._tally.lost += 1
            log.warning("%s", lost)
        except QoError as error:
            log.warning("could not renew task %s: %s", task_id, error)
            return
        except Exception:
            log.exception("could not renew task %s", task_id)
            return
        else:
            if not task.cancel_requested:
                return
        if self._claims.get(task_id) is claim:  # Otherwise it ended meanwhile.
            self._break_off(task_id)

    async def _share(self) -> None:
        """While there is work, learn who else is at it and begin with different shards than they do."""
        rest_s, claimed = SHARE_AGAIN_AFTER_S, -1
        while True:
            if claimed != self._tally.claimed:
                claimed = self._tally.claimed
                await quietly(self._take_share)
            await asyncio.sleep(rest_s)
            rest_s = min(rest_s * 2, self._config.heartbeat_s)

    async def _take_share(self) -> None:
        since = await self._queue.store.now() - timedelta(seconds=2 * self._config.heartbeat_s)
        heard = await roster.last_heard(self._queue.store)
        here = sorted(worker_id for worker_id, at in heard.items() if at >= since)
        if self._config.worker_id in here:
            self._feed.prefer(here.index(self._config.worker_id), len(here))


async def quietly(act: Callable[P, Awaitable[object]], *arguments: P.args, **options: P.kwargs) -> None:
    """Do what may fail without harm: say so and go on. What should never happen is told in full."""
    try:
        await act(*arguments, **options)
    except QoError as error:
        log.warning("%s", error)
    except Exception:
        log.exception("unexpected, but the worker goes on")
