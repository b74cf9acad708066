"""Backpressure: when a queue counts as overfull, and which jobs that pauses.

A queue trips when too many wake-ups wait in it or the oldest waits too long, and clears when both have fallen well
below that, so that it does not oscillate. While it is tripped, the jobs that feed it are paused, and those that feed
them, up to the sources: their events and tasks are kept, only their wake-ups are withheld.

What is already in a queue is never held back, so a tripped queue always drains, whatever else is paused. Beyond that
each tripped queue leaves at least one of its own jobs running: a job is paused only if a job *downstream* of it runs
from that queue (``ingest`` before ``report``, both on ``spark``), so the last one never is. Work that is nearly done is
finished before more is begun. Jobs on a cycle, which several DAGs together may form, are downstream of each other and
do not pause each other: otherwise two tripped queues could block everything for ever.

The set of paused jobs is computed from all tripped queues each time. It depends on no history, so it is the same after
a restart and in whatever order queues trip, and a job continues only when no tripped queue lies downstream of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.words import plural


@dataclass(frozen=True, slots=True)
class Thresholds:
    depth: int = 1000
    age_s: float = 300.0
    clear_ratio: float = 0.5


@dataclass(frozen=True, slots=True)
class Measure:
    """Wake-ups of one queue that no worker has claimed, and how long the oldest has waited."""

    depth: int
    oldest_s: float


def trip_reason(measure: Measure, limits: Thresholds, before: str | None) -> str | None:
    """Return why the queue counts as tripped; None if it does not. ``before``: the result of the previous call.

    A queue that stays tripped keeps its first reason, which says when and why it began.
    """
    if measure.depth > limits.depth:
        waiting = plural(measure.depth, "wake-up waits", "wake-ups wait")
        return before or f"{waiting} in it, more than {limits.depth:,}"
    if measure.oldest_s > limits.age_s:
        return before or f"its oldest wake-up waits for {measure.oldest_s:.0f} s, longer than {limits.age_s:g} s"
    calm = (
        measure.depth <= limits.clear_ratio * limits.depth
        and measure.oldest_s <= limits.clear_ratio * limits.age_s
    )
    return None if calm else before


def paused_by(topology: Topology, tripped: Mapping[str, str]) -> dict[str, str]:
    """Return why each edition that feeds a tripped queue is paused. ``tripped``: the reason by queue."""
    if not tripped:
        return {}
    graph = Graph(topology)
    because: dict[str, list[str]] = {}
    for queue in sorted(tripped):
        for edition in graph.feeders(queue):
            because.setdefault(edition, []).append(f"queue {queue}, which it feeds, is overfull: {tripped[queue]}")
    return {edition: "; ".join(reasons) for edition, reasons in because.items()}


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

    def feeders(self, queue: str) -> set[str]:
        """Return the editions to pause while this queue is tripped."""
        on_it = {edition for edition, job in self._jobs.items() if job.queue == queue}
        return {edition for edition in _find_reachable(on_it, self._before) if self._precedes(edition, on_it)}

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
