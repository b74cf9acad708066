"""What a handler can see and do beside its input."""

from __future__ import annotations

import asyncio
from typing import Any

from qo.core.task import Task
from qo.queue.options import Options
from qo.queue.queue import Claim, Queue


class Context:
    """One attempt at one task. The async methods are for ``async def`` handlers."""

    def __init__(self, queue: Queue, claim: Claim, worker_id: str) -> None:
        self._queue = queue
        self._claim = claim
        self.worker_id = worker_id
        self.limit: asyncio.Timeout | None = None  # When the attempt is stopped, while an async handler runs.

    @property
    def task(self) -> Task:
        return self._claim.task

    @property
    def task_id(self) -> str:
        return self.task.id

    @property
    def attempt(self) -> int:
        """1 for the first. With the task id, a fencing token for the handler's own side effects."""
        return self.task.attempt

    @property
    def cancel_requested(self) -> bool:
        """Whether someone asked for cancellation, as of the last renewal."""
        return self.task.cancel_requested

    async def renew(self, lease_s: float | None = None, *, progress: Any = None) -> None:
        """Ask for more time (None: the task's timeout, from now), and tell how far the work has come.

        Raises LeaseLost: stop then.
        """
        task = await self._queue.renew(self._claim, lease_s, progress=progress)
        if self.limit is not None and (until := self.limit.when()) is not None:
            more_s = task.timeout_seconds if lease_s is None else lease_s
            self.limit.reschedule(max(until, asyncio.get_running_loop().time() + more_s))

    async def submit(self, task_type: str, input: Any = None, options: Options | None = None) -> Task:
        """Submit another task; durable when this returns, and so before this task can complete."""
        return await self._queue.submit(task_type, input, options)
