"""Exceptions that a handler may raise to decide what happens to its task. Any other exception means: try again."""

from __future__ import annotations

from qo.queue.options import DELAY_S_MAX, check_number


class Signal(Exception):
    """Base of the exceptions below; not an error of qo."""


class Retry(Signal):
    """This attempt failed; try again, after ``delay_s`` if given, otherwise after the retry policy's delay."""

    def __init__(self, reason: str = "retry", *, delay_s: float | None = None) -> None:
        super().__init__(reason)
        check_number("delay_s", delay_s, 0, DELAY_S_MAX)
        self.delay_s = delay_s


class Reject(Signal):
    """This task can never succeed: fail it now, with no further attempt."""


class Reschedule(Signal):
    """Try again in ``delay_s`` seconds; this is not a failure. ``reason`` tells people what the task waits for."""

    def __init__(self, delay_s: float, reason: str | None = None) -> None:
        super().__init__(f"rescheduled by {delay_s:g} s" + (f": {reason}" if reason else ""))
        check_number("delay_s", delay_s, 0, DELAY_S_MAX)
        self.delay_s = delay_s
        self.reason = reason
