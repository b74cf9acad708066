"""When a worker that has nothing to do ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from qo.core.timespan import parse_timespan_s

NEVER = "never"
LEAST_S = 1.0  # A worker that is told to end at once still looks for tasks that it has not found yet.


def parse_idle_s(text: str) -> float | None:
    """Return an ``idle_timeout`` in seconds; None: never. Raises ValueError for anything else."""
    if text.strip().lower() == NEVER:
        return None
    seconds = parse_timespan_s(text)
    if seconds is None:
        raise ValueError(f"{text!r} is neither never, nor 0, nor a time such as 5m")
    return seconds


def longest_idle_s(texts: Iterable[str | None], otherwise: str | None) -> float | None:
    """Return how long a worker stays for the jobs that it has run: as long as the most patient of them wants.

    ``texts``: their ``idle_timeout``; None: the job sets none, and ``otherwise`` counts, as it does for a worker that
    has run nothing. None: the worker stays for ever.
    """
    limits_s = [parse_idle_s(each or otherwise or NEVER) for each in texts] or [parse_idle_s(otherwise or NEVER)]
    longest = max(math.inf if each is None else each for each in limits_s)
    return None if math.isinf(longest) else longest


@dataclass(frozen=True, slots=True)
class Idleness:
    """Since when a worker has had nothing to do, as far as it was observed."""

    since: float
    claimed: int = 0

    def observe(self, *, claimed: int, busy: bool, now: float) -> Idleness:
        """``claimed``: how many tasks it has claimed so far. ``busy``: it cannot be idle now."""
        return Idleness(now, claimed) if busy or claimed != self.claimed else self

    def remaining_s(self, limit_s: float | None, now: float) -> float:
        """Return after how many seconds the worker ends if nothing comes; 0: now."""
        return math.inf if limit_s is None else max(0.0, self.since + max(limit_s, LEAST_S) - now)
