"""The store's clock, learned from replies that were made anyway.

Each reply says which second it was at the store at some moment between sending and receiving. So each bounds
the difference between the store's clock and our monotonic one from both sides; intersecting the bounds narrows
it well below a second. Our own wall clock plays no part.
"""

from __future__ import annotations

from dataclasses import dataclass

DRIFT = 1e-4  # Clocks drift apart by less than this share of the time that has passed.
STALE_AFTER_S = 600.0


@dataclass(frozen=True, slots=True)
class Offset:
    """Store time minus monotonic time lies between ``low`` and ``high``, as known at monotonic ``at``."""

    low: float
    high: float
    at: float

    @property
    def uncertainty_s(self) -> float:
        return (self.high - self.low) / 2

    def store_time(self, monotonic: float) -> float:
        return monotonic + (self.low + self.high) / 2

    def stale(self, monotonic: float) -> bool:
        return monotonic - self.at > STALE_AFTER_S


def observe(known: Offset | None, *, sent: float, received: float, second: float) -> Offset:
    """What is known after a reply that said ``second``, a whole epoch second that had begun by then."""
    low, high = second - received, second + 1 - sent
    if known is None:
        return Offset(low, high, received)
    slack = DRIFT * max(0.0, received - known.at)
    low_both, high_both = max(low, known.low - slack), min(high, known.high + slack)
    if low_both > high_both:
        return Offset(low, high, received)  # The store's clock was set: only the newest reply counts.
    return Offset(low_both, high_both, received)
