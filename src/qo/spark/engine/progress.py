"""The progress of an attempt's jobs, summed up from what Spark reports about its stages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qo.spark.engine.engine import Progress


@dataclass(frozen=True, slots=True)
class Stage:
    tasks: int
    tasks_done: int
    active: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    stages: tuple[Stage, ...]
    ended: bool


def total(jobs: Iterable[Job]) -> Progress:
    stages = [stage for job in jobs for stage in job.stages]
    return Progress(
        stages_done=sum(stage.tasks_done >= stage.tasks for stage in stages),
        stages=len(stages),
        tasks_done=sum(stage.tasks_done for stage in stages),
        tasks=sum(stage.tasks for stage in stages),
        active=sum(stage.active for stage in stages),
    )


class Meter:
    """Reads the state of each job until it has ended, and then keeps it: Spark itself forgets old jobs."""

    def __init__(self) -> None:
        self._ended: dict[int, Job] = {}
        self._lock = threading.Lock()

    def read(self, job_ids: Iterable[int], read_job: Callable[[int], Job | None]) -> Progress:
        with self._lock:
            now = dict(self._ended)
            for number in job_ids:
                job = None if number in now else read_job(number)
                if job is None:
                    continue
                now[number] = job
                if job.ended:
                    self._ended[number] = job
        return total(now.values())


class Reports:
    """A handler of a server's progress reports: for each operation, all of its stages so far."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._active: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(
        self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        """Take a report, with the arguments that PySpark passes by name."""
        if operation_id is None:
            return
        reported = tuple(Stage(each.num_tasks, each.num_completed_tasks) for each in stages or ())
        with self._lock:
            # The last report of a quick operation names no stages; an earlier one may have.
            if reported or operation_id not in self._jobs:
                self._jobs[operation_id] = Job(reported, done)
            self._active[operation_id] = 0 if done else inflight_tasks

    def outstanding(self) -> int:
        """Return how many tasks of running operations are not done yet."""
        with self._lock:
            return sum(
                each.tasks - each.tasks_done for job in self._jobs.values() if not job.ended for each in job.stages
            )

    def read(self) -> Progress:
        with self._lock:
            jobs, active = list(self._jobs.values()), sum(self._active.values())
        summed = total(jobs)
        return Progress(summed.stages_done, summed.stages, summed.tasks_done, summed.tasks, active)


def job_of(info: Any, stages: Mapping[int, Any]) -> Job:
    """Make a job from what Spark's status tracker says about it and its stages."""
    ended = info.status != "RUNNING"
    all_stages = (
        Stage(each.numTasks, each.numCompletedTasks, each.numActiveTasks) for each in stages.values() if each
    )
    # A stage that never began, of a job that has ended, was skipped: its result existed already.
    return Job(tuple(stage for stage in all_stages if stage.tasks_done or not ended), ended)
