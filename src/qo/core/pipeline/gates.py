"""Gates: which of the tasks that are due may be released now, and why the others may not.

All limits and pauses act here, before a wake-up is sent, and never when a worker claims: a worker that is refused drops
the wake-up, and the task would be forgotten.

A queue gets no more than ``queue_depth`` wake-ups at a time. Backpressure pauses the jobs that feed a queue, not those
that run from it, so a rebuild could put a million messages there: each costs requests, none gets a task done sooner,
and later tasks would wait behind all of them. The limit cannot block anything, since workers claim without a gate and
each claim makes room. That room is shared between editions, so a later edition waits behind so many wake-ups and not
behind a whole backlog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus, pause_text
from qo.core.words import plural


@dataclass(frozen=True, slots=True)
class Waiting:
    """Tasks of one edition that are due and withheld, counted up to the number that could be released at once."""

    edition_id: str
    due: int


@dataclass(frozen=True, slots=True)
class Cap:
    """A limit of the registry: how many tasks of some queues may be in flight at once, over all jobs."""

    what: str  # For people, such as "runtime spark".
    most: int
    queues: frozenset[str]
    operator: str | None = None  # None: of any.

    def covers(self, queue: str, operator: str) -> bool:
        return queue in self.queues and self.operator in (None, operator)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Tasks that run, or whose wake-up was sent."""

    jobs: Mapping[str, int] = field(default_factory=dict[str, int])  # By logical job, over all its editions.
    operators: Mapping[str, int] = field(default_factory=dict[str, int])
    queues: Mapping[str, int] = field(default_factory=dict[str, int])  # Only wake-ups that nobody has claimed yet.
    caps: Mapping[Cap, int] = field(default_factory=dict[Cap, int])  # For each cap, the tasks that it covers.


@dataclass(frozen=True, slots=True)
class Grants:
    release: Mapping[str, int]  # How many of each edition; no zeros.
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
    caps: Sequence[Cap] = (),
) -> Grants:
    """Share ``room`` releases between the editions, one each in turn, in the order in which they are given.

    ``operators``: the most tasks of an operator that may be under way. ``queue_depth``: the most wake-ups that may wait
    in a queue. ``caps``: further limits. ``held``: editions that something else holds back (backpressure, a missing
    runtime), and why. An edition that only has to wait for its turn has no hold, since the next round follows at once.
    """
    slots = _Slots(topology, in_flight, operators, queue_depth, caps)
    holds: dict[str, str] = {}
    ahead: dict[str, int] = {}
    for each in waiting:
        reason = closed_reason(topology, each.edition_id, held)
        if reason is not None:
            holds[each.edition_id] = reason
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
    return Grants(release, holds | _full_reasons(topology, waiting, release, holds, slots))


def closed_reason(topology: Topology, edition_id: str, held: Mapping[str, str]) -> str | None:
    """Return why no task of the edition may be released, whatever is under way; None if some may."""
    job = topology.jobs.get(edition_id)
    if job is None:
        return "no live version has this job as it was: it was replaced, removed or rolled back"
    if (reason := topology.pause_reason(job)) is not None:
        return pause_text(reason)
    if job.job.outputs == 0 and job.status is not VersionStatus.ACTIVE:
        return f"waits for cutover: it has effects outside, and version {job.version_number} is {job.status}"
    return held.get(edition_id)


def _full_reasons(
    topology: Topology,
    waiting: Iterable[Waiting],
    release: Mapping[str, int],
    holds: Mapping[str, str],
    slots: _Slots,
) -> dict[str, str]:
    """Return the limit that withholds the rest of each edition."""
    reasons: dict[str, str] = {}
    for each in waiting:
        if each.edition_id not in holds and each.due > release.get(each.edition_id, 0):
            reason = slots.why_full(topology.jobs[each.edition_id])
            if reason is not None:
                reasons[each.edition_id] = reason
    return reasons


class _Slots:
    """The room that the limits leave while releases are shared out."""

    def __init__(
        self,
        topology: Topology,
        in_flight: InFlight,
        operators: Mapping[str, int],
        queue_depth: int | None,
        caps: Sequence[Cap],
    ) -> None:
        self._jobs = dict(in_flight.jobs)
        self._operators = dict(in_flight.operators)
        self._queues = dict(in_flight.queues)
        self._limits = operators
        self._depth = queue_depth
        self._most = topology.concurrency
        self._caps = {cap: in_flight.caps.get(cap, 0) for cap in caps}

    def take(self, job: LiveJob) -> bool:
        if self.why_full(job) is not None:
            return False
        self._jobs[job.logical_id] = self._jobs.get(job.logical_id, 0) + 1
        self._operators[job.job.operator] = self._operators.get(job.job.operator, 0) + 1
        self._queues[job.queue] = self._queues.get(job.queue, 0) + 1
        for cap in self._caps:
            self._caps[cap] += cap.covers(job.queue, job.job.operator)
        return True

    def why_full(self, job: LiveJob) -> str | None:
        most = self._most.get(job.logical_id)
        if most is not None and self._jobs.get(job.logical_id, 0) >= most:
            return f"max_concurrency: {most} of this job are under way"
        limit = self._limits.get(job.job.operator)
        if limit is not None and self._operators.get(job.job.operator, 0) >= limit:
            return f"operator limit: {limit} of {job.job.operator} are under way"
        for cap, under_way in self._caps.items():
            if under_way >= cap.most and cap.covers(job.queue, job.job.operator):
                return f"limit of {cap.what}: {cap.most} are under way"
        if self._depth is not None and self._queues.get(job.queue, 0) >= self._depth:
            waiting = plural(self._depth, "wake-up waits", "wake-ups wait")
            return f"queue {job.queue} is full: {waiting} in it for a worker"
        return None
