"""Clocks: how long an attempt may still run, and the times by which a worker measures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager

from qo.worker.loop import suspension

log = logging.getLogger(__name__)


class Clock:
    """The time limit of one attempt, started by the timeout layer. It pauses while the attempt waits for a permit."""

    def __init__(self, timeout_s: float | None, remedy: str = "") -> None:
        """``remedy`` names the setting that the timeout came from, for the error message."""
        self.timeout_s = timeout_s  # None: no limit.
        self.remedy = remedy
        self.expired = False
        self._is_paused = False
        self._started_at = 0.0
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None  # None: not started, paused, or over.
        self._expire: Callable[[], None] | None = None

    def start(self, expire: Callable[[], None]) -> None:
        """Start the clock, and call ``expire`` when the time is over; never, if there is no timeout."""
        if self.timeout_s is None:
            return
        self._started_at = now()
        self._deadline = self._started_at + self.timeout_s
        self._expire = expire
        self._arm()

    def stop(self) -> None:
        """Stop the clock for good: the attempt has ended."""
        self._expire = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def deadline(self) -> float | None:
        """When the attempt is stopped, by the event loop's time; None: never, or the clock is paused."""
        return None if self._is_paused else self._deadline

    @property
    def allowed_s(self) -> float:
        """How much time the attempt has in all, extensions included."""
        return (self._deadline or self._started_at) - self._started_at

    def extend(self, more_s: float) -> None:
        """Let the attempt run for at least so long from now."""
        if self._deadline is not None and not self.expired:
            self._deadline = max(self._deadline, now() + more_s)

    @contextmanager
    def pause(self) -> Generator[None]:
        """Pause the clock within the ``with`` block."""
        if self._timer is None or self._deadline is None:
            yield
            return
        since = now()
        self._timer.cancel()
        self._timer = None
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False
            waited_s = now() - since
            self._started_at += waited_s
            self._deadline += waited_s
            self._arm()

    def _arm(self) -> None:
        if self._deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(self._deadline, self._on_timer, self._deadline)

    def _on_timer(self, armed_for: float) -> None:
        if self._deadline is not None and self._deadline > armed_for:
            self._arm()  # Extended meanwhile.
            return
        self._timer = None
        self.expired = True
        if self._expire is not None:
            self._expire()


def now() -> float:
    """Return the event loop's time, by which everything within one worker is timed."""
    return asyncio.get_running_loop().time()


def lease_time(loop: asyncio.AbstractEventLoop | None = None) -> float:
    """Return the time by which leases are measured: the loop's time plus how long the machine has slept. Another thread
    passes the worker's ``loop``."""
    return (loop or asyncio.get_running_loop()).time() + suspension.slept_s()


def call_on_loop(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Call an action in the event loop's thread: at once if this is it. An action for a loop that has ended is lost."""
    if running_loop() is loop:
        action()
        return
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:
        log.debug("the event loop has ended")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop of this thread; None if it has none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
