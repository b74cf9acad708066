"""Survey the progress of all live pipelines, to print it and to decide when everything is done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.engine.loops import refresh
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.views import pipeline_progress
from qo.dispatcher.views.pipeline_progress import RunningTask, VersionState
from qo.dispatcher.views.stuck import StuckTask, find_stuck


@dataclass(frozen=True, slots=True)
class Running:
    """A task that runs now."""

    job: str
    about: str  # Its partition or cursor.
    stages: str  # The progress of its Spark jobs, in words; empty if unknown.


@dataclass(frozen=True, slots=True)
class Survey:
    versions: tuple[VersionState, ...]  # By pipeline; a version that is built comes after the active one.
    events: int  # Not routed yet, up to EVENTS_MAX.
    running: tuple[Running, ...]
    affected: frozenset[str] = frozenset()  # Pipelines that these events affect.
    starting: frozenset[str] = (
        frozenset()
    )  # Pipelines with an always-on source that may still emit its first events.
    epoch: int = 0  # The epoch of the topology.
    spreading: bool = False  # Some invalidation has not reached all readers yet.
    comparing: frozenset[str] = frozenset()  # Pipelines that have yet to be checked for stale data.
    stuck: tuple[StuckTask, ...] = ()  # Open tasks that cannot end before a failed task upstream is repaired.

    @property
    def dags(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.dag for each in self.versions))

    def open_tasks(self, dag: str) -> int:
        return sum(each.open for each in self.versions if each.dag == dag)

    def is_idle(self, dags: Collection[str], blocked: int = 0) -> bool:
        """Return whether these pipelines have nothing left to do, except ``blocked`` tasks that wait for others."""
        return sum(map(self.open_tasks, dags)) <= blocked and not self._unsettled & set(dags)

    def is_blocked(self, dags: Collection[str]) -> bool:
        """Return whether all open tasks of these pipelines are stuck, and there are some."""
        stuck = [each for each in self.stuck if each.dag in dags]
        others = sum(self.open_tasks(each) for each in dags) - len(stuck)
        return bool(stuck) and others <= 0 and not self._unsettled & set(dags)

    @property
    def _unsettled(self) -> frozenset[str]:
        """Pipelines that may still get new tasks."""
        every = frozenset(self.dags) if self.spreading else frozenset[str]()
        return self.affected | self.starting | self.comparing | every


def survey(tx: Tx, *, settle_s: float) -> Survey:
    """Survey all live pipelines. An always-on source counts as starting until it has run for ``settle_s``."""
    live = topology.load(tx)
    jobs = pipeline_progress.jobs_in_order(live)
    states = pipeline_progress.job_states(tx, live, jobs)
    events = pipeline_progress.count_new_events(tx)
    return Survey(
        versions=pipeline_progress.version_states(jobs, states),
        events=sum(events.values()),
        running=_describe_running(live, pipeline_progress.running_tasks(tx, live)),
        affected=_affected_dags(live, events),
        starting=_starting_dags(tx, [job for job in jobs if states[job.edition_id].always_on], settle_s),
        epoch=live.epoch,
        spreading=pipeline_progress.has_open_invalidations(tx),
        comparing=frozenset(job.dag for job in refresh.due_jobs(tx, live)),
        stuck=find_stuck(
            tx,
            live,
            jobs,
            {edition: state.failed for edition, state in states.items()},
            sum(state.open for state in states.values()),
        ),
    )


def _affected_dags(live: Topology, events: Mapping[str, int]) -> frozenset[str]:
    """Return the pipelines that write or read these datasets."""
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
    """Return the progress that a Spark task has reported, in a few words."""
    fields = cast("dict[str, Any]", report) if isinstance(report, dict) else {}
    if isinstance(waiting := fields.get("waiting"), str):
        return waiting  # Meanwhile nothing else changes.
    counts = {name: cast("dict[str, int]", fields.get(name) or {}) for name in ("stages", "tasks")}
    words = [f"{name} {n['done']}/{n['total']}" for name, n in counts.items() if n.keys() >= {"done", "total"}]
    return ", ".join([str(fields.get("phase", "")), *words]).strip(", ")


def _starting_dags(tx: Tx, sources: Iterable[LiveJob], settle_s: float) -> frozenset[str]:
    """Return the pipelines with a source that has not run for ``settle_s`` yet.

    A source emits what it has at its start soon; what comes later cannot be foreseen.
    """
    return frozenset(
        job.dag
        for job in sources
        if (since := pipeline_progress.running_since(tx, job)) is None
        or (tx.now - since).total_seconds() < settle_s
    )
