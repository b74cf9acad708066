"""Sends heartbeats for every held task from a thread of its own, so that a busy event loop or a worker that is shutting
down does not lose leases.

Most tasks end before their first heartbeat is due. The thread is not woken for them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from qo.agent.logs.attempt_log import AttemptLog
from qo.agent.operator_run import Run
from qo.api.contract.task import Claimed, DataAccess, HeartbeatRequest
from qo.api.internal_client import DispatcherClient
from qo.errors import Forbidden, LeaseLost, NotFound, QoError, Unauthenticated
from qo.worker.loop.cancel import CancelToken, Why

log = logging.getLogger(__name__)

RETRY_S = 1.0  # After a heartbeat that got no answer.
OVERTIME_S = 60.0  # An attempt that is still held so long after its time limit is given up.


@dataclass(slots=True)
class HeldTask:
    """One claimed task."""

    claimed: Claimed
    cancel: CancelToken
    progress: Any = None
    token: str = field(default="", repr=False)  # The newest capability; a long run gets new ones.
    paused: bool = False  # The readers of its events cannot keep up.
    lost: bool = False  # The dispatcher has answered that the lease is lost.
    settling: bool = False  # Its completion is being sent: a refused heartbeat is expected.
    run: Run | None = None  # Set when the operator starts.
    log: AttemptLog | None = None
    data_access: DataAccess | None = None  # Set when the operator starts.
    began_s: float = field(default_factory=time.monotonic)
    _reported: Any = field(default=None, repr=False)

    @property
    def task_id(self) -> str:
        return self.claimed.work.task_id

    def now(self) -> datetime:
        """Return the approximate time of the dispatcher's clock."""
        return self.claimed.at + timedelta(seconds=time.monotonic() - self.began_s)

    @property
    def overdue(self) -> bool:
        """Whether its time limit passed long ago. The event loop ends an attempt at its limit, unless it is blocked
        itself: then the task must not be kept from other workers for ever."""
        limit_s = self.claimed.work.timeout_seconds
        return limit_s is not None and not self.settling and time.monotonic() > self.began_s + limit_s + OVERTIME_S

    async def beat(self, api: DispatcherClient) -> None:
        progress = self.progress
        request = HeartbeatRequest(
            task_id=self.task_id,
            attempt=self.claimed.attempt,
            lease_id=self.claimed.lease_id,
            progress=None if progress is self._reported else progress,
        )
        answer = await api.heartbeat(self.token, request)
        self._reported = progress
        self.paused = answer.paused
        self.token = answer.capability_token or self.token
        if answer.cancel_requested:
            self.cancel.request(Why.CANCELLED)


class HeartbeatThread:
    """Sends heartbeats for held tasks. Start it once; call ``hold`` and ``let_go`` from any thread."""

    def __init__(self, connect: Callable[[], DispatcherClient]) -> None:
        """``connect`` opens a client for this thread; it is called in this thread's event loop."""
        self._connect = connect
        self._loop = asyncio.new_event_loop()
        self._not_yet_due: dict[
            str, tuple[HeldTask, float]
        ] = {}  # By lease, with the time of the first heartbeat.
        self._wakes_at: float | None = None  # When the thread wakes by itself; None: never.
        self._lock = threading.Lock()  # Guards both.
        self._timer: asyncio.TimerHandle | None = None
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._api: DispatcherClient | None = None
        self._thread = threading.Thread(target=self._run, name="qo-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hold(self, held: HeldTask) -> None:
        due = time.monotonic() + held.claimed.heartbeat_s
        with self._lock:
            self._not_yet_due[held.claimed.lease_id] = held, due
            if self._wakes_at is not None and self._wakes_at <= due:
                return
            self._wakes_at = due
        self._loop.call_soon_threadsafe(self._set_timer)

    def let_go(self, held: HeldTask) -> None:
        with self._lock:
            waiting = self._not_yet_due.pop(held.claimed.lease_id, None)
        if waiting is None:
            self._loop.call_soon_threadsafe(self._stop_beating, held)

    def stop(self) -> None:
        """Stop the thread. Let go of all tasks first."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in self._beating.values():
                task.cancel()
            self._loop.run_until_complete(self._close())
            self._loop.close()

    async def _close(self) -> None:
        await asyncio.gather(*self._beating.values(), return_exceptions=True)
        if self._api is not None:
            await self._api.close()

    def _set_timer(self) -> None:
        """Set the timer for the first task that is due, in whatever order tasks were added."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            at = self._wakes_at
        if at is not None:
            self._timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._start_due)

    def _start_due(self) -> None:
        """Start sending heartbeats for the tasks that are due, and set the timer for the next one."""
        now = time.monotonic()
        with self._lock:
            late = [lease_id for lease_id, (_, due) in self._not_yet_due.items() if due <= now]
            starting = {lease_id: self._not_yet_due.pop(lease_id)[0] for lease_id in late}
            self._wakes_at = min((due for _, due in self._not_yet_due.values()), default=None)
        for lease_id, held in starting.items():
            self._beating[lease_id] = self._loop.create_task(self._beat(held))
        self._set_timer()

    def _stop_beating(self, held: HeldTask) -> None:
        if (task := self._beating.pop(held.claimed.lease_id, None)) is not None:
            task.cancel()

    async def _beat(self, held: HeldTask) -> None:
        """Send heartbeats until cancelled, the first one at once."""
        while True:
            if held.overdue:
                log.error(
                    "task %s is given up: its time limit passed long ago, and this worker's event loop is blocked",
                    held.task_id,
                )
                held.lost = True
                held.cancel.request(Why.LOST)
                return
            try:
                if self._api is None:
                    self._api = self._connect()
                await held.beat(self._api)
                rest_s = held.claimed.heartbeat_s
            except (LeaseLost, NotFound, Forbidden, Unauthenticated) as lost:
                level = logging.DEBUG if held.settling else logging.WARNING
                log.log(level, "task %s: the lease is lost: %s", held.task_id, lost)
                held.lost = True
                held.cancel.request(Why.LOST)
                return
            except QoError as error:
                # Only the dispatcher knows whether the lease is still ours: continue until it answers.
                log.warning("task %s: heartbeat failed: %s", held.task_id, error)
                rest_s = min(RETRY_S, held.claimed.heartbeat_s)
            except Exception:
                log.exception("task %s: heartbeat failed", held.task_id)
                rest_s = min(RETRY_S, held.claimed.heartbeat_s)
            await asyncio.sleep(rest_s)
