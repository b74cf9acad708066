"""Backpressure: when a queue counts as overfull, and whom that holds back.

A queue trips when too many wake-ups wait in it or the oldest waits too long, and clears when both have fallen well
below that, so that it does not flutter. While it is tripped, the jobs that feed it are paused, and those that feed
them, up to the sources: their events and tasks are kept, only their wake-ups are withheld.

What is already in a queue is never held back, so a tripped queue always drains, whatever else is paused. Beyond that
each tripped queue leaves at least one of its own jobs free on its account: a job pauses only if work that *follows*
its own goes there (``ingest`` before ``report``, both on ``spark``), so the last in line never does. What is nearly
done is finished before more of it is begun. Jobs on a cycle, which several DAGs together may form, follow each other
and do not pause each other: else two tripped queues could hold up everything for ever.

The set is worked out from all tripped queues each time. It knows no history, so it is the same after a restart, in
whatever order queues trip, and a job goes on only when no tripped queue lies downstream of it.
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
    """Of one queue: wake-ups that nobody has claimed, and for how long the oldest waits."""

    depth: int
    oldest_s: float


def reason(measure: Measure, limits: Thresholds, was: str | None) -> str | None:
    """Why the queue counts as tripped; None if it does not. ``was``: the answer before this one.

    A queue that stays tripped keeps the words it tripped with: they say when and why it began.
    """
    if measure.depth > limits.depth:
        waiting = plural(measure.depth, "wake-up waits", "wake-ups wait")
        return was or f"{waiting} in it, more than {limits.depth:,}"
    if measure.oldest_s > limits.age_s:
        return was or f"its oldest wake-up waits for {measure.oldest_s:.0f} s, longer than {limits.age_s:g} s"
    calm = (
        measure.depth <= limits.clear_ratio * limits.depth
        and measure.oldest_s <= limits.clear_ratio * limits.age_s
    )
    return None if calm else was


def paused_by(topology: Topology, tripped: Mapping[str, str]) -> dict[str, str]:
    """Why each edition that feeds a tripped queue is paused. ``tripped``: the reason by queue."""
    if not tripped:
        return {}
    graph = Graph(topology)
    because: dict[str, list[str]] = {}
    for queue in sorted(tripped):
        for edition in graph.feeders(queue):
            because.setdefault(edition, []).append(f"queue {queue}, which it feeds, is overfull: {tripped[queue]}")
    return {edition: "; ".join(reasons) for edition, reasons in because.items()}


class Graph:
    """Who starts whom. An input that triggers nothing makes no work, so it carries no pressure either."""

    def __init__(self, topology: Topology) -> None:
        self._jobs = topology.jobs
        self._after: dict[str, set[str]] = {edition: set() for edition in topology.jobs}
        self._before: dict[str, set[str]] = {edition: set() for edition in topology.jobs}
        self._downstream: dict[str, set[str]] = {}  # As far as somebody asked.
        for edition, job in topology.jobs.items():
            for reader in _readers(topology, job):
                self._after[edition].add(reader)
                self._before[reader].add(edition)

    def feeders(self, queue: str) -> set[str]:
        """The editions to pause while this queue is tripped."""
        on_it = {edition for edition, job in self._jobs.items() if job.queue == queue}
        return {edition for edition in _reached(on_it, self._before) if self._precedes(edition, on_it)}

    def downstream(self, edition: str) -> set[str]:
        if edition not in self._downstream:
            self._downstream[edition] = _reached({edition}, self._after)
        return self._downstream[edition]

    def _precedes(self, edition: str, others: set[str]) -> bool:
        """Whether one of the others follows it without leading back to it: on a cycle nobody comes first."""
        later = self.downstream(edition) & others
        return any(edition not in self.downstream(other) for other in later)


def _readers(topology: Topology, job: LiveJob) -> Iterable[str]:
    for made in job.outputs:
        for reader in topology.consumers(made.dataset_id, made.generation_id):
            yield reader.job.edition_id


def _reached(start: Iterable[str], steps: Mapping[str, set[str]]) -> set[str]:
    """Everything one or more steps away."""
    found: set[str] = set()
    ahead = list(start)
    while ahead:
        fresh = steps[ahead.pop()] - found
        found |= fresh
        ahead += fresh
    return found
