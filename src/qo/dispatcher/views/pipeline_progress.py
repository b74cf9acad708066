"""How far the live versions of all pipelines have come: tasks by job, new events, failures, and times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.dag import SourceKind, Strategy
from qo.core.pipeline.plan import Plan
from qo.core.pipeline.states import EventState
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import failures as failed_tasks
from qo.dispatcher.versions import cutover

RUNNING_MAX = 8  # Running tasks that are returned.
EVENTS_MAX = 1000  # New events that are counted.
FAILURES_MAX = 20
TIMED_TASKS_MAX = 50_000  # Tasks of one version whose times are summed up.

_tasks, _events, _generations = schema.tasks, schema.events, schema.generations
_UNSPREAD = (
    sa.select(schema.invalidations.c.id)
    .where(schema.invalidations.c.spread_at.is_(None))
    .order_by(schema.invalidations.c.created_at)  # The order of its index.
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class JobState:
    name: str
    runtime: str
    source: SourceKind | None = None
    completed: int = 0
    expected: int = 0  # Tasks that do not exist yet, because their input is still being made.
    running: int = 0
    pending: int = 0
    failed: int = 0
    rows: int = 0  # Committed rows of all its outputs.
    partitions: int = 0
    paused: bool = False
    parked: bool = False  # A side effect of a version that is not active: its tasks wait for the cutover.

    @property
    def open(self) -> int:
        """Tasks that wait or run. Always-on sources and parked jobs count as 0: nobody waits for them to end."""
        return 0 if self.always_on or self.parked else self.running + self.pending

    @property
    def total(self) -> int:
        """All tasks known so far; the number grows while sources emit."""
        return self.completed + self.running + self.pending + self.failed + self.expected

    @property
    def always_on(self) -> bool:
        return self.source is SourceKind.ALWAYS_ON


@dataclass(frozen=True, slots=True)
class VersionState:
    """A live version of a pipeline. A staged version lists only the jobs that it builds anew."""

    dag: str
    number: int
    status: VersionStatus
    jobs: tuple[JobState, ...]  # Each after those that it reads.

    @property
    def active(self) -> bool:
        return self.status is VersionStatus.ACTIVE

    @property
    def open(self) -> int:
        return sum(each.open for each in self.jobs)


@dataclass(frozen=True, slots=True)
class RunningTask:
    job: LiveJob
    about: str  # Its partition or cursor.
    progress: Any  # As its worker last reported it.


@dataclass(frozen=True, slots=True)
class Failure:
    task_id: str
    job: str
    about: str
    error: str


@dataclass(frozen=True, slots=True)
class Timing:
    """The tasks of one job that ended since a moment."""

    job: str
    tasks: int
    busy_s: float  # Sum over all its tasks.
    began: datetime
    ended: datetime


def jobs_in_order(live: Topology) -> list[LiveJob]:
    """Return all live jobs, each after those that it reads."""
    return sorted(live.jobs.values(), key=lambda job: (live.depth[job.edition_id], job.job.name))


def version_states(jobs: Iterable[LiveJob], states: Mapping[str, JobState]) -> tuple[VersionState, ...]:
    """Group the states of jobs (by edition) into versions: by pipeline, and the active version first."""
    versions: dict[tuple[str, bool, int], list[LiveJob]] = {}
    for job in jobs:
        is_staged = job.status is not VersionStatus.ACTIVE
        versions.setdefault((job.dag, is_staged, job.version_number), []).append(job)
    return tuple(
        VersionState(dag, number, own[0].status, tuple(states[job.edition_id] for job in own))
        for (dag, _, number), own in sorted(versions.items())
    )


def job_states(tx: Tx, live: Topology, jobs: Sequence[LiveJob]) -> dict[str, JobState]:
    """Return the state of each job by edition. ``jobs``: each after those that it reads."""
    counts_by_edition = failed_tasks.counts(tx, live.jobs.keys())
    sizes = _sizes(tx, jobs)
    states: dict[str, JobState] = {}
    writers: dict[str, JobState] = {}  # By generation.
    for job in jobs:
        counts = counts_by_edition.get(job.edition_id, {})
        outputs = [sizes[each.generation_id] for each in job.outputs if each.generation_id in sizes]
        state = JobState(
            name=job.job.name,
            runtime=job.job.runtime,
            source=source_kind(job),
            completed=counts.get(Status.COMPLETED, 0),
            expected=_count_expected(live, job, writers),
            running=counts.get(Status.RUNNING, 0),
            pending=counts.get(Status.PENDING, 0),
            failed=counts.get(Status.FAILED, 0),
            rows=sum(row["rows"] for row in outputs),
            partitions=max((row["partitions"] + row["segments"] for row in outputs), default=0),
            paused=live.pause_reason(job) is not None,
            parked=not job.outputs and job.status is not VersionStatus.ACTIVE,
        )
        states[job.edition_id] = state
        writers |= {each.generation_id: state for each in job.outputs}
    return states


def source_kind(job: LiveJob) -> SourceKind | None:
    """Return the kind of a source; None for a job that is not one."""
    if not job.job.is_source:
        return None
    return job.job.source.kind if job.job.source is not None else SourceKind.MANUAL


def _count_expected(live: Topology, job: LiveJob, writers: Mapping[str, JobState]) -> int:
    """Return how many tasks a job that runs per partition will get for partitions that are still being made.

    A partition that exists has its task already, so the count ends at 0. It is an upper bound where partitions are
    filtered or remade.
    """
    if job.job.execution_strategy is not Strategy.PER_PARTITION:
        return 0
    read = [each.generation_id or live.current.get(each.dataset_id, "") for each in job.inputs if each.trigger]
    upstream = [writers[generation] for generation in read if generation in writers]
    expected = max((writer.open + writer.expected for writer in upstream), default=0)
    # Of a month's days, about one task will come.
    return math.ceil(expected * max((each.ratio for each in job.maps.values()), default=1.0))


def _sizes(tx: Tx, jobs: Iterable[LiveJob]) -> dict[str, sa.RowMapping]:
    """Return the row of each generation that the jobs write."""
    generations = sorted({output.generation_id for job in jobs for output in job.outputs})
    sizes: dict[str, sa.RowMapping] = {}
    for some in batches(generations):
        rows = tx.all(sa.select(_generations).where(_generations.c.id.in_(some)))
        sizes |= {row["id"]: row for row in rows}
    return sizes


def count_new_events(tx: Tx) -> dict[str, int]:
    """Count the events that are not routed yet, by dataset; up to EVENTS_MAX altogether."""
    some = (
        sa.select(_events.c.dataset_id).where(_events.c.state == EventState.PENDING).limit(EVENTS_MAX).subquery()
    )
    query = sa.select(some.c.dataset_id, sa.func.count().label("n")).group_by(some.c.dataset_id)
    return {row.dataset_id: row.n for row in tx.execute(query)}


def has_open_invalidations(tx: Tx) -> bool:
    """Tell whether data was replaced or removed and its readers have not been invalidated yet."""
    return tx.one(_UNSPREAD) is not None


def running_tasks(tx: Tx, live: Topology) -> list[RunningTask]:
    """Return the oldest running tasks, without those of always-on sources."""
    ending = [each.edition_id for each in live.jobs.values() if source_kind(each) is not SourceKind.ALWAYS_ON]
    query = sa.select(_tasks.c.edition_id, _tasks.c.partition_key, _tasks.c.cursor, _tasks.c.progress)
    rows: list[sa.RowMapping] = []
    for some in batches(sorted(ending)):
        running = query.where(_tasks.c.edition_id.in_(some), _tasks.c.status == Status.RUNNING)
        rows += tx.all(running.order_by(_tasks.c.created_at).limit(RUNNING_MAX))
    return [
        RunningTask(
            job=live.jobs[row["edition_id"]],
            about=str(row["partition_key"] if row["partition_key"] is not None else row["cursor"]),
            progress=row["progress"],
        )
        for row in rows[:RUNNING_MAX]
    ]


def running_since(tx: Tx, job: LiveJob) -> datetime | None:
    """Return when the running task of an always-on source was started; None if none runs."""
    row = tx.one(
        sa.select(_tasks.c.started_at).where(
            _tasks.c.edition_id == job.edition_id, _tasks.c.status == Status.RUNNING
        )
    )
    return None if row is None else row["started_at"]


def version_plan(tx: Tx, dag: str, version: int) -> Plan:
    return cutover.stored_plan(tx, cutover.find(tx, dag, version))


def failures(tx: Tx, dag: str, version: int) -> list[Failure]:
    """Return the last tasks of a version that have failed for good and were not superseded."""
    editions = [job.edition_id for job in version_plan(tx, dag, version).jobs]
    page = failed_tasks.open_page(tx, topology.load(tx), editions, None, FAILURES_MAX)
    query = sa.select(_tasks).where(_tasks.c.id.in_([id_ for _, id_ in page.places]))
    return [
        Failure(row["id"], row["job"], str(row["partition_key"] or row["cursor"]), row["last_error"] or "")
        for row in tx.all(query.order_by(_tasks.c.created_at))
    ]


def timings(tx: Tx, dag: str, version: int, since: datetime) -> list[Timing]:
    """Return the times of each job of a version that has completed tasks since a moment."""
    plan = version_plan(tx, dag, version)
    query = (
        sa.select(_tasks.c.edition_id, _tasks.c.started_at, _tasks.c.completed_at)
        .where(
            _tasks.c.edition_id.in_([job.edition_id for job in plan.jobs]),
            _tasks.c.status == Status.COMPLETED,
            _tasks.c.completed_at >= since,
        )
        .limit(TIMED_TASKS_MAX)
    )
    spans_by_edition: dict[str, list[tuple[datetime, datetime]]] = {}
    for row in tx.all(query):
        spans_by_edition.setdefault(row["edition_id"], []).append((row["started_at"], row["completed_at"]))
    return [
        Timing(
            job.job.name,
            len(spans),
            sum((ended - began).total_seconds() for began, ended in spans),
            min(began for began, _ in spans),
            max(ended for _, ended in spans),
        )
        for job in plan.jobs
        if (spans := spans_by_edition.get(job.edition_id))
    ]
