"""What tasks took, by periods of time: how many there are, how long half of them ran, and worker time in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PERIODS_MAX = 60
_LENGTHS_S = (60, 300, 900, 3_600, 4 * 3_600, 86_400, 7 * 86_400, 28 * 86_400)


@dataclass(frozen=True, slots=True)
class TaskEffort:
    """A task that has ended. Times are seconds since 1970."""

    ended_at: float
    has_failed: bool
    attempts: int
    ran_s: float  # All attempts together.
    waited_s: float


@dataclass(frozen=True, slots=True)
class Period:
    begin: int
    tasks: Sequence[TaskEffort]

    @property
    def failed(self) -> int:
        return sum(each.has_failed for each in self.tasks)

    @property
    def attempts(self) -> int:
        return sum(each.attempts for each in self.tasks)

    @property
    def worker_s(self) -> float:
        return sum(each.ran_s for each in self.tasks)

    @property
    def waited_s(self) -> float | None:
        return quantile((each.waited_s for each in self.tasks), 0.5)

    def ran_s(self, part: float) -> float | None:
        """Return the time within which so large a part of the completed tasks ran; None if there are none."""
        return quantile((each.ran_s for each in self.tasks if not each.has_failed), part)


def quantile(values: Iterable[float], part: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


def period_length(first: float, last: float) -> int:
    """Return the shortest usual length by which there are at most PERIODS_MAX whole periods between two times."""
    span = max(0.0, last - first)
    fitting = (each for each in _LENGTHS_S if span / each <= PERIODS_MAX)
    return next(fitting, int(span / PERIODS_MAX) + 1)


def split_periods(tasks: Sequence[TaskEffort]) -> tuple[int, list[Period]]:
    """Return the length of a period, and all periods from the first to the last task, also empty ones."""
    if not tasks:
        return _LENGTHS_S[0], []
    first, last = min(each.ended_at for each in tasks), max(each.ended_at for each in tasks)
    length = period_length(first, last)
    by_number: dict[int, list[TaskEffort]] = {}
    for each in tasks:
        by_number.setdefault(int(each.ended_at // length), []).append(each)
    numbers = range(int(first // length), int(last // length) + 1)
    return length, [Period(number * length, by_number.get(number, [])) for number in numbers]
