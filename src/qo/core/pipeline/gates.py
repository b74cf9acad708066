"""Gates: which of the tasks that are due may be released now, and why the others may not.

All limits and pauses act here, before a wake-up leaves, and never when a worker claims: who is refused drops its
wake-up, and the task would be forgotten.

A queue gets no more wake-ups than ``queue_depth`` at a time. Backpressure pauses those that feed a queue, not its own
jobs, so a rebuild could put a million messages there: each costs requests, gets no task done sooner, and stands
before whatever comes later. Nothing can get stuck by it, since workers need no gate to claim what is there, and each
claim makes room. That room is shared out edition by edition like all other, so who comes late waits behind so many
wake-ups and not behind a whole backlog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus, pause_text
from qo.core.words import plural


@dataclass(frozen=True, slots=True)
class Waiting:
    """Tasks of one edition that are due and withheld. Counted as far as they could be released at once."""

    edition_id: str
    due: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """Tasks that run, or whose wake-up is on its way."""

    jobs: Mapping[str, int] = field(default_factory=dict[str, int])  # By logical job, over all its editions.
    operators: Mapping[str, int] = field(default_factory=dict[str, int])
    queues: Mapping[str, int] = field(default_factory=dict[str, int])  # Only wake-ups that nobody has claimed yet.


@dataclass(frozen=True, slots=True)
class Grants:
    release: Mapping[str, int]  # How many of each edition; only those of which there are some.
    holds: Mapping[str, str]  # Why the rest of an edition is withheld.


def open_gates(
    topology: Topology,
    waiting: Sequence[Waiting],
    in_flight: InFlight,
    *,
    operators: Mapping[str, int],
    held: Mapping[str, str],
    room: int,
    queue_depth: int | None = None,
) -> Grants:
    """Share ``room`` releases between the editions, one each in turn, in the order in which they are given.

    ``operators``: the most that may be under way of an operator. ``queue_depth``: the most wake-ups that may wait in
    a queue. ``held``: editions that something else holds back
    (backpressure, a runtime that is not there), and why. What only had to wait for its turn has no hold: there is
    another turn at once.
    """
    slots = _Slots(topology, in_flight, operators, queue_depth)
    holds: dict[str, str] = {}
    ahead: dict[str, int] = {}
    for each in waiting:
        why = closed(topology, each.edition_id, held)
        if why is not None:
            holds[each.edition_id] = why
        elif each.due > 0:
            ahead[each.edition_id] = each.due
    release: dict[str, int] = {}
    while ahead and room > 0:
        for edition in list(ahead):
            if room == 0:
                break
            if not slots.take(topology.jobs[edition]):
                del ahead[edition]
                continue
            release[edition] = release.get(edition, 0) + 1
            room -= 1
            if release[edition] == ahead[edition]:
                del ahead[edition]
    return Grants(release, holds | _full(topology, waiting, release, holds, slots))


def concurrency_limits(topology: Topology) -> dict[str, int]:
    """The most tasks that may be under way of each logical job that says so."""
    found: dict[str, int] = {}
    for job in topology.jobs.values():
        most = job.job.scaling.max_concurrency
        if most is not None:
            # Two live versions may say different things of one job: neither is exceeded.
            found[job.logical_id] = min(most, found.get(job.logical_id, most))
    return found


def closed(topology: Topology, edition_id: str, held: Mapping[str, str]) -> str | None:
    """Why nothing of the edition may be released, however few are under way; None if something may."""
    job = topology.jobs.get(edition_id)
    if job is None:
        return "no live version has this job as it was: it was replaced, removed or rolled back"
    if (said := topology.pause_reason(job)) is not None:
        return pause_text(said)
    if job.job.outputs == 0 and job.status is not VersionStatus.ACTIVE:
        return f"waits for cutover: it has effects outside, and version {job.version_number} is {job.status}"
    return held.get(edition_id)


def _full(
    topology: Topology,
    waiting: Iterable[Waiting],
    release: Mapping[str, int],
    holds: Mapping[str, str],
    slots: _Slots,
) -> dict[str, str]:
    """Why the rest of each edition waits for others to end."""
    found: dict[str, str] = {}
    for each in waiting:
        if each.edition_id not in holds and each.due > release.get(each.edition_id, 0):
            why = slots.why_full(topology.jobs[each.edition_id])
            if why is not None:
                found[each.edition_id] = why
    return found


class _Slots:
    """What is left of the limits while releases are shared out."""

    def __init__(
        self, topology: Topology, in_flight: InFlight, operators: Mapping[str, int], queue_depth: int | None
    ) -> None:
        self._jobs = dict(in_flight.jobs)
        self._operators = dict(in_flight.operators)
        self._queues = dict(in_flight.queues)
        self._limits = operators
        self._depth = queue_depth
        self._most = concurrency_limits(topology)

    def take(self, job: LiveJob) -> bool:
        if self.why_full(job) is not None:
            return False
        self._jobs[job.logical_id] = self._jobs.get(job.logical_id, 0) + 1
        self._operators[job.job.operator] = self._operators.get(job.job.operator, 0) + 1
        self._queues[job.queue] = self._queues.get(job.queue, 0) + 1
        return True

    def why_full(self, job: LiveJob) -> str | None:
        most = self._most.get(job.logical_id)
        if most is not None and self._jobs.get(job.logical_id, 0) >= most:
            return f"max_concurrency: {most} of this job are under way"
        limit = self._limits.get(job.job.operator)
        if limit is not None and self._operators.get(job.job.operator, 0) >= limit:
            return f"operator limit: {limit} of {job.job.operator} are under way"
        if self._depth is not None and self._queues.get(job.queue, 0) >= self._depth:
            waiting = plural(self._depth, "wake-up waits", "wake-ups wait")
            return f"queue {job.queue} is full: {waiting} in it for a worker"
        return None
