"""The store's clock, learned from replies that were made anyway.

Each reply says which second it was at the store at some moment between sending and receiving. So each bounds
the difference between the store's clock and our monotonic one from both sides; intersecting the bounds narrows
it well below a second. Our own wall clock plays no part.

A reply that contradicts the others may come from a wrong clock on the way. It is kept as a suspect, and believed
when the next reply confirms it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

DRIFT = 1e-4  # Clocks drift apart by less than this share of the time that has passed.
STALE_AFTER_S = 600.0
VAGUE_S = 0.75  # One reply within half a second tells the time better.
APART_S = 2 * VAGUE_S  # Of two who tell the time so badly, one may be ahead by as much as the other is behind.
ASK_AGAIN_S = 10.0  # A store that is always slow tells no more, however often it is asked.
CLOCK_SET = timedelta(seconds=2)  # Guesses and slewed clocks go back by less; by more, the clock was set.


@dataclass(frozen=True, slots=True)
class Offset:
    """Store time minus monotonic time lies between ``low`` and ``high``, as known at monotonic ``at``."""

    low: float
    high: float
    at: float
    suspect: Offset | None = None  # What the last reply said, if that contradicts the bounds.

    @property
    def uncertainty_s(self) -> float:
        return (self.high - self.low) / 2

    @property
    def doubted(self) -> bool:
        """Whether the clock may have been set. Asking the store once more would tell."""
        if self.suspect is None:
            return False
        apart_s = max(self.suspect.low - self.high, self.low - self.suspect.high)
        return apart_s > CLOCK_SET.total_seconds()

    def store_time(self, monotonic: float) -> float:
        return monotonic + (self.low + self.high) / 2

    def stale(self, monotonic: float) -> bool:
        return monotonic - self.at > STALE_AFTER_S

    def usable(self, monotonic: float, *, asked_at: float) -> bool:
        """Whether to rely on it, or to ask the store once more, as was done at ``asked_at``."""
        if self.uncertainty_s > VAGUE_S and monotonic - asked_at > ASK_AGAIN_S:
            return False
        return not self.stale(monotonic) and not self.doubted


def observe(known: Offset | None, *, sent: float, received: float, second: float) -> Offset:
    """What is known after a reply that said ``second``, a whole epoch second that had begun by then."""
    said = Offset(second - received, second + 1 - sent, received)
    if known is None:
        return said  # There is nothing to compare it with.
    agreed = _narrowed(known, said)
    if agreed is None and known.suspect is not None:
        agreed = _narrowed(known.suspect, said)
    return agreed or replace(known, suspect=said)


def _narrowed(known: Offset, said: Offset) -> Offset | None:
    """What both allow, or None if they contradict each other."""
    slack = DRIFT * max(0.0, said.at - known.at)
    low, high = max(said.low, known.low - slack), min(said.high, known.high + slack)
    return Offset(low, high, said.at) if low <= high else None


def steady(told: datetime, read: datetime) -> datetime:
    """What to tell after ``told``, now that the clock reads ``read``.

    Never a little less, or time would run backwards. But a clock that was set back is followed: whoever starts to
    read it now knows no other time.
    """
    if read < told and told - read <= CLOCK_SET:
        return told
    return read
