"""Waiting for tasks: one poller for all requests of a process that wait.

However many wait for one task, it is read once each time; and however many tasks are waited for, no more than so many
are read a second. The poller runs only while somebody waits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from dataclasses import dataclass, field

from qo.core.cost_extras import WAITING_PACE
from qo.core.poll import Pace
from qo.core.task import Task
from qo.errors import QoError, StoreError
from qo.queue.queue import Queue
from qo.queue.task_wait import load_again
from qo.queue.tasks import Snapshot

log = logging.getLogger(__name__)

READS_AT_ONCE = 16

Waiter = asyncio.Future[Task | None]


@dataclass(slots=True)
class _Watched:
    """A task that somebody waits for."""

    task_id: str
    last_token: str | None  # The token of the state that was last read here.
    snapshot: Snapshot | None = None  # As it was last read: read again, it is sent only if it has changed.
    due_at: float = 0.0
    pace: Pace = WAITING_PACE
    waiters: set[Waiter] = field(default_factory=set[Waiter])


class Watcher:
    def __init__(self, queue: Queue, *, reads_per_s: float) -> None:
        self._queue = queue
        self._read_s = 1.0 / reads_per_s
        self._watched: dict[str, _Watched] = {}
        self._due: list[tuple[float, int, str]] = []  # A heap: when to read which task next.
        self._order = itertools.count()
        self._poller: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stopped = False
        self.reads = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(each.waiters) for each in self._watched.values())

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    async def next_state(self, task_id: str, *, after: str, timeout_s: float) -> Task | None:
        """Return the task as soon as its state is another than the one with the token ``after``.

        None if that does not happen in time, or the server is stopping. Raises NotFound if the task is gone.
        """
        if self._stopped or timeout_s <= 0:
            return None
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        watched = self._watched.get(task_id)
        if watched is None:
            watched = self._watched[task_id] = _Watched(task_id, after)
            self._schedule(watched, loop.time())
        elif watched.last_token != after:
            watched.last_token = None  # One of the two states is old: the next read tells all who wait.
        watched.waiters.add(waiter)
        self._start_poller()
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError:
            return None
        finally:
            watched.waiters.discard(waiter)
            if not watched.waiters and self._watched.get(task_id) is watched:
                del self._watched[task_id]

    def note(self, task: Task) -> None:
        """Tell those who wait for a task about a state that this process has just written."""
        if (watched := self._watched.get(task.id)) is not None:
            self._resolve(watched, task)

    async def stop(self) -> None:
        """End all waits now."""
        self._stopped = True
        for watched in list(self._watched.values()):
            for waiter in watched.waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)

    def _schedule(self, watched: _Watched, now: float) -> None:
        watched.pace = watched.pace.after(found_work=False)
        watched.due_at = now + watched.pace.rest_s(self._queue.ambient.unit())
        heapq.heappush(self._due, (watched.due_at, next(self._order), watched.task_id))
        self._woken.set()

    def _start_poller(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while self._watched:
            batch = self._take_due(loop.time())
            if not batch:
                await self._rest(loop.time())
                continue
            await asyncio.gather(*(self._read(each) for each in batch))
            for each in batch:
                if self._watched.get(each.task_id) is each:
                    self._schedule(each, loop.time())
            await asyncio.sleep(len(batch) * self._read_s)
        self._due.clear()

    def _take_due(self, now: float) -> list[_Watched]:
        batch: dict[str, _Watched] = {}
        while self._due and self._due[0][0] <= now and len(batch) < READS_AT_ONCE:
            due_at, _, task_id = heapq.heappop(self._due)
            watched = self._watched.get(task_id)
            if watched is not None and watched.due_at == due_at:  # Otherwise of a wait that has ended.
                batch[task_id] = watched
        return list(batch.values())

    async def _rest(self, now: float) -> None:
        """Wait until the next task is due, or another one is waited for."""
        self._woken.clear()
        rest_s = self._due[0][0] - now if self._due else WAITING_PACE.max_s
        try:
            async with asyncio.timeout(max(0.0, rest_s)):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _read(self, watched: _Watched) -> None:
        self.reads += 1
        try:
            watched.snapshot = await load_again(self._queue.tasks, watched.task_id, watched.snapshot)
        except StoreError as error:
            log.warning("cannot look at task %s, for which somebody waits: %s", watched.task_id, error)
        except QoError as error:
            for waiter in watched.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        else:
            if watched.snapshot.task.token != watched.last_token:
                self._resolve(watched, self._queue.payloads.reveal(watched.snapshot.task))

    def _resolve(self, watched: _Watched, task: Task) -> None:
        watched.last_token = task.token
        watched.pace = WAITING_PACE
        for waiter in watched.waiters:
            if not waiter.done():
                waiter.set_result(task)
