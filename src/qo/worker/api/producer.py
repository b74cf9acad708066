"""The producer of a handler: it submits further tasks.

Each is durable when the call returns, so children exist before their parent can be acknowledged. The handle is open for
as long as its handler runs, also while the worker drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from qo.core.task import Task
from qo.errors import Refused
from qo.queue.flow_plan import FlowPlan
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue


class ProducerHandle:
    def __init__(
        self,
        queue: Queue,
        buffer: asyncio.Semaphore,
        *,
        traceparent: Callable[[], str | None],
        on_enqueued: Callable[[int], None],
    ) -> None:
        """``buffer`` is shared by all handles of a worker: a handler that floods the store waits for room."""
        self._queue = queue
        self._buffer = buffer
        self._traceparent = traceparent
        self._on_enqueued = on_enqueued
        self._open = True

    async def enqueue(self, task_type: str, input: Any = None, options: Options | None = None) -> Task:
        """Submit one task. Raises Refused once the handler has ended."""
        self._check_open()
        async with self._buffer:
            task = await self._queue.submit(task_type, input, self._with_traceparent(options))
        self._on_enqueued(1)
        return task

    async def enqueue_many(self, tasks: Sequence[NewTask]) -> list[Task]:
        """Submit many, several at once; see ``Queue.submit_many`` for what happens if the store fails midway."""
        self._check_open()
        traced = [self._traced(new) for new in tasks]
        async with self._buffer:
            submitted = await self._queue.submit_many(traced)
        self._on_enqueued(len(submitted))
        return submitted

    async def enqueue_flow(self, plan: FlowPlan, key: str | None = None) -> list[Task]:
        """Submit the tasks of a flow; see ``Queue.submit_flow``."""
        self._check_open()
        traced = replace(plan, tasks=tuple(self._traced(new) for new in plan.tasks))
        async with self._buffer:
            submitted = await self._queue.submit_flow(traced, key=key)
        self._on_enqueued(len(submitted))
        return submitted

    def close(self) -> None:
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise Refused("the handler that this producer belongs to has ended; submit through the queue instead")

    def _traced(self, new: NewTask) -> NewTask:
        return replace(new, options=self._with_traceparent(new.options))

    def _with_traceparent(self, options: Options | None) -> Options:
        options = options or Options()
        if options.traceparent is not None or (traceparent := self._traceparent()) is None:
            return options
        return replace(options, traceparent=traceparent)
