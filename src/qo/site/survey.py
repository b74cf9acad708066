"""How far a version of a pipeline is, read from the state: for who waits for it, and for who looks on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa

from qo.core.flow.dag import SourceKind, Strategy
from qo.core.flow.plan import Plan, PlannedJob
from qo.core.task import Status
from qo.dispatcher import backlog, cutover
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx

RUNNING_MAX = 8  # So many running tasks are shown.
FAILED_MAX = 20
TIMES_MAX = 50_000  # Tasks of one run whose times are summed up.

_tasks, _events, _generations = schema.tasks, schema.events, schema.generations
_UNSPREAD = (
    sa.select(schema.invalidations.c.id)
    .where(schema.invalidations.c.spread_at.is_(None))
    .order_by(schema.invalidations.c.created_at)  # As its index has them.
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class JobState:
    name: str
    runtime: str
    source: bool
    always_on: bool
    done: int = 0
    total: int = 0  # As far as is known; it grows while sources speak.
    running: int = 0
    pending: int = 0
    failed: int = 0
    rows: int = 0  # Of all its outputs, as committed.
    partitions: int = 0

    @property
    def open(self) -> int:
        return self.running + self.pending


@dataclass(frozen=True, slots=True)
class Running:
    """A task that runs now."""

    job: str
    about: str  # Its partition or cursor.
    stages: str  # How far its Spark jobs are, in words; empty: nothing is known.


@dataclass(frozen=True, slots=True)
class Survey:
    jobs: tuple[JobState, ...]  # In the order of the data.
    events: int  # Not routed yet; up to one page of them.
    running: tuple[Running, ...]
    asleep: bool  # Every always-on source runs, and has done so for a while.
    serving: int = 0  # Open tasks that only the version has which serves while this one is built.
    spreading: bool = False  # Something was replaced or removed, and its readers have not heard of it yet.

    @property
    def open(self) -> int:
        """Tasks that wait or run, without those of sources that never end."""
        return self.serving + sum(each.open for each in self.jobs if not each.always_on)

    def quiet(self, waiting: int = 0) -> bool:
        """Whether nothing is left to do but so many tasks that wait for something else."""
        return self.open <= waiting and self.events == 0 and not self.spreading and self.asleep


def survey(tx: Tx, dag: str, version: int, *, settle_s: float) -> Survey:
    """``settle_s``: how long an always-on source must have run before its silence counts."""
    plan = planned(tx, dag, version)
    editions = {job.edition_id: job for job in plan.jobs}
    counted = backlog.counts(tx, editions.keys())
    sizes = _sizes(tx, plan)
    jobs: dict[str, JobState] = {}
    for job in plan.jobs:
        jobs[job.job.name] = _job(job, counted.get(job.edition_id, {}), sizes, jobs)
    pending = sa.select(_events.c.seq).where(_events.c.state == "pending").limit(1000).subquery()
    running = _running(tx, editions)
    return Survey(
        jobs=tuple(jobs.values()),
        events=int(tx.value(sa.select(sa.func.count()).select_from(pending))),
        running=tuple(_shown(editions, row) for row in running if not _always_on(editions[row["edition_id"]])),
        asleep=_asleep(tx, [job for job in plan.jobs if _always_on(job)], settle_s),
        serving=_serving(tx, plan, version),
        spreading=tx.one(_UNSPREAD) is not None,
    )


def _serving(tx: Tx, plan: Plan, version: int) -> int:
    """Of jobs that there is a worker for: it is there for the runtimes of this version."""
    active = cutover.active(tx, plan.dag.name)
    if active is None or active["number"] == version:
        return 0
    shared, runtimes = {job.edition_id for job in plan.jobs}, {job.job.runtime for job in plan.jobs}
    own = {
        job.edition_id
        for job in cutover.stored_plan(tx, active).jobs
        if job.edition_id not in shared and job.job.runtime in runtimes and not _always_on(job)
    }
    counted = backlog.counts(tx, own).values()
    return sum(n for by in counted for status, n in by.items() if status in (Status.PENDING, Status.RUNNING))


def planned(tx: Tx, dag: str, version: int) -> Plan:
    return cutover.stored_plan(tx, cutover.find(tx, dag, version))


def _always_on(job: PlannedJob) -> bool:
    return job.job.source is not None and job.job.source.kind is SourceKind.ALWAYS_ON


def _sizes(tx: Tx, plan: Plan) -> Mapping[str, sa.RowMapping]:
    wanted = [output.generation_id for job in plan.jobs for output in job.outputs]
    return {row["id"]: row for row in tx.all(sa.select(_generations).where(_generations.c.id.in_(wanted)))}


def _job(
    job: PlannedJob,
    counted: Mapping[str, int],
    sizes: Mapping[str, sa.RowMapping],
    above: Mapping[str, JobState],
) -> JobState:
    known = sum(n for status, n in counted.items() if status != Status.CANCELLED)
    outputs = [sizes[each.generation_id] for each in job.outputs if each.generation_id in sizes]
    return JobState(
        name=job.job.name,
        runtime=job.job.runtime,
        source=job.job.is_source,
        always_on=_always_on(job),
        done=counted.get(Status.COMPLETED, 0),
        total=max(known, _expected(job, above)),
        running=counted.get(Status.RUNNING, 0),
        pending=counted.get(Status.PENDING, 0),
        failed=counted.get(Status.FAILED, 0),
        rows=sum(row["rows"] for row in outputs),
        partitions=max((row["partitions"] + row["segments"] for row in outputs), default=0),
    )


def _expected(job: PlannedJob, above: Mapping[str, JobState]) -> int:
    """A job that runs for each partition has as many tasks to come as what it reads has partitions to come."""
    if job.job.execution_strategy is not Strategy.PER_PARTITION:
        return 0
    named = [each.from_.job for each in job.job.inputs if each.trigger and each.from_.job is not None]
    return max((above[name].total for name in named if name in above and not above[name].always_on), default=0)


def _running(tx: Tx, editions: Mapping[str, PlannedJob]) -> Sequence[sa.RowMapping]:
    query = (
        sa.select(_tasks.c.edition_id, _tasks.c.partition_key, _tasks.c.cursor, _tasks.c.progress)
        .where(_tasks.c.edition_id.in_(list(editions)), _tasks.c.status == Status.RUNNING)
        .order_by(_tasks.c.created_at)
        .limit(RUNNING_MAX)
    )
    return tx.all(query)


def _shown(editions: Mapping[str, PlannedJob], row: sa.RowMapping) -> Running:
    about = row["partition_key"] if row["partition_key"] is not None else row["cursor"]
    return Running(editions[row["edition_id"]].job.name, str(about), stages(row["progress"]))


def stages(progress: Any) -> str:
    """What a Spark task tells of itself, in a few words."""
    told = cast("dict[str, Any]", progress) if isinstance(progress, dict) else {}
    counted = {name: cast("dict[str, int]", told.get(name) or {}) for name in ("stages", "tasks")}
    words = [f"{name} {n['done']}/{n['total']}" for name, n in counted.items() if n.keys() >= {"done", "total"}]
    return ", ".join([str(told.get("phase", "")), *words]).strip(", ")


def _asleep(tx: Tx, sources: Sequence[PlannedJob], settle_s: float) -> bool:
    """What an always-on source has to say at its start, it says soon; from then on nobody can know."""
    for job in sources:
        row = tx.one(
            sa.select(_tasks.c.started_at).where(
                _tasks.c.edition_id == job.edition_id, _tasks.c.status == Status.RUNNING
            )
        )
        if row is None or row["started_at"] is None or (tx.now - row["started_at"]).total_seconds() < settle_s:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Failure:
    task_id: str
    job: str
    about: str
    error: str


def failures(tx: Tx, dag: str, version: int) -> list[Failure]:
    """The first of the tasks that have failed for good."""
    editions = [job.edition_id for job in planned(tx, dag, version).jobs]
    query = (
        sa.select(_tasks)
        .where(_tasks.c.edition_id.in_(editions), _tasks.c.status == Status.FAILED)
        .order_by(_tasks.c.created_at)
        .limit(FAILED_MAX)
    )
    return [
        Failure(row["id"], row["job"], str(row["partition_key"] or row["cursor"]), row["last_error"] or "")
        for row in tx.all(query)
    ]


@dataclass(frozen=True, slots=True)
class Timing:
    """The tasks of one job that ended since a moment."""

    job: str
    tasks: int
    busy_s: float  # Of all its tasks together.
    began: datetime
    ended: datetime


def timings(tx: Tx, dag: str, version: int, since: datetime) -> list[Timing]:
    plan = planned(tx, dag, version)
    query = (
        sa.select(_tasks.c.edition_id, _tasks.c.started_at, _tasks.c.completed_at)
        .where(
            _tasks.c.edition_id.in_([job.edition_id for job in plan.jobs]),
            _tasks.c.status == Status.COMPLETED,
            _tasks.c.completed_at >= since,
        )
        .limit(TIMES_MAX)
    )
    spans: dict[str, list[tuple[datetime, datetime]]] = {}
    for row in tx.all(query):
        spans.setdefault(row["edition_id"], []).append((row["started_at"], row["completed_at"]))
    return [
        Timing(
            job.job.name,
            len(found),
            sum((ended - began).total_seconds() for began, ended in found),
            min(began for began, _ in found),
            max(ended for _, ended in found),
        )
        for job in plan.jobs
        if (found := spans.get(job.edition_id))
    ]
