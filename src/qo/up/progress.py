"""How far the live versions of all pipelines are, read from the state: for who waits for them, and for who looks on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa

from qo.core.pipeline.dag import SourceKind, Strategy
from qo.core.pipeline.plan import Plan
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher.engine import refresh
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import failures as failed_tasks
from qo.dispatcher.versions import cutover
from qo.up.stuck import Stuck, find_stuck

RUNNING_MAX = 8  # So many running tasks are shown.
EVENTS_MAX = 1000  # So many new events are counted.
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
    source: SourceKind | None = None
    done: int = 0
    coming: int = 0  # Tasks that are not there yet: what it reads is still being made.
    running: int = 0
    pending: int = 0
    failed: int = 0
    rows: int = 0  # Of all its outputs, as committed.
    partitions: int = 0
    paused: bool = False
    parked: bool = False  # A side effect of a version that does not serve: its tasks wait for the cutover.

    @property
    def open(self) -> int:
        """Tasks that wait or run. A source that never ends has none, and what is parked is not waited for."""
        return 0 if self.always_on or self.parked else self.running + self.pending

    @property
    def total(self) -> int:
        """As far as is known; it grows while sources speak."""
        return self.done + self.running + self.pending + self.failed + self.coming

    @property
    def always_on(self) -> bool:
        return self.source is SourceKind.ALWAYS_ON


@dataclass(frozen=True, slots=True)
class VersionState:
    """A live version of a pipeline. Of one that is built beside the active one, only the jobs that it builds anew."""

    dag: str
    number: int
    status: VersionStatus
    jobs: tuple[JobState, ...]  # In the order of the data.

    @property
    def active(self) -> bool:
        return self.status is VersionStatus.ACTIVE

    @property
    def open(self) -> int:
        return sum(each.open for each in self.jobs)


@dataclass(frozen=True, slots=True)
class Running:
    """A task that runs now."""

    job: str
    about: str  # Its partition or cursor.
    stages: str  # How far its Spark jobs are, in words; empty: nothing is known.


@dataclass(frozen=True, slots=True)
class Survey:
    versions: tuple[VersionState, ...]  # By pipeline; what is built beside an active version comes after it.
    events: int  # Not routed yet, up to EVENTS_MAX.
    running: tuple[Running, ...]
    concerned: frozenset[str] = frozenset()  # Pipelines that such events concern.
    awake: frozenset[str] = frozenset()  # Pipelines with an always-on source that may not have said all it knows.
    epoch: int = 0  # Of the topology that this is about.
    spreading: bool = False  # Something was replaced or removed, and its readers have not heard of it yet.
    comparing: frozenset[str] = frozenset()  # Pipelines of which it is yet to be seen whether something is stale.
    stuck: tuple[Stuck, ...] = ()  # Of the open tasks those that cannot end before somebody mends what has failed.

    @property
    def dags(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.dag for each in self.versions))

    def open(self, dag: str) -> int:
        return sum(each.open for each in self.versions if each.dag == dag)

    def quiet(self, dags: Collection[str], blocked: int = 0) -> bool:
        """Whether these pipelines have nothing left to do but so many tasks that wait for something else."""
        return sum(map(self.open, dags)) <= blocked and not self._unsettled & set(dags)

    def over(self, dags: Collection[str]) -> bool:
        """Whether these pipelines have nothing left that could end by itself, but something is stuck."""
        stuck = [each for each in self.stuck if each.dag in dags]
        left = sum(self.open(each) for each in dags) - len(stuck)
        return bool(stuck) and left <= 0 and not self._unsettled & set(dags)

    @property
    def _unsettled(self) -> frozenset[str]:
        """Pipelines that may get tasks which are not there yet."""
        every = frozenset(self.dags) if self.spreading else frozenset[str]()
        return self.concerned | self.awake | self.comparing | every


def survey(tx: Tx, *, settle_s: float) -> Survey:
    """``settle_s``: how long an always-on source must have run before its silence counts."""
    live = topology.load(tx)
    jobs = sorted(live.jobs.values(), key=lambda job: (live.depth[job.edition_id], job.job.name))
    states = _states(tx, live, jobs)
    events = _new_events(tx)
    versions: dict[tuple[str, bool, int], list[LiveJob]] = {}
    for job in jobs:
        beside = job.status is not VersionStatus.ACTIVE
        versions.setdefault((job.dag, beside, job.version_number), []).append(job)
    return Survey(
        versions=tuple(
            VersionState(dag, number, own[0].status, tuple(states[job.edition_id] for job in own))
            for (dag, _, number), own in sorted(versions.items())
        ),
        events=sum(events.values()),
        running=_running(tx, live),
        concerned=_concerned(live, events),
        awake=_awake(tx, [job for job in jobs if states[job.edition_id].always_on], settle_s),
        epoch=live.epoch,
        spreading=tx.one(_UNSPREAD) is not None,
        comparing=frozenset(job.dag for job in refresh.due_jobs(tx, live)),
        stuck=find_stuck(
            tx,
            live,
            jobs,
            {edition: state.failed for edition, state in states.items()},
            sum(state.open for state in states.values()),
        ),
    )


def _states(tx: Tx, live: Topology, jobs: Sequence[LiveJob]) -> dict[str, JobState]:
    """By edition. ``jobs``: each after those that it reads."""
    counted = failed_tasks.counts(tx, live.jobs.keys())
    sizes = _sizes(tx, jobs)
    states: dict[str, JobState] = {}
    makers: dict[str, JobState] = {}  # By generation.
    for job in jobs:
        counts = counted.get(job.edition_id, {})
        outputs = [sizes[each.generation_id] for each in job.outputs if each.generation_id in sizes]
        state = JobState(
            name=job.job.name,
            runtime=job.job.runtime,
            source=_source_kind(job),
            done=counts.get(Status.COMPLETED, 0),
            coming=_coming(live, job, makers),
            running=counts.get(Status.RUNNING, 0),
            pending=counts.get(Status.PENDING, 0),
            failed=counts.get(Status.FAILED, 0),
            rows=sum(row["rows"] for row in outputs),
            partitions=max((row["partitions"] + row["segments"] for row in outputs), default=0),
            paused=live.pause_reason(job) is not None,
            parked=not job.outputs and job.status is not VersionStatus.ACTIVE,
        )
        states[job.edition_id] = state
        makers |= {each.generation_id: state for each in job.outputs}
    return states


def _source_kind(job: LiveJob) -> SourceKind | None:
    if not job.job.is_source:
        return None
    return job.job.source.kind if job.job.source is not None else SourceKind.MANUAL


def _coming(live: Topology, job: LiveJob, makers: Mapping[str, JobState]) -> int:
    """A job that runs for each partition gets a task for each that is still being made.

    What is made already has its task, so at the end nothing is to come. Where partitions are filtered, or made once
    more, it is fewer than this says.
    """
    if job.job.execution_strategy is not Strategy.PER_PARTITION:
        return 0
    read = [each.generation_id or live.current.get(each.dataset_id, "") for each in job.inputs if each.trigger]
    found = [makers[generation] for generation in read if generation in makers]
    return max((maker.open + maker.coming for maker in found), default=0)


def _sizes(tx: Tx, jobs: Iterable[LiveJob]) -> dict[str, sa.RowMapping]:
    wanted = sorted({output.generation_id for job in jobs for output in job.outputs})
    found: dict[str, sa.RowMapping] = {}
    for some in batches(wanted):
        rows = tx.all(sa.select(_generations).where(_generations.c.id.in_(some)))
        found |= {row["id"]: row for row in rows}
    return found


def _new_events(tx: Tx) -> dict[str, int]:
    """How many are not routed yet, by dataset."""
    some = sa.select(_events.c.dataset_id).where(_events.c.state == "pending").limit(EVENTS_MAX).subquery()
    query = sa.select(some.c.dataset_id, sa.func.count().label("n")).group_by(some.c.dataset_id)
    return {row.dataset_id: row.n for row in tx.execute(query)}


def _concerned(live: Topology, events: Mapping[str, int]) -> frozenset[str]:
    """The pipelines that make or read these datasets."""
    return frozenset(
        job.dag
        for job in live.jobs.values()
        if any(each.dataset_id in events for each in (*job.inputs, *job.outputs))
    )


def _running(tx: Tx, live: Topology) -> tuple[Running, ...]:
    """The first of the tasks that run, without those that never end."""
    ending = [each.edition_id for each in live.jobs.values() if _source_kind(each) is not SourceKind.ALWAYS_ON]
    query = sa.select(_tasks.c.edition_id, _tasks.c.partition_key, _tasks.c.cursor, _tasks.c.progress)
    found: list[sa.RowMapping] = []
    for some in batches(sorted(ending)):
        ours = query.where(_tasks.c.edition_id.in_(some), _tasks.c.status == Status.RUNNING)
        found += tx.all(ours.order_by(_tasks.c.created_at).limit(RUNNING_MAX))
    several = len({job.dag for job in live.jobs.values()}) > 1
    return tuple(_shown(live.jobs[row["edition_id"]], row, several) for row in found[:RUNNING_MAX])


def _shown(job: LiveJob, row: sa.RowMapping, several: bool) -> Running:
    about = row["partition_key"] if row["partition_key"] is not None else row["cursor"]
    return Running(job.name if several else job.job.name, str(about), stages(row["progress"]))


def stages(progress: Any) -> str:
    """What a Spark task tells of itself, in a few words."""
    told = cast("dict[str, Any]", progress) if isinstance(progress, dict) else {}
    if isinstance(waiting := told.get("waiting"), str):
        return waiting  # Nothing else moves meanwhile.
    counted = {name: cast("dict[str, int]", told.get(name) or {}) for name in ("stages", "tasks")}
    words = [f"{name} {n['done']}/{n['total']}" for name, n in counted.items() if n.keys() >= {"done", "total"}]
    return ", ".join([str(told.get("phase", "")), *words]).strip(", ")


def _awake(tx: Tx, sources: Sequence[LiveJob], settle_s: float) -> frozenset[str]:
    """What an always-on source has to say at its start, it says soon; from then on nobody can know."""
    found: set[str] = set()
    for job in sources:
        row = tx.one(
            sa.select(_tasks.c.started_at).where(
                _tasks.c.edition_id == job.edition_id, _tasks.c.status == Status.RUNNING
            )
        )
        if row is None or row["started_at"] is None or (tx.now - row["started_at"]).total_seconds() < settle_s:
            found.add(job.dag)
    return frozenset(found)


def planned(tx: Tx, dag: str, version: int) -> Plan:
    return cutover.stored_plan(tx, cutover.find(tx, dag, version))


@dataclass(frozen=True, slots=True)
class Failure:
    task_id: str
    job: str
    about: str
    error: str


def failures(tx: Tx, dag: str, version: int) -> list[Failure]:
    """The last of the tasks that have failed for good, and whose work nobody has done since."""
    editions = [job.edition_id for job in planned(tx, dag, version).jobs]
    page = failed_tasks.open_page(tx, topology.load(tx), editions, None, FAILED_MAX)
    query = sa.select(_tasks).where(_tasks.c.id.in_([id_ for _, id_ in page.places]))
    return [
        Failure(row["id"], row["job"], str(row["partition_key"] or row["cursor"]), row["last_error"] or "")
        for row in tx.all(query.order_by(_tasks.c.created_at))
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
