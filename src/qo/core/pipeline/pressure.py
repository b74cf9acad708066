"""Backpressure: when a queue or a job counts as overfull, and which jobs that pauses.

A queue trips when too many wake-ups wait in it or the oldest waits too long; a job that sets thresholds of its own
trips when too many of its tasks wait or the oldest waits too long, wherever they wait. Both clear when depth and age
have fallen well below that, so that they do not oscillate. While one is tripped, the jobs that feed it are paused, and
those that feed them, up to the sources: their events and tasks are kept, only their wake-ups are withheld.

What is already in a queue is never held back, so a tripped queue always drains, whatever else is paused. Beyond that
each tripped queue leaves at least one of its own jobs running: a job is paused only if a job *downstream* of it runs
from that queue (``ingest`` before ``report``, both on ``spark``), so the last one never is. A tripped job never pauses
itself, only what is upstream of it. Work that is nearly done is finished before more is begun. Jobs on a cycle, which
several DAGs together may form, are downstream of each other and do not pause each other: otherwise two tripped queues
could block everything for ever.

The set of paused jobs is computed from all that is tripped each time. It depends on no history, so it is the same after
a restart and in whatever order queues trip, and a job continues only when nothing tripped lies downstream of it. A job
may declare that it goes on all the same (``backpressure_mode: ignore``); what is upstream of it is paused nevertheless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from qo.core.pipeline.dag import BackpressureMode, Job, SourceKind
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.timespan import parse_timespan_s
from qo.core.words import plural

_ACCEPTING = frozenset({SourceKind.MANUAL, SourceKind.WEBHOOK})  # Their senders may never try again.


class TargetKind(StrEnum):
    QUEUE = "queue"
    JOB = "job"


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """What can be overfull."""

    kind: TargetKind
    id: str  # The name of a queue, or an edition.


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Above which depth or age a target trips; None: never. ``queues``: those of single queues."""

    depth: int | None = 1000
    age_s: float | None = 300.0
    clear_ratio: float = 0.5
    queues: Mapping[str, Thresholds] = field(default_factory=dict[str, "Thresholds"])

    def of_queue(self, name: str) -> Thresholds:
        return self.queues.get(name, self)

    def of_job(self, job: LiveJob) -> Thresholds | None:
        """Return the thresholds that a job sets for itself; None: it sets none, or its version does not serve.

        The tasks of a version that is being built are many, and must not stop the sources of the one that serves.
        """
        own = job.job
        if job.status is not VersionStatus.ACTIVE or (own.max_queue_depth is None and own.max_queue_age is None):
            return None
        age_s = None if own.max_queue_age is None else parse_timespan_s(own.max_queue_age)
        return replace(self, depth=own.max_queue_depth, age_s=age_s, queues={})

    @property
    def depth_clear(self) -> int | None:
        """The greatest depth at which a tripped target clears."""
        return None if self.depth is None else int(self.clear_ratio * self.depth)

    @property
    def age_clear_s(self) -> float | None:
        return None if self.age_s is None else self.clear_ratio * self.age_s


@dataclass(frozen=True, slots=True)
class Measure:
    """What waits in one target, and how long the oldest has waited."""

    depth: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """How messages name what waits in a target."""

    one: str
    many: str
    oldest: str


WAKE_UPS = Waiting("wake-up waits in it", "wake-ups wait in it", "its oldest wake-up")
TASKS = Waiting("task of it waits", "tasks of it wait", "its oldest task")


def trip_reason(
    measure: Measure, limits: Thresholds, before: str | None, waiting: Waiting = WAKE_UPS
) -> str | None:
    """Return why the target counts as tripped; None if it does not. ``before``: the result of the previous call.

    A target that stays tripped keeps its first reason, which says when and why it began.
    """
    if limits.depth is not None and measure.depth > limits.depth:
        return before or f"{plural(measure.depth, waiting.one, waiting.many)}, more than {limits.depth:,}"
    if limits.age_s is not None and measure.oldest_s > limits.age_s:
        return before or f"{waiting.oldest} waits for {measure.oldest_s:.0f} s, longer than {limits.age_s:g} s"
    return before if _remaining(measure, limits) else None


