"""An event loop in virtual time: when every task sleeps, its clock jumps to the next wake-up.

An hour of timeouts, leases and backoff takes only as long as its events take to compute, and always runs in the same
order. The clock does not wait for threads or sockets: use it with in-memory stores and async handlers.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")

STARTED_AT = datetime(2026, 1, 1, tzinfo=UTC)
POLL_ROUNDS = 64  # A busy loop polls for calls from other threads once in so many rounds.


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0
        self._rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._rounds += 1
        if timeout == 0 and self._rounds % POLL_ROUNDS:
            return []  # Something is ready to run, and polling would take longer than most of it.
        woken = super().select(0)
        if not woken:
            if timeout is None:
                raise RuntimeError("deadlock: every task waits, and no timer or thread will wake one")
            self.elapsed_s += max(0.0, timeout)
        return woken


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        # Called very often, and faster without a Python function.
        self.time = partial(attrgetter("elapsed_s"), self._jumping)  # type: ignore[method-assign]
        super().__init__(self._jumping)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine as ``asyncio.run`` does, in virtual time that begins at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def monotonic() -> float:
    """Return the seconds since the running loop began: the monotonic clock of ``Ambient``."""
    return asyncio.get_running_loop().time()


def wall_clock() -> datetime:
    """Return the time of the running loop as a date: the clock of ``MemoryStore``."""
    return STARTED_AT + timedelta(seconds=monotonic())
