"""Executors, and the one of the Python runtime. Also runs blocking functions on threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from qo.agent.operator_run import Run
from qo.errors import UsageError
from qo.worker.api.signals import Reschedule

if TYPE_CHECKING:
    from qo.config.settings import Settings

Operator = Callable[[Run], Any]


class ExecutorUnavailable(Reschedule):
    """The executor cannot run anything now. The task is released, without using up an attempt, and tried later."""


class Exited(Exception):
    """An operator raised SystemExit or the like, which must not end the worker."""


class Executor(Protocol):
    """Runs the operators of one runtime."""

    @property
    def is_scoped(self) -> bool:
        """Whether each attempt can read and write with credentials of its own."""
        ...

    async def execute(self, run: Run) -> None:
        """Run the operator. If cancelled, stop, and leave nothing running that could still write.

        Raises ExecutorUnavailable, also for a run that timed out, if something other than the task kept it from
        running.
        """
        ...

    def close(self) -> None:
        """Release all resources; blocking. Call it after the last run."""
        ...


class PythonExecutor:
    """Runs ``async def`` in the worker's event loop, and each plain function on a thread."""

    is_scoped = True

    async def execute(self, run: Run) -> None:
        function = run.code.load(run.work.operator)
        try:
            call = function(run) if inspect.iscoroutinefunction(function) else on_thread(function, run)
            result = await call
        except (SystemExit, KeyboardInterrupt) as signal:
            # These end its own run, not the worker.
            raise Exited(f"{run.work.operator} raised {signal!r}") from signal
        if inspect.isawaitable(result):
            raise UsageError(f"{run.work.operator} returned something to await: declare it with async def")
        if result is not None:
            run.result = result

    def close(self) -> None:
        pass


def open_executor(settings: Settings, on_ui: Callable[[str], None] | None) -> Executor:
    """Open the executor of the runtime ``python``."""
    del settings, on_ui
    return PythonExecutor()


Call = Callable[[], Callable[[], None]]  # Raises nothing; returns a function that delivers its result.


class Threads:
    """A pool of threads that grows to the largest number of concurrent calls.

    They are daemons, unlike those of the standard library's pools: a call that never returns must not keep the process
    alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._free: list[queue.SimpleQueue[Call]] = []

    def begin(self, call: Call) -> None:
        """Run a call on an idle thread."""
        try:
            calls = self._free.pop()
        except IndexError:
            calls = queue.SimpleQueue[Call]()
            threading.Thread(target=self._serve, args=(calls,), name=self._name, daemon=True).start()
        calls.put(call)

    def _serve(self, calls: queue.SimpleQueue[Call]) -> None:
        while True:
            deliver = calls.get()()
            self._free.append(calls)  # Before the result is delivered: its receiver may begin the next call.
            deliver()
            del deliver  # It holds a reference to the result.


def _begin(call: Call) -> None:
    threading.Thread(target=lambda: call()(), name="qo-operator", daemon=True).start()


async def on_thread(function: Callable[..., Any], *args: Any, begin: Callable[[Call], None] = _begin) -> Any:
    """Call a plain function on a thread, with the current context variables. ``begin`` starts it, by default on a new
    thread.

    A thread cannot be stopped. If this is cancelled, the call is abandoned: what it still writes belongs to an attempt
    that is not committed, and it does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            # A future, or its event loop, would not pass these on.
            awkward = isinstance(error, StopIteration | SystemExit | KeyboardInterrupt)
            result.set_exception(Exited(f"the operator raised {error!r}") if awkward else error)

    def call() -> Callable[[], None]:
        value, error = None, None
        try:
            value = context.run(function, *args)
        except BaseException as raised:  # SystemExit too: it must not end this thread.
            error = raised
        return functools.partial(deliver, value, error)

    def deliver(value: Any, error: BaseException | None) -> None:
        # The loop may have been closed: then the result is dropped.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    context = contextvars.copy_context()
    begin(call)
    return await result
