"""The executor of plain functions: it calls them on threads.

A thread cannot be stopped, only abandoned. So a call always begins at once (a worker claims no more than it has slots),
an abandoned call is counted until it returns, and no thread keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from qo.worker.api.context import BlockingContext
from qo.worker.api.request import Request
from qo.worker.loop.cancel import Why
from qo.worker.loop.outcome import OutcomeError, outcome_of

log = logging.getLogger(__name__)

WARNED_AFTER_S = 1.0  # A handler that checks its cancel token ends sooner.

Result = tuple[Any, BaseException | None]  # A future cannot hold every exception: not StopIteration, for one.
Job = tuple[Callable[[], Any], "asyncio.Future[Result]"]


class ThreadExecutor:
    """To be used by one event loop; only ``_serve`` runs elsewhere."""

    def __init__(self, on_late_return: Callable[[], None]) -> None:
        """``on_late_return`` is called whenever an abandoned call has returned."""
        self._came_back = on_late_return
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = 0
        self._abandoned: dict[asyncio.Future[Result], str] = {}
        self._closed = False

    async def call(self, request: Request) -> Any:
        result = self._start(_bind(request))
        try:
            await asyncio.wait({result})
        except asyncio.CancelledError:
            request.cancel.request(Why.SHUTDOWN)  # A caller with another reason has set it before.
            if not result.done():
                self._abandon(result, request.task.id)
            raise
        output, error = result.result()
        if error is None:
            return output
        try:
            if isinstance(error, StopIteration):
                raise OutcomeError(outcome_of(error))  # A coroutine cannot raise StopIteration.
            raise error
        finally:
            del error  # It refers to this frame, and this frame to it.

    def is_running(self, task_id: str) -> bool:
        return task_id in self._abandoned.values()

    def close(self) -> None:
        """End the threads as they become free."""
        self._closed = True
        for _ in range(self._idle):
            self._jobs.put(None)
        self._idle = 0

    def _start(self, function: Callable[[], Any]) -> asyncio.Future[Result]:
        """Call the function on a free thread, or on a new one: no call ever waits."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()
        if self._idle:
            self._idle -= 1
        else:
            # Not a ThreadPoolExecutor: the interpreter waits for its threads at exit, however long they hang.
            threading.Thread(target=self._serve, args=(loop,), name="qo-handler", daemon=True).start()
        self._jobs.put((function, result))
        return result

    def _abandon(self, result: asyncio.Future[Result], task_id: str) -> None:
        """Wait no longer for a call. Its result is dropped; until it returns, its thread is occupied."""
        self._abandoned[result] = task_id
        result.add_done_callback(self._forget)
        asyncio.get_running_loop().call_later(WARNED_AFTER_S, self._warn, result, task_id)

    def _warn(self, result: asyncio.Future[Result], task_id: str) -> None:
        if result in self._abandoned:
            log.warning("task %s: its handler cannot be stopped and takes up a slot until it returns", task_id)

    def _forget(self, result: asyncio.Future[Result]) -> None:
        del self._abandoned[result]
        self._came_back()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while (job := self._jobs.get()) is not None:
            function, result = job
            value = _call_function(function)
            try:
                loop.call_soon_threadsafe(self._hand_over, result, value)
            except RuntimeError:
                return  # The loop has been closed.
            del job, function, result, value  # An idle thread must not keep them alive.

    def _hand_over(self, result: asyncio.Future[Result], value: Result) -> None:
        if self._closed:
            self._jobs.put(None)
        else:
            self._idle += 1
        if not result.done():
            result.set_result(value)


def _bind(request: Request) -> Callable[[], Any]:
    arguments = [request.input]
    if request.handler.wants_context:
        arguments.append(BlockingContext(request.context, asyncio.get_running_loop()))
    context = contextvars.copy_context()
    return lambda: context.run(_begin, request, arguments)


def _begin(request: Request, arguments: list[Any]) -> Any:
    request.check_lease()  # Again: the thread may have taken long to start.
    return request.handler.function(*arguments)


def _call_function(function: Callable[[], Any]) -> Result:
    try:
        return function(), None
    except BaseException as error:  # SystemExit too: it ends the attempt, not this thread.
        return None, error
