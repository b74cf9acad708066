"""The queues of the runtimes: each has a prefix of its own below the store of the settings.

    s3://bucket/prefix  ->  s3://bucket/prefix/queues/spark
    local:.qo           ->  local:.qo/queues/spark

The dispatcher only produces: it never reads a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from qo.config.settings import Settings
from qo.core.task import RetryPolicy
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.queue.connecting import connect
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.queues_below import prepare, queue_settings

__all__ = ["KEY_SCOPE", "WAKE", "BucketQueues", "open_queue", "prepare", "queue_settings"]

WAKE = "wake"  # The type of all messages.
# Of their keys. Dispatchers that do not name the queue have used the scope "wake": under one key, two messages must be
# the same.
KEY_SCOPE = "wake-queue"

# A message fails when its worker cannot reach the dispatcher. It is retried for long; the sweeper replaces lost ones.
_RETRIES = 1000
_POLICY = RetryPolicy(initial_interval_ms=1_000, max_interval_ms=60_000)


async def open_queue(settings: Settings, name: str) -> Queue:
    """Open the queue of a runtime. ``settings`` name the store above all queues. Raises Unproven as ``prepare``."""
    return await connect(await prepare(settings, name))


class BucketQueues:
    """Publishes wake-ups as messages in the bucket. A queue is opened at its first message."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: dict[str, Queue] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        if wakes:
            target = await self._queue(queue)
            await target.submit_many([_message(queue, each) for each in wakes])

    async def close(self) -> None:
        queues, self._open = list(self._open.values()), {}
        for each in queues:
            await each.close()

    async def _queue(self, name: str) -> Queue:
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._open:
                self._open[name] = await open_queue(self._settings, name)
            return self._open[name]


def _message(queue: str, wake: WakeUp) -> NewTask:
    options = Options(
        key=wake.id,
        key_scope=KEY_SCOPE,
        priority=wake.priority,
        max_retries=_RETRIES,
        max_deliveries=_RETRIES,
        retry_policy=_POLICY,
    )
    return NewTask(WAKE, {"task_id": wake.task_id, "queue": queue}, options)
