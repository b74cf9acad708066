"""Everything that is deployed and alive, as one value: who reads what, and what is current.

Loaded from the state database once per change of it (``qo.dispatcher.state.topology``) and asked by routing, releasing,
reconciling and backpressure, so that none of them has to query for structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from qo.core.pipeline.dag import Job, Refresh
from qo.core.pipeline.plan import PlannedInput, PlannedOutput


class VersionStatus(StrEnum):
    STAGED = "staged"  # Being rebuilt beside the active one.
    READY = "ready"  # Somebody said that it may take over.
    ACTIVE = "active"
    RETIRED = "retired"  # Replaced by a later one; can be rolled back to.
    ROLLED_BACK = "rolled_back"
    ABANDONED = "abandoned"  # Another was deployed before it ever became active.


LIVE = frozenset({VersionStatus.STAGED, VersionStatus.READY, VersionStatus.ACTIVE})


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job of a live version. An edition that is in two of them stands here once, as the active one has it."""

    id: str  # Of its row: a job of one version.
    edition_id: str
    logical_id: str
    dag: str
    version_id: str
    version_number: int
    status: VersionStatus
    queue: str  # Where its wake-ups go; see the registry of runtimes.
    job: Job
    config_hash: str
    inputs: tuple[PlannedInput, ...]
    outputs: tuple[PlannedOutput, ...]
    timeout_s: float | None = None  # Of one attempt; None: as long as it is heard of.
    bundle: str | None = None  # Of its code, by hash; None: workers run their own.

    @property
    def name(self) -> str:
        return f"{self.dag}.{self.job.name}"

    @property
    def refreshing(self) -> tuple[PlannedInput, ...]:
        """The inputs whose changes have the job make again what it made from them."""
        on_change = {
            position for position, each in enumerate(self.job.inputs) if each.refresh is Refresh.ON_CHANGE
        }
        return tuple(each for each in self.inputs if each.position in on_change)


@dataclass(frozen=True, slots=True)
class Reader:
    """A live job that reads a generation, and by which of its inputs."""

    job: LiveJob
    input: PlannedInput


@dataclass(frozen=True, slots=True)
class Topology:
    epoch: int
    jobs: Mapping[str, LiveJob]  # By edition.
    current: Mapping[str, str]  # Current generation by dataset: that of the active version.
    paused: Mapping[str, str]  # Reason by "dag" or "dag.job", as people said it.
    readers: Mapping[str, tuple[Reader, ...]] = field(default_factory=dict[str, tuple[Reader, ...]])  # By dataset.
    generations: frozenset[str] = frozenset()  # Those that a live version makes.
    # By edition: how many jobs, at most, stand between it and what comes from outside.
    depth: Mapping[str, int] = field(default_factory=dict[str, int])
    refreshing: tuple[LiveJob, ...] = ()  # Jobs with inputs whose changes have them make something again.
    # Datasets that these jobs read by such inputs, or make: a commit to one may leave something stale.
    compared: frozenset[str] = frozenset()

    def consumers(self, dataset_id: str, generation_id: str) -> list[Reader]:
        """Who must hear of something new in this generation."""
        is_current = self.current.get(dataset_id) == generation_id
        return [
            reader
            for reader in self.readers.get(dataset_id, ())
            if reader.input.trigger
            and (
                reader.input.generation_id == generation_id or (reader.input.generation_id is None and is_current)
            )
        ]

    def pause_reason(self, job: LiveJob) -> str | None:
        """None: it is not paused. Whoever paused it need not have said why, so the reason may be empty."""
        return self.paused.get(job.name, self.paused.get(job.dag))

    def producers(self, job: LiveJob) -> Iterable[LiveJob]:
        """The live jobs whose outputs this one reads."""
        read = {each.dataset_id for each in job.inputs}
        return [other for other in self.jobs.values() if any(made.dataset_id in read for made in other.outputs)]


def pause_text(reason: str) -> str:
    """A pause in words; somebody may have paused without a reason."""
    return f"paused: {reason}" if reason else "paused"


def topology(
    epoch: int, jobs: Iterable[LiveJob], current: Mapping[str, str], paused: Mapping[str, str]
) -> Topology:
    """Index live jobs. Where one edition is in two versions, the active one's row counts."""
    chosen: dict[str, LiveJob] = {}
    for job in jobs:
        known = chosen.get(job.edition_id)
        if known is None or job.status is VersionStatus.ACTIVE:
            chosen[job.edition_id] = job
    readers: dict[str, list[Reader]] = {}
    for job in chosen.values():
        for each in job.inputs:
            readers.setdefault(each.dataset_id, []).append(Reader(job, each))
    generations = frozenset(made.generation_id for job in chosen.values() for made in job.outputs)
    frozen = {dataset: tuple(found) for dataset, found in readers.items()}
    refreshing = tuple(job for job in chosen.values() if job.refreshing)
    compared = frozenset(
        each.dataset_id for job in refreshing for some in (job.refreshing, job.outputs) for each in some
    )
    depths = _depths(chosen.values())
    return Topology(epoch, chosen, current, paused, frozen, generations, depths, refreshing, compared)


def _depths(jobs: Iterable[LiveJob]) -> dict[str, int]:
    listed = list(jobs)
    makers: dict[str, list[LiveJob]] = {}
    for job in listed:
        for made in job.outputs:
            makers.setdefault(made.dataset_id, []).append(job)
    depth: dict[str, int] = {}
    for job in listed:
        if job.edition_id not in depth:
            _measure(job, makers, depth)
    return depth


def _measure(job: LiveJob, makers: Mapping[str, Iterable[LiveJob]], depth: dict[str, int]) -> None:
    """Write down the depth of a job and of all before it. By a list of its own: a chain may be longer than the stack.

    A circle, which several DAGs can make together, is cut where it closes.
    """
    ahead = [job]
    while ahead:
        this = ahead[-1]
        before = [maker for read in this.inputs for maker in makers.get(read.dataset_id, ())]
        if this.edition_id not in depth:
            depth[this.edition_id] = 0
            ahead += [maker for maker in before if maker.edition_id not in depth]
        else:
            ahead.pop()
            found = [depth[maker.edition_id] + 1 for maker in before if maker.edition_id != this.edition_id]
            depth[this.edition_id] = max([depth[this.edition_id], *found])
