"""How long it took, after each fault, until what it had hit got on."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from chaos import history
from chaos.evidence import Evidence
from chaos.ground import PYTHON_WORKERS, QUEUE_WORKERS, SPARK_WORKERS
from chaos.monkey import Injected
from chaos.plan import Fault

FLEET, PIPELINES = QUEUE_WORKERS, (*PYTHON_WORKERS, *SPARK_WORKERS)
# Whose progress shows that these work again; everyone else speaks for itself.
SHOWN_BY = {
    "s3": (*FLEET, *PIPELINES),
    **dict.fromkeys(("queue-s3", "queue-file"), FLEET),
    "disk": (*FLEET, *PIPELINES),
    "home-disk": (*FLEET, *PIPELINES),
    **dict.fromkeys(("dispatcher", "postgres", "state", "pipeline-s3", "dispatcher-http"), PIPELINES),
    **dict.fromkeys(("state-file", "wake-ups-file"), PIPELINES),
}


@dataclass(frozen=True, slots=True)
class Progress:
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class Recovery:
    fault: Fault
    took_s: float


def recoveries(injected: Iterable[Injected], progress: Iterable[Progress]) -> list[Recovery]:
    """From the end of each fault to the next progress. A fault after which there was nothing left to do has none."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for each in sorted(progress, key=lambda each: each.at):
        times[each.by].append(each.at)
    found: list[Recovery] = []
    for each in injected:
        first = [_next(times[by], each.over) for by in SHOWN_BY.get(each.fault.target, (each.fault.target,))]
        if later := [at for at in first if at is not None]:
            found.append(Recovery(each.fault, min(later) - each.over))
    return found


def _next(times: Sequence[float], after: float) -> float | None:
    place = bisect.bisect_right(times, after)
    return times[place] if place < len(times) else None


def progress_of(found: Evidence, wall_offset_s: float) -> list[Progress]:
    """``wall_offset_s``: what the time of day is ahead of the clock that faults are timed by."""

    def at(moment: datetime) -> float:
        return moment.timestamp() - wall_offset_s

    points = [Progress(each.ended, each.by) for each in found.executions if each.ended is not None]
    points += [
        Progress(at(row["ended_at"]), row["worker_id"]) for row in found.attempts if row["outcome"] == "completed"
    ]
    points += [Progress(at(row["created_at"]), "scheduler") for row in found.tasks if row["job"] == "dropped"]
    points += [
        Progress(at(after.updated_at), "monitor")
        for states in found.fleet.values()
        for after in history.taken_back(states)
    ]
    return points
