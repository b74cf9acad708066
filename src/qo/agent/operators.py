"""Calls the operators of the Python runtime, and operators of others on threads."""

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
    """What an executor needs to run anything is away: the task comes back later, at no cost of attempts."""


class Exited(Exception):
    """An operator wanted to end more than itself."""


class Executor(Protocol):
    """Runs the operators of one runtime."""

    async def execute(self, run: Run) -> None:
        """Run to the end. Cancelled: stop, and leave nothing running that could still write.

        Raises ExecutorUnavailable, also for a run whose time was over, if it could not be run for want of something
        that is not the task's own.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds; blocking. Nothing is executed any more."""
        ...


class PythonExecutor:
    """``async def`` in the worker's loop, plain functions on a thread each."""

    async def execute(self, run: Run) -> None:
        function = run.code.load(run.work.operator)
        try:
            called = function(run) if inspect.iscoroutinefunction(function) else on_thread(function, run)
            result = await called
        except (SystemExit, KeyboardInterrupt) as left:
            # It may end its own run with these, not the worker with everyone else's.
            raise Exited(f"{run.work.operator} raised {left!r}") from left
        if inspect.isawaitable(result):
            raise UsageError(f"{run.work.operator} returned something to await: declare it with async def")
        if result is not None:
            run.result = result

    def close(self) -> None:
        pass


def open_executor(settings: Settings, on_ui: Callable[[str], None] | None) -> Executor:
    """For workers that run Python functions."""
    del settings, on_ui
    return PythonExecutor()


Call = Callable[[], Callable[[], None]]  # Raises nothing; what it returns tells how it went.


class Threads:
    """Threads that stay when a call has ended, as many as were ever needed at a time.

    Daemons, unlike those of the standard library's pools: a call that does not return must not keep the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._free: list[queue.SimpleQueue[Call]] = []

    def begin(self, call: Call) -> None:
        """On a thread that has nothing else to do."""
        try:
            calls = self._free.pop()
        except IndexError:
            calls = queue.SimpleQueue[Call]()
            threading.Thread(target=self._serve, args=(calls,), name=self._name, daemon=True).start()
        calls.put(call)

    def _serve(self, calls: queue.SimpleQueue[Call]) -> None:
        while True:
            tell = calls.get()()
            self._free.append(calls)  # Before it tells: who hears of it may have the next call.
            tell()
            del tell  # And with it what it holds on to, while there is nothing else to do.


def _begin(call: Call) -> None:
    threading.Thread(target=lambda: call()(), name="qo-operator", daemon=True).start()


async def on_thread(function: Callable[..., Any], *args: Any, begin: Callable[[Call], None] = _begin) -> Any:
    """Call a plain function on a thread, with this context's variables. ``begin``: whose; by default one of its own.

    A thread cannot be stopped. If this is cancelled, the call is left behind: what it still writes belongs to an
    attempt that nobody will commit, and it does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            # Those that a future, or the loop around it, would not pass on to who waits.
            awkward = isinstance(error, StopIteration | SystemExit | KeyboardInterrupt)
            result.set_exception(Exited(f"the operator raised {error!r}") if awkward else error)

    def call() -> Callable[[], None]:
        value, error = None, None
        try:
            value = context.run(function, *args)
        except BaseException as raised:  # SystemExit too: it is the operator's, not this thread's.
            error = raised
        return functools.partial(tell, value, error)

    def tell(value: Any, error: BaseException | None) -> None:
        # The loop may have been closed: then nobody is left to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    context = contextvars.copy_context()
    begin(call)
    return await result
