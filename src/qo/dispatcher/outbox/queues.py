"""The queues of the runtimes: each has a prefix of its own below the store of the settings.

    s3://bucket/prefix  ->  s3://bucket/prefix/queues/spark
    local:.qo           ->  local:.qo/queues/spark

The dispatcher only produces: it never reads a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from qo.config.settings import Settings
from qo.core.task import RetryPolicy
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.errors import ConfigError
from qo.queue.connecting import connect
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store import queue_manifest
from qo.store.opening import needs_proof, open_store

WAKE = "wake"  # The type of all messages, and the scope of their keys.

# A message fails when its worker cannot reach the dispatcher. It is retried for long; the sweeper replaces lost ones.
_RETRIES = 1000
_POLICY = RetryPolicy(initial_interval_ms=1_000, max_interval_ms=60_000)


def queue_settings(settings: Settings, name: str) -> Settings:
    """Return the settings of one runtime's queue. Raises ConfigError for a store that cannot hold queues."""
    store = settings.location.child("queues", name)
    if store is None:
        raise ConfigError(
            f"{settings.store} cannot hold the queues of runtimes, which several processes share: "
            "set QO_STORE to local:PATH or s3://BUCKET/PREFIX"
        )
    return replace(settings, store=store)


async def prepare(settings: Settings, name: str) -> Settings:
    """Return the settings of a runtime's queue, ready to use by ``connect`` and workers.

    Raises Unproven for a bucket that `qo doctor` has not passed.
    """
    own = queue_settings(settings, name)
    if needs_proof(settings):
        await _inherit(settings, own)
    return own


async def open_queue(settings: Settings, name: str) -> Queue:
    """Open the queue of a runtime. ``settings`` name the store above all queues. Raises Unproven as ``prepare``."""
    return await connect(await prepare(settings, name))


async def _inherit(above: Settings, own: Settings) -> None:
    """Copy the proof of the bucket to a new queue: it holds for the whole bucket."""
    store, _ = await open_store(own)
    try:
        there = await queue_manifest.load(store)
        if there is not None and there.manifest.proof is not None:
            return
        parent, _ = await open_store(above)
        try:
            proven = await queue_manifest.require(
                parent,
                prefix_len=above.shard_prefix_len,
                needs_proof=True,
                allow_no_versioning=above.allow_no_versioning,
            )
        finally:
            await parent.close()
        await queue_manifest.record_proof(store, proven.proof, prefix_len=proven.shard_prefix_len)
    finally:
        await store.close()


class BucketQueues:
    """Publishes wake-ups as messages in the bucket. A queue is opened at its first message."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: dict[str, Queue] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        target = await self._queue(queue)
        await target.submit_many([_message(each) for each in wakes])

    async def close(self) -> None:
        queues, self._open = list(self._open.values()), {}
        for each in queues:
            await each.close()

    async def _queue(self, name: str) -> Queue:
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._open:
                self._open[name] = await open_queue(self._settings, name)
            return self._open[name]


def _message(wake: WakeUp) -> NewTask:
    options = Options(
        key=wake.id,
        key_scope=WAKE,
        priority=wake.priority,
        max_retries=_RETRIES,
        max_deliveries=_RETRIES,
        retry_policy=_POLICY,
    )
    return NewTask(WAKE, {"task_id": wake.task_id}, options)
