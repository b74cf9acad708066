"""Estimate the store's time from the Date of its replies.

Each reply carries the second that the store's clock showed at some moment between sending and receiving. So each
bounds the difference between the store's clock and our monotonic one from both sides; intersecting the bounds narrows
it to well below a second. Our own wall clock plays no part.

A reply that contradicts the others may come from a wrong clock on the way. It is kept as a suspect, and trusted once
the next reply confirms it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

DRIFT = 1e-4  # Clocks drift apart by less than this share of the time that has passed.
STALE_AFTER_S = 600.0
VAGUE_S = 0.75  # A single reply within half a second is more precise than this.
APART_S = 2 * VAGUE_S  # How far two such estimates may differ: one may be ahead, the other behind.
ASK_AGAIN_S = 10.0  # Asking a slow store more often does not improve the estimate.
CLOCK_SET = timedelta(seconds=2)  # Estimates and slewed clocks go back by less; by more, the clock was set.


@dataclass(frozen=True, slots=True)
class Offset:
    """Store time minus monotonic time lies between ``low`` and ``high``, as known at monotonic ``at``."""

    low: float
    high: float
    at: float
    suspect: Offset | None = None  # The bounds of the last reply, if they contradict these.

    @property
    def uncertainty_s(self) -> float:
        return (self.high - self.low) / 2

    @property
    def is_doubtful(self) -> bool:
        """Whether the store's clock may have been set. One more request would tell."""
        if self.suspect is None:
            return False
        apart_s = max(self.suspect.low - self.high, self.low - self.suspect.high)
        return apart_s > CLOCK_SET.total_seconds()

    def store_time(self, monotonic: float) -> float:
        return monotonic + (self.low + self.high) / 2

    def is_stale(self, monotonic: float) -> bool:
        return monotonic - self.at > STALE_AFTER_S

    def is_usable(self, monotonic: float, *, asked_at: float) -> bool:
        """Whether the estimate is good enough. If not, ask the store again; ``asked_at`` is when that was last done."""
        if self.uncertainty_s > VAGUE_S and monotonic - asked_at > ASK_AGAIN_S:
            return False
        return not self.is_stale(monotonic) and not self.is_doubtful


def observe(offset: Offset | None, *, sent_at: float, received_at: float, second: float) -> Offset:
    """Return the estimate after a reply dated ``second``, a whole epoch second that had begun by then."""
    reply = Offset(second - received_at, second + 1 - sent_at, received_at)
    if offset is None:
        return reply  # There is nothing to compare it with.
    narrowed = _intersect(offset, reply)
    if narrowed is None and offset.suspect is not None:
        narrowed = _intersect(offset.suspect, reply)
    return narrowed or replace(offset, suspect=reply)


def _intersect(offset: Offset, reply: Offset) -> Offset | None:
    """Return the bounds that both allow, or None if they contradict each other."""
    slack = DRIFT * max(0.0, reply.at - offset.at)
    low, high = max(reply.low, offset.low - slack), min(reply.high, offset.high + slack)
    return Offset(low, high, reply.at) if low <= high else None


def steady(last: datetime, reading: datetime) -> datetime:
    """Return the time to report after ``last``, now that the clock shows ``reading``.

    It never goes back a little, so that time does not run backwards. But a clock that was set back is followed, since
    new readers know no other time.
    """
    if reading < last and last - reading <= CLOCK_SET:
        return last
    return reading
