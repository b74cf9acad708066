"""Which of the tasks that wait for company are called together, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Waiting(NamedTuple):
    """A task that waits to be called with others."""

    since: float
    alone: bool  # It must be called by itself: it may have been what made its last batch fail.


def must_run_alone(retry_count: int, max_retries: int) -> bool:
    """Whether an attempt must not share a call. The last one after a failure: no task may fail for good because of
    another. Not a first attempt, even if it is the only one: it has made no batch fail."""
    return 0 < max_retries <= retry_count


def choose_batch(waiting: Sequence[Waiting], *, size: int, wait_s: float, now: float) -> list[int]:
    """Return the positions of the tasks to call now, in order of arrival; none: wait for more.

    A task that must run alone does so at once. The others run when there are ``size`` of them, or when the first has
    waited for ``wait_s``.
    """
    for position, each in enumerate(waiting):
        if each.alone:
            return [position]
    if len(waiting) >= size or (waiting and now >= waiting[0].since + wait_s):
        return list(range(min(size, len(waiting))))
    return []


def next_due(waiting: Sequence[Waiting], *, wait_s: float) -> float | None:
    """Return when the first task has waited long enough; None: nothing waits."""
    return waiting[0].since + wait_s if waiting else None