def _remaining(measure: Measure, limits: Thresholds) -> list[str]:
    """Return which of depth and age have not fallen far enough yet."""
    exceeded: list[str] = []
    if limits.depth is not None and measure.depth > limits.clear_ratio * limits.depth:
        exceeded.append(f"{measure.depth:,} wait, and {limits.depth_clear:,} or fewer must be left")
    if limits.age_s is not None and measure.oldest_s > limits.clear_ratio * limits.age_s:
        exceeded.append(
            f"the oldest waits for {measure.oldest_s:.0f} s, and must wait {limits.age_clear_s:g} s or less"
        )
    return exceeded


def clear_condition(measure: Measure, limits: Thresholds) -> str:
    """Return what must happen before a tripped target clears, as a text for people."""
    return " and ".join(_remaining(measure, limits)) or "it clears with the next measurement"


def mode_of(job: Job) -> BackpressureMode:
    """Return what a job does while something that it feeds is overfull: what it declares, or what its kind does."""
    if job.backpressure_mode is not None:
        return job.backpressure_mode
    accepts = job.source is not None and job.source.kind in _ACCEPTING
    return BackpressureMode.IGNORE if accepts else BackpressureMode.HOLD


def holders(topology: Topology, tripped: Collection[Target]) -> dict[str, list[Target]]:
    """Return the tripped targets that pause each edition, for those that are paused."""
    if not tripped:
        return {}
    graph = Graph(topology)
    by_edition: dict[str, list[Target]] = {}
    for target in sorted(tripped):
        for edition in graph.feeders(target):
            if mode_of(topology.jobs[edition].job) is not BackpressureMode.IGNORE:
                by_edition.setdefault(edition, []).append(target)
    return by_edition


def paused_by(topology: Topology, tripped: Mapping[Target, str]) -> dict[str, str]:
    """Return why each edition that feeds a tripped target is paused. ``tripped``: the reason by target."""
    return {
        edition: "; ".join(
            f"{target_name(topology, each)}, which it feeds, is overfull: {tripped[each]}" for each in targets
        )
        for edition, targets in holders(topology, tripped).items()
    }


def target_name(topology: Topology, target: Target) -> str:
    """Return how messages name a target."""
    job = topology.jobs.get(target.id) if target.kind is TargetKind.JOB else None
    return f"{target.kind} {target.id if job is None else job.name}"


class Graph:
    """Which job triggers which. A side input triggers nothing, so it carries no pressure either."""

    def __init__(self, topology: Topology) -> None:
        self._jobs = topology.jobs
        self._after: dict[str, set[str]] = {edition: set() for edition in topology.jobs}
        self._before: dict[str, set[str]] = {edition: set() for edition in topology.jobs}
        self._downstream: dict[str, set[str]] = {}  # Filled on demand.
        for edition, job in topology.jobs.items():
            for reader in _readers(topology, job):
                self._after[edition].add(reader)
                self._before[reader].add(edition)

    def feeders(self, target: Target) -> set[str]:
        """Return the editions to pause while this target is tripped."""
        on_it = self.members(target)
        return {edition for edition in _find_reachable(on_it, self._before) if self._precedes(edition, on_it)}

    def members(self, target: Target) -> set[str]:
        """Return the editions whose tasks wait in a target."""
        if target.kind is TargetKind.JOB:
            return {target.id} & self._jobs.keys()
        return {edition for edition, job in self._jobs.items() if job.queue == target.id}

    def downstream(self, edition: str) -> set[str]:
        if edition not in self._downstream:
            self._downstream[edition] = _find_reachable({edition}, self._after)
        return self._downstream[edition]

    def _precedes(self, edition: str, others: set[str]) -> bool:
        """Return whether one of the others is downstream of it, but not also upstream, as on a cycle."""
        later = self.downstream(edition) & others
        return any(edition not in self.downstream(other) for other in later)


def _readers(topology: Topology, job: LiveJob) -> Iterable[str]:
    for output in job.outputs:
        for reader in topology.consumers(output.dataset_id, output.generation_id):
            yield reader.job.edition_id


def _find_reachable(start: Iterable[str], steps: Mapping[str, set[str]]) -> set[str]:
    """Return everything that is one or more steps away."""
    reached: set[str] = set()
    ahead = list(start)
    while ahead:
        new = steps[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached
