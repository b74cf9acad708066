"""Processes in one virtual-time loop: each can be stopped for a while, as by SIGSTOP, or for good, as by SIGKILL.

A process is whatever runs in a context that bears its name: a task and everything that it starts. While it is stopped
none of its callbacks runs, its timers included. Afterwards all of them run at once, late, as on a real machine.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine, Set
from itertools import count
from typing import Any, TypeVar

from qo.testing import virtual

T = TypeVar("T")

TURNS_MAX = 20_000  # Of the loop at one moment. Whatever takes more asks again and again without waiting.
PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("PROCESS", default="")


class _Future(asyncio.Future[Any]):
    """In a set, in an order that is the same in every run. Where in memory it lies is not."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """As a future."""

    def __init__(self, number: int, work: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number


class Machines(virtual.VirtualLoop):
    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()
        self.set_task_factory(self._task)
        self.after_step: Callable[[], None] | None = None
        self._resumed_at: dict[str, float] = {}  # When each process last went on.
        self._turns = 0  # Of the loop since time last went by.
        self.over = False  # Then nothing of a process reaches anybody, and none is stopped any more.
        self.refusal: asyncio.Future[None] = self.create_future()  # Fails when something happens that cannot.
        self._halted: dict[str, list[asyncio.Handle]] = {}
        self._dead: dict[str, asyncio.Event] = {}
        self._roots: list[asyncio.Task[Any]] = []
        self._outside = contextvars.Context()
        self._contexts: dict[str, contextvars.Context] = {}

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._numbers), loop=self)

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return _Task(next(self._numbers), work, loop=loop, **options)

    def context(self, name: str) -> contextvars.Context:
        """Where everything of the process is built and runs. Objects may keep a copy of the context in which they are
        built, and start tasks in it: built elsewhere, they would start tasks that belong to no process."""
        if name not in self._contexts:
            self._contexts[name] = contextvars.copy_context()
            self._contexts[name].run(PROCESS.set, name)
        return self._contexts[name]

    def spawn(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self.over:
            work.close()
            raise asyncio.CancelledError
        root = self.create_task(work, context=self.context(name).copy())
        self._roots.append(root)
        return root

    def call_in(self, name: str, act: Callable[[], object]) -> None:
        """Have the process do this, as a signal would: not before it goes on, if it is stopped; never, if it died."""
        self.call_soon(self._obey, act, context=self.context(name).copy())

    def _obey(self, act: Callable[[], object]) -> None:
        if self.over:
            return  # It died before the order reached it.
        try:
            act()
        except Exception as error:
            self.refuse(f"{self.time():.3f}: {PROCESS.get()} did not obey: {error!r}")

    def refuse(self, what: str) -> None:
        """End the run: the simulation itself is at fault."""
        if not self.over and not self.refusal.done():
            self.refusal.set_exception(AssertionError(what))

    def require_process(self, what: str) -> str:
        """The process that this belongs to. The run fails at once if there is none: neither a pause nor a kill would
        reach it."""
        process = PROCESS.get()
        if not process:
            self.refuse(f"{self.time():.3f}: {what} belongs to no process")
        return process

    async def ended(self, name: str, root: asyncio.Task[Any]) -> bool:
        """Wait until the process has ended by itself (True) or was killed."""
        death = asyncio.ensure_future(self._death(name).wait())
        await asyncio.wait({root, death}, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        return not self._death(name).is_set()

    async def death(self, name: str) -> None:
        """Wait until it was killed."""
        await self._death(name).wait()

    def alive(self, name: str) -> bool:
        return not self._death(name).is_set()

    def stopped(self, name: str) -> bool:
        """Whether it stands still, or did so a moment ago and has not had its turn since."""
        return name in self._halted or self._resumed_at.get(name) == self.time()

    @property
    def halted(self) -> Set[str]:
        """The processes that stand still."""
        return self._halted.keys()

    def pause(self, name: str, for_s: float) -> None:
        if name not in self._halted and not self.over:
            self._halt(name)
            self.call_later(for_s, self._resume, name, context=self._outside)

    def kill(self, name: str) -> None:
        if self._death(name).is_set() or self.over:
            return
        if name not in self._halted:
            self._halt(name)
        self._death(name).set()  # At once: a pause that ends in this very turn must not wake it.

    async def bury(self) -> None:
        """End every process, without anything of it reaching anybody, so that the loop can be closed."""
        self.over = True
        for name in list(self._halted):
            self._wake(name)
        left = [root for root in self._roots if not root.done()]
        for root in left:
            root.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        backlog = self._halted.get(_process(handle)) if self._halted else None
        (self._ready if backlog is None else backlog).append(handle)
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def _run_once(self) -> None:
        """As the loop's own, for one that has neither threads nor sockets to wait for: that takes half as long."""
        ready, scheduled, clock = self._ready, self._scheduled, self._jumping
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:
            if not scheduled:
                raise RuntimeError("every task waits for something that no task or timer will bring about")
            wait_s = scheduled[0]._when - clock.elapsed_s
            if wait_s > 0.0:
                clock.elapsed_s += wait_s
                self._turns = 0
        self._turns += 1
        if self._turns == TURNS_MAX:
            self.refuse(f"{self.time():.3f}: {TURNS_MAX:,} turns of the loop without time going by")
        end = clock.elapsed_s + self._clock_resolution
        while scheduled and scheduled[0]._when < end:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        if self.after_step is not None:
            self.after_step()

    def _death(self, name: str) -> asyncio.Event:
        return self._dead.setdefault(name, asyncio.Event())

    def _halt(self, name: str) -> None:
        timers = [each for each in self._scheduled if _process(each) == name]
        ready = [n for n, each in enumerate(self._ready) if _process(each) == name]
        self._halted[name] = [*(self._ready[n] for n in ready), *timers]
        for n in ready:
            # The loop counts on as many as there were when its turn began.
            self._ready[n] = asyncio.Handle(_nothing, (), self, self._outside)
        if timers:
            self._scheduled[:] = [each for each in self._scheduled if _process(each) != name]
            heapq.heapify(self._scheduled)

    def _resume(self, name: str) -> None:
        if self.alive(name):
            self._resumed_at[name] = self.time()
            self._wake(name)

    def _wake(self, name: str) -> None:
        for handle in self._halted.pop(name, []):
            if isinstance(handle, asyncio.TimerHandle):
                heapq.heappush(self._scheduled, handle)
            else:
                self._ready.append(handle)


def _nothing() -> None:
    return


def _process(handle: asyncio.Handle) -> str:
    return "" if handle._context is None else handle._context.get(PROCESS, "")


def machines() -> Machines:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Machines)
    return loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, in virtual time; processes that are left in the end are killed."""

    async def whole() -> T:
        loop, working = machines(), asyncio.ensure_future(main)
        try:
            await asyncio.wait({working, loop.refusal}, return_when=asyncio.FIRST_COMPLETED)
            if loop.refusal.done():
                working.cancel()
                await asyncio.wait({working})
                loop.refusal.result()
            return working.result()
        finally:
            loop.after_step = None
            await loop.bury()

    with asyncio.Runner(loop_factory=Machines) as runner:
        return runner.run(whole())
