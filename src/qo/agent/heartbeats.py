"""Heartbeats for every task that is held, from a thread of its own: an operator that keeps the event loop busy, or
a worker that is shutting down, does not lose its leases for that.

Most tasks are over before their first heartbeat is due. Those are only noted: the thread is not woken for them.
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

from qo.agent.operator_run import Run
from qo.api.contract.task import Claimed, HeartbeatRequest
from qo.api.internal_client import DispatcherClient
from qo.errors import Forbidden, LeaseLost, NotFound, QoError, Unauthenticated
from qo.worker.loop.cancel import CancelToken, Why

log = logging.getLogger(__name__)

RETRY_S = 1.0  # After a heartbeat that got no answer.
OVERTIME_S = 60.0  # Beyond its time limit, until an attempt that is still held is given up.


@dataclass(slots=True)
class HeldTask:
    """One claimed task."""

    claimed: Claimed
    cancel: CancelToken
    progress: Any = None
    token: str = field(default="", repr=False)  # The newest capability: a long run is given fresh ones.
    paused: bool = False  # What reads its events cannot keep up.
    lost: bool = False  # The dispatcher says that another attempt counts now.
    settling: bool = False  # Its end is being told: a heartbeat that comes later is refused, and that is no news.
    run: Run | None = None  # Once there is one.
    began_s: float = field(default_factory=time.monotonic)
    _told: Any = field(default=None, repr=False)

    @property
    def task_id(self) -> str:
        return self.claimed.work.task_id

    def now(self) -> datetime:
        """What time it is for the dispatcher, by and large."""
        return self.claimed.at + timedelta(seconds=time.monotonic() - self.began_s)

    @property
    def overdue(self) -> bool:
        """Whether its time limit has passed long ago. The event loop ends an attempt at its limit, unless the loop
        itself does not get on: then the task must not be kept from other workers for ever."""
        limit_s = self.claimed.work.timeout_seconds
        return limit_s is not None and not self.settling and time.monotonic() > self.began_s + limit_s + OVERTIME_S

    async def beat(self, api: DispatcherClient) -> None:
        said = self.progress
        request = HeartbeatRequest(
            task_id=self.task_id,
            attempt=self.claimed.attempt,
            lease_id=self.claimed.lease_id,
            progress=None if said is self._told else said,
        )
        answer = await api.heartbeat(self.token, request)
        self._told = said
        self.paused = answer.paused
        self.token = answer.capability_token or self.token
        if answer.cancel_requested:
            self.cancel.request(Why.CANCELLED)


class HeartbeatThread:
    """Start it once; ``hold`` and ``let_go`` from any thread."""

    def __init__(self, connect: Callable[[], DispatcherClient]) -> None:
        """``connect`` opens a connection of the heart's own; it is called in the heart's event loop."""
        self._connect = connect
        self._loop = asyncio.new_event_loop()
        self._noted: dict[str, tuple[HeldTask, float]] = {}  # By lease, with when the first heartbeat is due.
        self._looks_at: float | None = None  # When the thread looks next of its own accord; None: when it is told.
        self._lock = threading.Lock()  # Of both.
        self._timer: asyncio.TimerHandle | None = None
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._api: DispatcherClient | None = None
        self._thread = threading.Thread(target=self._run, name="qo-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hold(self, held: HeldTask) -> None:
        due = time.monotonic() + held.claimed.heartbeat_s
        with self._lock:
            self._noted[held.claimed.lease_id] = held, due
            if self._looks_at is not None and self._looks_at <= due:
                return
            self._looks_at = due
        self._loop.call_soon_threadsafe(self._arm)

    def let_go(self, held: HeldTask) -> None:
        with self._lock:
            noted = self._noted.pop(held.claimed.lease_id, None)
        if noted is None:
            self._loop.call_soon_threadsafe(self._end, held)

    def stop(self) -> None:
        """After all was let go."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in self._beating.values():
                task.cancel()
            self._loop.run_until_complete(self._leave())
            self._loop.close()

    async def _leave(self) -> None:
        await asyncio.gather(*self._beating.values(), return_exceptions=True)
        if self._api is not None:
            await self._api.close()

    def _arm(self) -> None:
        """For whoever is due first by now: of two that were noted at once, either may be told of last."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            at = self._looks_at
        if at is not None:
            self._timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._look)

    def _look(self) -> None:
        """Begin with those whose time has come, and look again when the next one's does."""
        now = time.monotonic()
        with self._lock:
            late = [lease_id for lease_id, (_, due) in self._noted.items() if due <= now]
            begun = {lease_id: self._noted.pop(lease_id)[0] for lease_id in late}
            self._looks_at = min((due for _, due in self._noted.values()), default=None)
        for lease_id, held in begun.items():
            self._beating[lease_id] = self._loop.create_task(self._beat(held))
        self._arm()

    def _end(self, held: HeldTask) -> None:
        if (task := self._beating.pop(held.claimed.lease_id, None)) is not None:
            task.cancel()

    async def _beat(self, held: HeldTask) -> None:
        """From the first on, which is due."""
        while True:
            if held.overdue:
                log.error(
                    "task %s is given up: it should have ended long ago, and this worker hangs", held.task_id
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
                log.log(level, "task %s: no longer ours: %s", held.task_id, lost)
                held.lost = True
                held.cancel.request(Why.LOST)
                return
            except QoError as error:
                # Whether the lease still stands, only the dispatcher can say: go on until it answers.
                log.warning("task %s: heartbeat failed: %s", held.task_id, error)
                rest_s = min(RETRY_S, held.claimed.heartbeat_s)
            except Exception:
                log.exception("task %s: heartbeat failed", held.task_id)
                rest_s = min(RETRY_S, held.claimed.heartbeat_s)
            await asyncio.sleep(rest_s)
