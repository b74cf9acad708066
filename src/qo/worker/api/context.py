"""What a handler can see and do beside its input."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from qo.core.task import Task
from qo.queue.options import DELAY_S_MAX, Options, check_number
from qo.queue.queue import Claim, Queue
from qo.worker.api.producer import ProducerHandle
from qo.worker.api.progress import Progress
from qo.worker.loop.cancel import CancelToken
from qo.worker.loop.clock import Clock

T = TypeVar("T")

PROGRESS_EVERY_S = 5.0


class TaskLog(logging.LoggerAdapter[logging.Logger]):
    """Says in every line which task and attempt it belongs to."""

    def __init__(self, task: Task) -> None:
        about = {"task_id": task.id, "task_type": task.task_type, "attempt": task.attempt}
        super().__init__(logging.getLogger("qo.task"), about)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        about = self.extra or {}
        which = f"{about['task_type']} {about['task_id']}#{about['attempt']}: "
        if args:  # What a task type contains must not be taken for a place to fill in.
            which = which.replace("%", "%%")
        above = kwargs.pop("stacklevel", 1) + 1  # The line is the handler's, not this one.
        super().log(level, f"{which}{msg}", *args, stacklevel=above, **kwargs)

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
    ) -> None:
        self._queue = queue
        self._claim = claim
        self._clock = clock
        self._lease_s = lease_s
        self._draining = draining
        self._free_slot = free_slot
        self.worker_id = worker_id
        self.producer = producer
        self.cancel = cancel
        self._log: TaskLog | None = None  # Made when they are wanted: most handlers never ask.
        self._progress: Progress | None = None

    @property
    def task(self) -> Task:
        """As last read or written: the lease in it grows while the handler runs."""
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
        """Whether the handler was asked to stop; ``cancel.why`` says why."""
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
        """Tell how far the work has come: any JSON value. Returns at once; the latest is written every 5 s."""
        if self._progress is None:
            self._progress = Progress(self._write_progress, PROGRESS_EVERY_S)
        self._progress.report(value)

    def free_slot(self) -> None:
        """The work is done, and the handler only tells somebody of it, or waits: another task may begin in its place.
        All else stays as it is: lease, timeout, and that its outcome is reported when it returns."""
        self._free_slot()

    def extend(self, more_s: float) -> None:
        """Let this attempt run for so long from now, at least. Its lease is renewed for as long as it runs."""
        check_number("more_s", more_s, 0.001, DELAY_S_MAX)
        self._clock.extend(more_s)

    async def renew(self, lease_s: float | None = None, *, progress: Any = None) -> None:
        """Ask for more time (None: the timeout once more, from now), hold the task for at least as long even if this
        worker dies, and tell how far the work has come. The answer shows in ``cancel_requested``.

        Raises LeaseLost: stop then.
        """
        check_number("lease_s", lease_s, 0.001, DELAY_S_MAX)
        await self._queue.renew(self._claim, self._lease_s if lease_s is None else lease_s, progress=progress)
        if (more_s := self._clock.timeout_s if lease_s is None else lease_s) is not None:
            self._clock.extend(more_s)

    async def submit(self, task_type: str, input: Any = None, options: Options | None = None) -> Task:
        """Submit another task; durable when this returns, and so before this task can complete."""
        return await self.producer.enqueue(task_type, input, options)

    def close(self) -> Any:
        """The handler has ended. What it said last of its progress, if that is not written yet."""
        self.producer.close()
        return None if self._progress is None else self._progress.close()

    async def _write_progress(self, value: Any) -> None:
        await self._queue.renew(self._claim, self._lease_s, progress=value)


class BlockingContext:
    """The same for a plain function: its verbs block. May be used on the handler's thread only."""

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
        """Threads cannot be interrupted: look at this in loops (``cancel.check()``), or wait on it."""
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

    async def _on_loop(self, act: Callable[[], None]) -> None:
        act()

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
