"""How far the live versions of all pipelines are: for who waits for them, and for who looks on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.engine.loops import refresh
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.views import progress
from qo.dispatcher.views.progress import RunningTask, VersionState
from qo.dispatcher.views.stuck import StuckTask, find_stuck


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
    stuck: tuple[StuckTask, ...] = ()  # Open tasks that cannot end before a failed task upstream is repaired.

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
    jobs = progress.jobs_in_order(live)
    states = progress.job_states(tx, live, jobs)
    events = progress.count_new_events(tx)
    return Survey(
        versions=progress.version_states(jobs, states),
        events=sum(events.values()),
        running=_describe_running(live, progress.running_tasks(tx, live)),
        concerned=_concerned(live, events),
        awake=_awake(tx, [job for job in jobs if states[job.edition_id].always_on], settle_s),
        epoch=live.epoch,
        spreading=progress.has_open_invalidations(tx),
        comparing=frozenset(job.dag for job in refresh.due_jobs(tx, live)),
        stuck=find_stuck(
            tx,
            live,
            jobs,
            {edition: state.failed for edition, state in states.items()},
            sum(state.open for state in states.values()),
        ),
    )


def _concerned(live: Topology, events: Mapping[str, int]) -> frozenset[str]:
    """The pipelines that make or read these datasets."""
    return frozenset(
        job.dag
        for job in live.jobs.values()
        if any(each.dataset_id in events for each in (*job.inputs, *job.outputs))
    )


def _describe_running(live: Topology, tasks: Iterable[RunningTask]) -> tuple[Running, ...]:
    several = len({job.dag for job in live.jobs.values()}) > 1
    return tuple(
        Running(each.job.name if several else each.job.job.name, each.about, stages(each.progress))
        for each in tasks
    )


def stages(report: Any) -> str:
    """What a Spark task tells of itself, in a few words."""
    told = cast("dict[str, Any]", report) if isinstance(report, dict) else {}
    if isinstance(waiting := told.get("waiting"), str):
        return waiting  # Nothing else moves meanwhile.
    counted = {name: cast("dict[str, int]", told.get(name) or {}) for name in ("stages", "tasks")}
    words = [f"{name} {n['done']}/{n['total']}" for name, n in counted.items() if n.keys() >= {"done", "total"}]
    return ", ".join([str(told.get("phase", "")), *words]).strip(", ")


def _awake(tx: Tx, sources: Iterable[LiveJob], settle_s: float) -> frozenset[str]:
    """What an always-on source has to say at its start, it says soon; from then on nobody can know."""
    return frozenset(
        job.dag
        for job in sources
        if (since := progress.running_since(tx, job)) is None or (tx.now - since).total_seconds() < settle_s
    )
