"""How long an attempt may still run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from qo.worker.loop import suspension


class Clock:
    """Started by the timeout layer. Stands still while the attempt waits for a permit: that is not its fault."""

    def __init__(self, timeout_s: float | None, remedy: str = "") -> None:
        """``remedy`` says, to who finds that the time was too short, which setting it came from."""
        self.timeout_s = timeout_s  # None: as long as it takes.
        self.remedy = remedy
        self.expired = False
        self._standing = False
        self._begun = 0.0
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None  # None: not started, standing still, or over.
        self._expire: Callable[[], None] | None = None

    def start(self, expire: Callable[[], None]) -> None:
        """Begin to count, and call this when the time is over. A clock without a timeout never calls."""
        if self.timeout_s is None:
            return
        self._begun = now()
        self._deadline = self._begun + self.timeout_s
        self._expire = expire
        self._arm()

    def stop(self) -> None:
        """The attempt has ended."""
        self._expire = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def deadline(self) -> float | None:
        """When the attempt is stopped, by the event loop's time; None: never, or not while it stands still."""
        return None if self._standing else self._deadline

    @property
    def allowed_s(self) -> float:
        """How much time the attempt was given in all, extensions included."""
        return (self._deadline or self._begun) - self._begun

    def extend(self, more_s: float) -> None:
        """Let the attempt run for so long from now, at least."""
        if self._deadline is not None and not self.expired:
            self._deadline = max(self._deadline, now() + more_s)

    @contextmanager
    def stopped(self) -> Generator[None]:
        if self._timer is None or self._deadline is None:
            yield
            return
        since = now()
        self._timer.cancel()
        self._timer = None
        self._standing = True
        try:
            yield
        finally:
            self._standing = False
            waited_s = now() - since
            self._begun += waited_s
            self._deadline += waited_s
            self._arm()

    def _arm(self) -> None:
        if self._deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(self._deadline, self._ring, self._deadline)

    def _ring(self, armed_for: float) -> None:
        if self._deadline is not None and self._deadline > armed_for:
            self._arm()  # Extended meanwhile.
            return
        self._timer = None
        self.expired = True
        if self._expire is not None:
            self._expire()


def now() -> float:
    """The event loop's time: all that happens within one worker is timed by it."""
    return asyncio.get_running_loop().time()


def lease_time(loop: asyncio.AbstractEventLoop | None = None) -> float:
    """What leases are timed by: the loop's time, and however long the machine has slept. From another thread, with
    the worker's ``loop``."""
    return (loop or asyncio.get_running_loop()).time() + suspension.slept_s()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that we are in; None on a thread without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
