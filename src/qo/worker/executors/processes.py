"""The executor of plain functions in child processes, for those that compute for long, need much memory, or may crash.

Each child runs one function at a time and is kept for the next. A child that crashes fails only its own task, and one
that does not stop when asked is killed: no function runs on after the outcome of its task was reported.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, cast

from qo.core import wire
from qo.errors import Refused, UsageError
from qo.worker.api.handler import Handler
from qo.worker.api.request import Request
from qo.worker.executors import child as child_module
from qo.worker.executors.child_messages import (
    BEGIN,
    Answer,
    Cancel,
    ContextCall,
    Exit,
    Facts,
    Job,
    JobResult,
    LogMessage,
    MemberFailure,
)
from qo.worker.executors.context_calls import answer_call, forward_log
from qo.worker.executors.process import Ended, Process, main_module, start_process
from qo.worker.loop.cancel import Stopped, Why
from qo.worker.loop.outcome import Outcome, OutcomeError, Retried

KILL_AFTER_S = 5.0
LOAD_S_MAX = 120.0  # For a child to start and to load a handler's module.
CLOSE_S_MAX = 1.0


class ProcessExecutor:
    def __init__(
        self,
        slots: int,
        *,
        tasks_max: int,
        memory_max_mb: int,
        on_late_return: Callable[[], None],
        kill_after_s: float = KILL_AFTER_S,
    ) -> None:
        """Run at most ``slots`` functions at a time. Children are started when first needed.

        A child is replaced after ``tasks_max`` tasks, or when it has grown beyond ``memory_max_mb`` (0: never).
        ``on_late_return`` is called whenever an abandoned call has ended.
        """
        if child_module.loading_main:
            raise UsageError(
                "this script starts a worker when it is imported, and child processes import it to find their "
                'handlers: start the worker under `if __name__ == "__main__":`'
            )
        self._tasks_max = tasks_max
        self._memory_max_mb = memory_max_mb
        self._kill_after_s = kill_after_s
        self._came_back = on_late_return
        self._room = asyncio.Semaphore(slots)
        self._children: set[Process] = set()  # All that have not ended.
        self._idle: list[Process] = []
        self._abandoned: dict[asyncio.Task[None], str] = {}
        self._numbers = itertools.count(1)
        self._closed = False

    async def call(self, request: Request) -> Any:
        """As ``Executor.call``. When cancelled, it waits until the child has stopped or was killed, so that no other
        attempt runs beside it; when cancelled once more, it abandons the call."""
        job = _job(request, next(self._numbers))
        with ExitStack() as paused:  # Neither a lack of room nor a slow import is the attempt's fault.
            for each in (request, *request.members):
                paused.enter_context(each.clock.pause())
            await self._room.acquire()
            child, first = await self._load(request, job)
        serving = asyncio.create_task(_serve(child, request, job, first))
        _forward_cancel(request, child, serving)
        try:
            await asyncio.wait({serving})
        except asyncio.CancelledError:
            request.cancel.request(Why.SHUTDOWN)  # A caller with another reason has set it before.
            await self._interrupt(child, serving, request)
            raise
        return self._result(child, serving)

    def is_running(self, task_id: str) -> bool:
        return task_id in self._abandoned.values()

    def close(self) -> None:
        """Kill all children, and wait a moment for their end."""
        self._closed = True
        for child in self._children:
            child.kill()
        until = time.monotonic() + CLOSE_S_MAX
        for child in self._children:
            child.close(max(0.0, until - time.monotonic()))

    async def _load(self, request: Request, job: Job) -> tuple[Process, ContextCall | JobResult]:
        """Return a child in which the function is ready to be called, and its first message. The caller's place among
        the ``slots`` goes with the child."""
        while True:
            fresh = not self._idle
            try:
                child = await self._start() if fresh else self._idle.pop()
            except BaseException:
                self._room.release()
                raise
            try:
                async with asyncio.timeout(LOAD_S_MAX):
                    await child.send(job)
                    return child, await _receive_message(child, request, job)
            except Ended as ended:
                if fresh:
                    self._room.release()
                    raise OutcomeError(Retried(self._describe_end(ended))) from None
                # It died while it was idle, or was killed from outside: nothing had begun. Try the next one.
            except TimeoutError:
                self._discard(child)
                raise OutcomeError(
                    Retried(f"a child process could not load {job.name} in {LOAD_S_MAX:g} s")
                ) from None
            except BaseException:
                self._discard(child)
                raise

    async def _start(self) -> Process:
        if self._closed:
            raise Refused("the worker is ending: nothing more is started")
        child = await start_process()
        self._children.add(child)
        child.ended.add_done_callback(lambda _: self._forget(child))
        return child

    def _forget(self, child: Process) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)

    def _result(self, child: Process, serving: asyncio.Task[JobResult]) -> Any:
        try:
            result = serving.result()
        except Ended as ended:
            self._discard(child)
            raise OutcomeError(Retried(self._describe_end(ended))) from None
        except BaseException:
            self._discard(child)
            raise
        self._release(child, result)
        if result.failure is not None:
            raise _error(result.failure)
        return _with_errors(pickle.loads(result.output))

    def _release(self, child: Process, result: JobResult) -> None:
        """Free the slot, and keep the child for the next job unless it is worn or has grown."""
        child.tasks += 1
        worn = 0 < self._tasks_max <= child.tasks
        grown = 0 < self._memory_max_mb < result.memory_mb
        if not worn and not grown:
            self._idle.append(child)
        else:
            child.post(Exit())
            asyncio.get_running_loop().call_later(self._kill_after_s, child.kill)
        self._room.release()

    def _discard(self, child: Process) -> None:
        """Kill a child. Its slot is free when it is dead."""
        child.kill()
        child.ended.add_done_callback(lambda _: self._room.release())

    def _describe_end(self, ended: Ended) -> str:
        return "the worker ended and killed its child processes" if self._closed else str(ended)

    async def _interrupt(self, child: Process, serving: asyncio.Task[JobResult], request: Request) -> None:
        stopping = asyncio.create_task(self._stop(child, serving, request))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            self._abandoned[stopping] = request.task.id
            stopping.add_done_callback(self._on_stopped)
            raise

    def _on_stopped(self, stopping: asyncio.Task[None]) -> None:
        del self._abandoned[stopping]
        self._came_back()

    async def _stop(self, child: Process, serving: asyncio.Task[JobResult], request: Request) -> None:
        # Without a context, a function cannot see that it should stop: it is interrupted at once.
        sees_cancel = request.handler.wants_context or len(request.members) > 0
        patience_s = self._kill_after_s / 2 if sees_cancel else 0.0
        child.post(Cancel(request.cancel.why or Why.SHUTDOWN, patience_s))
        await asyncio.wait({serving}, timeout=self._kill_after_s)
        self._discard(child)  # Also if it stopped by itself: what it left half done ends with the process.
        await asyncio.wait({child.ended})
        serving.cancel()
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.exception()  # Retrieved, so that asyncio does not log it.


def check_function(handler: Handler) -> bytes:
    """Return the function as it is sent to children. Raises UsageError if they could not find it."""
    try:
        return pickle.dumps(handler.function)
    except Exception as error:
        raise UsageError(
            f"the handler of {handler.task_type!r} runs in a child process, which cannot find it ({error}): define it "
            "at the top level of a module, under the name it has there"
        ) from error


def _job(request: Request, number: int) -> Job:
    handler, function = request.handler, request.handler.function
    module = getattr(function, "__module__", None)
    return Job(
        number=number,
        name=f"{module}.{getattr(function, '__qualname__', function)}",
        function=check_function(handler),
        input=pickle.dumps(request.input),
        main=main_module() if module in ("__main__", "__mp_main__") else None,
        task=wire.encode(request.task) if handler.wants_context else None,
        worker_id=request.worker_id,
        members=tuple(wire.encode(each.task) for each in request.members) or None,
    )


def _with_errors(output: Any) -> Any:
    """Return the output of a batch with exceptions in the places of what stood for them."""
    if not isinstance(output, list):
        return output
    return [
        _error(each.outcome) if isinstance(each, MemberFailure) else each for each in cast("list[Any]", output)
    ]


def _error(failure: Outcome | Stopped) -> Exception:
    return failure if isinstance(failure, Stopped) else OutcomeError(failure)


async def _receive_message(child: Process, request: Request, job: Job) -> ContextCall | JobResult:
    """Return the next message about this job, apart from its log."""
    while True:
        match message := await child.receive():
            case LogMessage():
                forward_log(request, message)
            case ContextCall() if message.job != job.number:  # A thread that outlived its own job.
                error = Refused("the attempt that this context belongs to has ended")
                await child.send(Answer(message.number, None, error, Facts()))
            case JobResult() | ContextCall() if message.job == job.number:
                return message
            case _:
                pass


async def _serve(child: Process, request: Request, job: Job, first: ContextCall | JobResult) -> JobResult:
    """Answer the calls of the child until it has a result."""
    message = first
    while isinstance(message, ContextCall):
        if message.method == BEGIN:
            request.check_lease()  # Loading may have taken long.
        owner = request.members[message.member] if request.members and message.method != BEGIN else request
        await child.send(await answer_call(owner, message))
        message = await _receive_message(child, request, job)
    return message


def _forward_cancel(request: Request, child: Process, serving: asyncio.Task[JobResult]) -> None:
    """Set the child's cancel token when the handler is asked to stop, also if the call is not cancelled."""
    loop = asyncio.get_running_loop()

    def post(why: Why, member: int | None) -> None:
        if not serving.done():
            child.post(Cancel(why, member=member))

    def from_anywhere(why: Why, member: int | None = None) -> None:
        with suppress(RuntimeError):  # The loop has been closed, and the child has ended.
            loop.call_soon_threadsafe(post, why, member)

    request.cancel.on_request(from_anywhere)
    for number, each in enumerate(request.members):
        each.cancel.on_request(partial(from_anywhere, member=number))
