"""What a worker tells those who subscribe to it: a snapshot of its counters every so often, and each task that fails
for good.

A subscriber that does not keep up never slows the worker: of the snapshots it gets the latest, and when its buffer is
full the oldest failure is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

from qo.core.task import Task
from qo.queue.options import check_number
from qo.worker.observe.stats import StatsSnapshot


@dataclass(frozen=True, slots=True)
class TerminalFailure:
    """A task that this worker has seen fail for good. It is told once, after it is written; see ``App.on_failure`` for
    what survives the worker."""

    worker_id: str
    task_id: str
    task_type: str
    attempt: int
    error: str


Event = StatsSnapshot | TerminalFailure


class Subscription:
    """An async iterator of events. It ends when the worker has stopped, with a last snapshot, or when it is closed."""

    def __init__(self, buffer: int) -> None:
        self._failures: deque[TerminalFailure] = deque(maxlen=buffer)
        self._latest: StatsSnapshot | None = None
        self._arrival = asyncio.Event()
        self._closed = False
        self.dropped = 0  # Failures for which there was no room.

    def offer(self, event: Event) -> None:
        if self._closed:
            return
        if isinstance(event, StatsSnapshot):
            self._latest = event
        else:
            self.dropped += len(self._failures) == self._failures.maxlen
            self._failures.append(event)
        self._arrival.set()

    def close(self) -> None:
        """End the iteration, after what is still buffered."""
        self._closed = True
        self._arrival.set()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:
            if self._failures:
                return self._failures.popleft()
            if self._latest is not None:
                latest, self._latest = self._latest, None
                return latest
            if self._closed:
                raise StopAsyncIteration
            self._arrival.clear()
            await self._arrival.wait()


class Subscriptions:
    """Those of one worker. To be used in its event loop."""

    def __init__(self, worker_id: str, snapshot: Callable[[], StatsSnapshot]) -> None:
        self._worker_id = worker_id
        self._snapshot = snapshot
        self._open: dict[Subscription, asyncio.Task[None]] = {}

    def add(self, every_s: float, buffer: int) -> Subscription:
        check_number("every_s", every_s, 0.01, 86_400)
        check_number("buffer", buffer, 1, 1_000_000)
        subscription = Subscription(buffer)
        self._open[subscription] = asyncio.create_task(self._tick(subscription, every_s))
        return subscription

    def tell_failure(self, task: Task, error: str) -> None:
        if self._open:
            failure = TerminalFailure(self._worker_id, task.id, task.task_type, task.attempt, error)
            for subscription in self._open:
                subscription.offer(failure)

    async def close(self) -> None:
        """Give each a last snapshot, and end it."""
        ticking = list(self._open.values())
        for subscription in self._open:
            subscription.offer(self._snapshot())
            subscription.close()
        self._open.clear()
        for tick in ticking:
            tick.cancel()
        await asyncio.gather(*ticking, return_exceptions=True)

    async def _tick(self, subscription: Subscription, every_s: float) -> None:
        while not subscription.is_closed:
            subscription.offer(self._snapshot())
            await asyncio.sleep(every_s)
        with suppress(KeyError):
            del self._open[subscription]
