"""The context of a handler: what it can read and do beside its input."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from qo.core.task import Task
from qo.queue import dependencies
from qo.queue.flow_plan import FlowPlan
from qo.queue.options import DELAY_S_MAX, Options, check_number
from qo.queue.queue import Claim, Queue
from qo.worker.api.producer import ProducerHandle
from qo.worker.api.progress import Progress
from qo.worker.loop.cancel import CancelToken
from qo.worker.loop.clock import Clock

T = TypeVar("T")

PROGRESS_EVERY_S = 5.0


class TaskLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the task and the attempt to every log line."""

    def __init__(self, task: Task) -> None:
        fields = {"task_id": task.id, "task_type": task.task_type, "attempt": task.attempt}
        super().__init__(logging.getLogger("qo.task"), fields)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        fields = self.extra or {}
        prefix = f"{fields['task_type']} {fields['task_id']}#{fields['attempt']}: "
        if args:  # A "%" in a task type is not a placeholder.
            prefix = prefix.replace("%", "%%")
        stacklevel = kwargs.pop("stacklevel", 1) + 1  # Show the handler's line, not this one.
        super().log(level, f"{prefix}{msg}", *args, stacklevel=stacklevel, **kwargs)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Context:
    """One attempt at one task, as an ``async def`` handler sees it."""

    def __init__(
        self,
        queue: Queue,
        claim: Claim,
        *,
        worker_id: str,
        producer: ProducerHandle,
        cancel: CancelToken,
        clock: Clock,
        lease_s: float,
        draining: Callable[[], bool],
        free_slot: Callable[[], None] = lambda: None,
        keep_slot: Callable[[], bool] = lambda: True,
    ) -> None:
        self._queue = queue
        self._claim = claim
        self._clock = clock
        self._lease_s = lease_s
        self._draining = draining
        self._free_slot = free_slot
        self._keep_slot = keep_slot
        self.worker_id = worker_id
        self.producer = producer
        self.cancel = cancel
        self._log: TaskLog | None = None  # Made on first use: most handlers do not need them.
        self._progress: Progress | None = None

    @property
    def task(self) -> Task:
        """The task as last read or written: its lease is extended while the handler runs."""
        return self._claim.task

    @property
    def task_id(self) -> str:
        return self.task.id

    @property
    def attempt(self) -> int:
        """1 for the first attempt. With the task id, a fencing token for the handler's own side effects."""
        return self.task.attempt

    @property
    def cancel_requested(self) -> bool:
        """Whether the handler was asked to stop; ``cancel.why`` is the reason."""
        return self.cancel.requested or self.task.cancel_requested

    @property
    def deadline(self) -> float | None:
        """When the attempt is stopped, by ``time.monotonic()``; None: never."""
        return self._clock.deadline

    @property
    def draining(self) -> bool:
        """Whether the worker wants to stop: finish soon, or save what can be saved."""
        return self._draining()

    @property
    def log(self) -> TaskLog:
        if self._log is None:
            self._log = TaskLog(self.task)
        return self._log

    def progress(self, value: Any) -> None:
        """Report the progress: any JSON value. Returns at once; the latest value is written every 5 s."""
        if self._progress is None:
            self._progress = Progress(self._write_progress, PROGRESS_EVERY_S)
        self._progress.report(value)

    def free_slot(self) -> None:
        """Let another task begin on this slot: the work is done, and the handler only reports it elsewhere, or waits.
        Nothing else changes: the lease, the timeout, and that the outcome is reported when the handler returns."""
        self._free_slot()

    def keep_slot(self) -> bool:
        """Whether the handler may begin another piece of work on its slot, which counts as another task where queues
        share the slots. Otherwise it should return: the worker stops or is paused, or another queue has its turn."""
        return not self._draining() and self._keep_slot()

    def extend(self, more_s: float) -> None:
        """Let this attempt run for at least so long from now. Its lease is renewed for as long as it runs."""
        check_number("more_s", more_s, 0.001, DELAY_S_MAX)
        self._clock.extend(more_s)

    async def renew(self, lease_s: float | None = None, *, progress: Any = None) -> None:
        """Extend the time limit (None: by the timeout, from now) and the lease, which then lasts as long even if this
        worker dies, and report the progress. Updates ``cancel_requested``.

        Raises LeaseLost: stop then.
        """
        check_number("lease_s", lease_s, 0.001, DELAY_S_MAX)
        await self._queue.renew(self._claim, self._lease_s if lease_s is None else lease_s, progress=progress)
        if (more_s := self._clock.timeout_s if lease_s is None else lease_s) is not None:
            self._clock.extend(more_s)

    async def submit(self, task_type: str, input: Any = None, options: Options | None = None) -> Task:
        """Submit another task; durable when this returns, and so before this task can complete."""
        return await self.producer.enqueue(task_type, input, options)

    async def submit_flow(self, plan: FlowPlan, *, key: str | None = None) -> list[Task]:
        """Submit the tasks of a flow. With a key, the id of this task say, another attempt repeats none of them."""
        return await self.producer.enqueue_flow(plan, key)

    async def results(self) -> list[Any]:
        """Return the outputs of the tasks that this one depends on, in the order of ``depends_on``; None for one that
        did not complete. They are read now, however large they are."""
        return await dependencies.results(self._queue, self.task)

    async def result(self, task_id: str) -> Any:
        """Return the output of one of the tasks that this one depends on."""
        return await dependencies.result(self._queue, self.task, task_id)

    async def dependencies(self) -> list[Task]:
        """Return the tasks that this one depends on: their status and errors, and where large outputs are."""
        return await dependencies.dependencies(self._queue, self.task)

    def close(self) -> Any:
        """End the context with its handler. Return the latest progress, if it is not written yet."""
        self.producer.close()
        return None if self._progress is None else self._progress.close()

    async def _write_progress(self, value: Any) -> None:
        await self._queue.renew(self._claim, self._lease_s, progress=value)


