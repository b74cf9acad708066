"""An event loop in which waiting costs nothing: when every task sleeps, the clock leaps to the next wake-up.

So an hour of timeouts, leases and backoff is simulated in as long as its events take to compute, and always in
the same order. Time here does not wait for threads or sockets: use it with in-memory stores and async handlers.
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
LOOK_EVERY = 64  # Rounds of the loop, after which it is seen that another thread calls even if all are busy.


class _Leaping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0
        self._rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._rounds += 1
        if timeout == 0 and self._rounds % LOOK_EVERY:
            return []  # There is something to do at once; to ask the system takes longer than most of it.
        woken = super().select(0)
        if not woken:
            if timeout is None:
                raise RuntimeError("every task waits for something that no task, timer or thread will bring about")
            self.elapsed_s += max(0.0, timeout)
        return woken


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _Leaping()
        # Asked so often that a call of Python's own is worth it.
        self.time = partial(attrgetter("elapsed_s"), self._leaping)  # type: ignore[method-assign]
        super().__init__(self._leaping)


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, in virtual time that begins at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def monotonic() -> float:
    """Seconds since the running loop began: for ``Ambient``."""
    return asyncio.get_running_loop().time()


def wall_clock() -> datetime:
    """The same as a date: for ``MemoryStore``."""
    return STARTED_AT + timedelta(seconds=monotonic())
