"""Attempts for tests of what runs them: a real task of a real queue, claimed, with all that belongs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from qo.ambient import Ambient
from qo.queue.options import Options
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.worker.api.context import Context
from qo.worker.api.handler import make_handler
from qo.worker.api.producer import ProducerHandle
from qo.worker.api.request import Request
from qo.worker.loop.cancel import CancelToken
from qo.worker.loop.clock import Clock
from support.stores.queues import claimed

LEASE_S = 60.0


class Attempts:
    """Makes them. ``enqueued`` counts what handlers submitted, and ``draining`` is what they are shown."""

    def __init__(self, queue: Queue | None = None) -> None:
        self.queue = queue or Queue(MemoryStore(), ambient=Ambient())
        self.enqueued = 0
        self.draining = False

    async def request(
        self,
        function: Callable[..., Any],
        input: Any = None,
        *,
        kind: str | None = "process",
        timeout_s: float | None = None,
    ) -> Request:
        """One attempt at a task of the function's name, with the input as it is."""
        name = getattr(function, "__name__", "handler")
        task = await self.queue.submit(name, None, Options(timeout_s=300))
        claim = await claimed(self.queue, task.id, lease_s=LEASE_S)
        cancel, clock = CancelToken(), Clock(timeout_s)
        producer = ProducerHandle(
            self.queue, asyncio.Semaphore(8), traceparent=lambda: None, on_enqueued=self._count_enqueued
        )
        context = Context(
            self.queue,
            claim,
            worker_id="w",
            producer=producer,
            cancel=cancel,
            clock=clock,
            lease_s=LEASE_S,
            draining=lambda: self.draining,
        )
        return Request(
            task=claim.task,
            handler=make_handler(name, function, kind=kind),
            input=input,
            context=context,
            producer=producer,
            cancel=cancel,
            clock=clock,
            worker_id="w",
            slot=0,
        )

    def _count_enqueued(self, count: int) -> None:
        self.enqueued += count
