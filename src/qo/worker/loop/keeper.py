"""The keeper renews the lease of every claim that the worker holds, in every state of the worker.

It runs on a thread of its own, with its own event loop and its own connection to the store, so that neither a handler
that blocks the worker's loop nor a flood of requests delays a renewal. A renewal that fails is tried again until the
lease is nearly over. When a lease is lost, the handler is stopped: from then on another worker may run the task.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakSet

from qo.errors import LeaseLost, QoError
from qo.queue.queue import Queue
from qo.store.metered import Metered
from qo.telemetry.log_context import set_task
from qo.worker.config import LeaseTimes
from qo.worker.loop.cancel import Why
from qo.worker.loop.clock import lease_time, now
from qo.worker.loop.hold import Hold, Holds, Phase
from qo.worker.observe.stats import Stats

log = logging.getLogger(__name__)

TURNS_PER_RENEWAL = 20  # How often it checks what is due.
STOP_WITHIN_S = 5.0

OpenQueue = Callable[[], Coroutine[Any, Any, Queue]]
StopAttempt = Callable[[Hold, Why], None]


class Keeper:
    def __init__(self, holds: Holds, stats: Stats, times: LeaseTimes, *, stop_attempt: StopAttempt) -> None:
        """``stop_attempt`` is called when a lease was lost, or an operator asked to cancel the task."""
        self._holds = holds
        self._stats = stats
        self._lease_s, self._renew_s, self._margin_s = times
        self._stop_attempt = stop_attempt
        self._renewing: dict[Hold, asyncio.Task[None]] = {}
        self._queue: Queue | None = None
        self._opening: asyncio.Task[Queue] | None = None
        self._lost: WeakSet[Hold] = WeakSet()
        self.last_beat: float | None = None  # When it last checked; None before the first time.

    async def run(self, open_queue: OpenQueue) -> None:
        """Renew until cancelled. The queue is opened when the first renewal is due: most tasks are done before."""
        while True:
            self.last_beat = now()
            try:
                self._renew_due(open_queue)
            except Exception:
                log.exception("unexpected, but leases must be renewed: trying again")
            await asyncio.sleep(self._renew_s / TURNS_PER_RENEWAL)

    def _renew_due(self, open_queue: OpenQueue) -> None:
        at, leased_at = now(), lease_time()
        for hold in self._holds:
            if hold in self._lost:
                continue
            left_s = hold.leased_until - leased_at
            if left_s <= self._margin_s:
                overdue = self._is_overdue(hold, at)
                reason = "it will not stop, long after its timeout" if overdue else "it could not be renewed"
                self._lose(hold, reason)
            elif self._is_due(hold, at, left_s):
                self._renewing[hold] = asyncio.create_task(self._renew(hold, open_queue))

    def _is_due(self, hold: Hold, at: float, left_s: float) -> bool:
        if left_s > self._lease_s - self._renew_s or hold in self._renewing:
            return False
        return not self._is_overdue(hold, at)

    def _is_overdue(self, hold: Hold, at: float) -> bool:
        """Whether an attempt should have been stopped a whole lease ago, and was not: its event loop is blocked, or it
        does not stop. To hold its task for ever would be useless."""
        deadline = hold.clock.deadline
        return deadline is not None and at >= deadline + self._lease_s

    async def _renew(self, hold: Hold, open_queue: OpenQueue) -> None:
        set_task(hold.task.id)
        try:
            async with asyncio.timeout(self._renew_s):  # A request that hangs is given up and tried again.
                queue = self._queue or await self._open(open_queue)
                sent_at = lease_time()
                task = await queue.renew(hold.claim, self._lease_s)
        except LeaseLost as error:
            if self._is_held(hold) and hold.phase is not Phase.SETTLING:  # Otherwise we have settled it meanwhile.
                self._lose(hold, str(error))
        except (QoError, TimeoutError) as error:
            self._stats.renew_failures += 1
            log.warning("could not renew task %s, trying again: %s", hold.task.id, str(error) or "no answer")
        except Exception:
            self._stats.renew_failures += 1
            log.exception("could not renew task %s", hold.task.id)
        else:
            hold.leased_until = max(hold.leased_until, sent_at + self._lease_s)
            self._stats.renewals += 1
            if task.cancel_requested and self._is_held(hold):
                self._stop_attempt(hold, Why.CANCELLED)
        finally:
            self._renewing.pop(hold, None)

    async def _open(self, open_queue: OpenQueue) -> Queue:
        """Open the queue once, for all renewals: one that gives up must not cancel the opening."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(open_queue())
        self._queue = queue = await asyncio.shield(self._opening)
        return queue

    def _lose(self, hold: Hold, reason: str) -> None:
        self._lost.add(hold)
        log.warning("task %s: its lease was lost: %s", hold.task.id, reason, extra={"task_id": hold.task.id})
        self._stop_attempt(hold, Why.LOST)

    def _is_held(self, hold: Hold) -> bool:
        return self._holds.get(hold.task.id) is hold


class KeeperThread:
    """Runs a keeper on a thread of its own."""

    def __init__(self, keeper: Keeper, open_queue: OpenQueue) -> None:
        self._keeper = keeper
        self._open = open_queue
        self._loop = asyncio.new_event_loop()
        context = contextvars.copy_context()  # Its log lines name the worker, too.
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="qo-keeper", daemon=True)
        self._queue: Queue | None = None
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Return when the thread has ended, or hangs: as a daemon it keeps no process alive."""
        self._loop.call_soon_threadsafe(self._cancel)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, STOP_WITHIN_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._running = self._loop.create_task(self._keeper.run(self._open_once))
        try:
            self._loop.run_until_complete(self._running)
        except asyncio.CancelledError:
            self._loop.run_until_complete(self._close())

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _open_once(self) -> Queue:
        self._queue = await self._open()
        return self._queue

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._queue is not None:
            await self._queue.close()

    @property
    def meter(self) -> Metered | None:
        return None if self._queue is None else self._queue.meter


class KeeperHost:
    """Runs a keeper: on a thread of its own or, if the queue cannot be opened once more, in the worker's event loop."""

    def __init__(self, keeper: Keeper, queue: Queue, open_queue: OpenQueue | None) -> None:
        self._keeper = keeper
        self._queue = queue
        self._open = open_queue
        self._thread: KeeperThread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._open is None:
            self._task = asyncio.create_task(self._keeper.run(self._own_queue))
        else:
            self._thread = KeeperThread(self._keeper, self._open)
            self._thread.start()

    async def stop(self) -> None:
        """Renew no more. Does nothing if it was never started."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._thread is not None:
            await self._thread.stop()

    async def _own_queue(self) -> Queue:
        return self._queue

    @property
    def meter(self) -> Metered | None:
        """Counts the requests of the thread; None: they are counted with those of the worker."""
        return None if self._thread is None else self._thread.meter
