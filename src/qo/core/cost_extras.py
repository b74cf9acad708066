"""What a queue costs beside plain tasks: order, dependencies, uniqueness, limits, and callers that wait over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, fields

from qo.core.flow_pricing import (
    requests_per_dependency,
    requests_per_grouped_task,
    requests_per_unique_task,
)
from qo.core.limit_pricing import keyed_limits_per_day, limit_per_day
from qo.core.load import Delivery, Load
from qo.core.poll import Pace
from qo.core.pricing import Operation, Requests, add, multiply
from qo.core.rhythm import DEFAULT_RHYTHM, Rhythm
from qo.errors import UsageError

WAITING_PACE = Pace(min_s=0.1, max_s=2.0)  # At which `qo serve` reads a task that somebody waits for.


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """How much of it there is, beside the tasks themselves."""

    grouped_per_day: float = 0.0  # Tasks with others before them in their group.
    dependencies_per_day: float = 0.0  # A task that waits for three others has three.
    unique_per_day: float = 0.0  # Tasks that nobody else may submit meanwhile.
    limits: float = 0.0  # Types with a limit over all workers, in use all day.
    keyed_per_day: float = 0.0  # Tasks with a limit for each value of a member of their input, …
    keys: int = 100  # … and how many values there are.
    waits_per_day: float = 0.0  # Calls that wait for a task over HTTP, from its submission to its end.

    def __post_init__(self) -> None:
        if any(getattr(self, each.name) < 0 for each in fields(self)):
            raise UsageError(
                "tasks in groups, dependencies, unique tasks, limits, keys and waits cannot be negative"
            )


NO_EXTRAS = Extras()


def flows_per_day(
    extras: Extras, load: Load, rhythm: Rhythm = DEFAULT_RHYTHM, delivery: Delivery = Delivery.BOARD
) -> Requests:
    parts = (
        multiply(requests_per_grouped_task(), extras.grouped_per_day),
        multiply(requests_per_dependency(), extras.dependencies_per_day),
        multiply(requests_per_unique_task(existing=False), extras.unique_per_day),
        multiply(limit_per_day(load, rhythm), extras.limits),
        keyed_limits_per_day(load, extras.keyed_per_day, extras.keys, rhythm, delivery),
    )
    total: Requests = {}
    for part in parts:
        total = add(total, part)
    return total


def serving_per_day(extras: Extras, task_s: float) -> Requests:
    return multiply(requests_per_wait(task_s), extras.waits_per_day)


def requests_per_wait(seconds: float) -> Requests:
    """Return the requests of a call that waits so long for a task, alone: the task is read, more and more seldom."""
    reads, pace, left_s = 1, WAITING_PACE.after(found_work=False), seconds
    while left_s > 0:
        reads, left_s = reads + 1, left_s - pace.current_s
        pace = pace.after(found_work=False)
    return {Operation.GET: reads}