class BlockingContext:
    """The context of a plain function: its methods block. To be used on the handler's thread only."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    @property
    def worker_id(self) -> str:
        return self._context.worker_id

    @property
    def task(self) -> Task:
        return self._context.task

    @property
    def task_id(self) -> str:
        return self._context.task_id

    @property
    def attempt(self) -> int:
        return self._context.attempt

    @property
    def cancel(self) -> CancelToken:
        """Threads cannot be interrupted: check this in loops (``cancel.check()``), or wait on it."""
        return self._context.cancel

    @property
    def cancel_requested(self) -> bool:
        return self._context.cancel_requested

    @property
    def deadline(self) -> float | None:
        return self._context.deadline

    @property
    def draining(self) -> bool:
        return self._context.draining

    @property
    def log(self) -> TaskLog:
        return self._context.log

    def progress(self, value: Any) -> None:
        self._wait(self._on_loop(lambda: self._context.progress(value)))

    def extend(self, more_s: float) -> None:
        self._wait(self._on_loop(lambda: self._context.extend(more_s)))

    def renew(self, lease_s: float | None = None, *, progress: Any = None) -> None:
        self._wait(self._context.renew(lease_s, progress=progress))

    def submit(self, task_type: str, input: Any = None, options: Options | None = None) -> Task:
        return self._wait(self._context.submit(task_type, input, options))

    def submit_flow(self, plan: FlowPlan, *, key: str | None = None) -> list[Task]:
        return self._wait(self._context.submit_flow(plan, key=key))

    def results(self) -> list[Any]:
        return self._wait(self._context.results())

    def result(self, task_id: str) -> Any:
        return self._wait(self._context.result(task_id))

    def dependencies(self) -> list[Task]:
        return self._wait(self._context.dependencies())

    async def _on_loop(self, action: Callable[[], None]) -> None:
        action()

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
