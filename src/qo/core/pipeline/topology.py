"""The topology: all live jobs as one value, with who reads what and which generations are current.

It is loaded from the state database once for each change (``qo.dispatcher.state.topology``). Routing, release,
reconciliation and backpressure use it, so that none of them has to query for structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from qo.core.pipeline.dag import Job, Refresh, Strategy
from qo.core.pipeline.part_maps import PartMap, map_inputs
from qo.core.pipeline.plan import PlannedInput, PlannedOutput

T = TypeVar("T")


class VersionStatus(StrEnum):
    STAGED = "staged"  # Being built beside the active one.
    READY = "ready"  # Approved to take over.
    ACTIVE = "active"
    RETIRED = "retired"  # Replaced by a later one; a rollback can bring it back.
    ROLLED_BACK = "rolled_back"
    ABANDONED = "abandoned"  # Another was deployed before it became active.


LIVE = frozenset({VersionStatus.STAGED, VersionStatus.READY, VersionStatus.ACTIVE})


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job of a live version. An edition of two versions is listed once, as the active one has it."""

    id: str  # Of its row, which is a job of one version.
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
    timeout_s: float | None = None  # Of one attempt; None: unlimited while it sends heartbeats.
    bundle: str | None = None  # Hash of the bundle with its code; None: workers run their own.
    missing: str | None = None  # Why nobody can run it: the registry has no such runtime or queue any more.
    maps: Mapping[int, PartMap] = field(default_factory=dict[int, PartMap])  # Of inputs, by position.

    @property
    def name(self) -> str:
        return f"{self.dag}.{self.job.name}"

    @property
    def is_composite(self) -> bool:
        """Whether its partitions are made of other partitions of what triggers it."""
        return any(each.trigger and each.position in self.maps for each in self.inputs)

    @property
    def composed(self) -> tuple[PlannedInput, ...]:
        """The inputs whose partitions those of a composite wait for."""
        return tuple(each for each in self.inputs if each.trigger and each.position in self.maps)

    @property
    def refreshing(self) -> tuple[PlannedInput, ...]:
        """The inputs whose changes rebuild the partitions that were made from them."""
        on_change = {
            position for position, each in enumerate(self.job.inputs) if each.refresh is Refresh.ON_CHANGE
        }
        return tuple(each for each in self.inputs if each.position in on_change)


@dataclass(frozen=True, slots=True)
class Reader:
    """A live job that reads a generation, and the input by which it does."""

    job: LiveJob
    input: PlannedInput


@dataclass(frozen=True, slots=True)
class Topology:
    epoch: int
    jobs: Mapping[str, LiveJob]  # By edition.
    current: Mapping[str, str]  # Current generation by dataset: that of the active version.
    paused: Mapping[str, str]  # Reason by "dag" or "dag.job", as a person gave it.
    of_dag: Mapping[str, tuple[LiveJob, ...]] = field(default_factory=dict[str, tuple[LiveJob, ...]])
    readers: Mapping[str, tuple[Reader, ...]] = field(default_factory=dict[str, tuple[Reader, ...]])  # By dataset.
    makers: Mapping[str, tuple[LiveJob, ...]] = field(
        default_factory=dict[str, tuple[LiveJob, ...]]
    )  # By dataset.
    generations: frozenset[str] = frozenset()  # Those that a live version makes.
    # By edition: the length of the longest chain of jobs upstream of it.
    depth: Mapping[str, int] = field(default_factory=dict[str, int])
    refreshing: tuple[LiveJob, ...] = ()  # Jobs with inputs whose changes rebuild something.
    # Datasets that these jobs read by such inputs, or make: a commit to one may make something stale.
    compared: frozenset[str] = frozenset()
    # How many tasks of a logical job may be under way at once, for each job with such a limit.
    concurrency: Mapping[str, int] = field(default_factory=dict[str, int])

    def consumers(self, dataset_id: str, generation_id: str) -> list[Reader]:
        """Return the readers that something new in this generation triggers."""
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
        """Return why a job is paused; None if it is not. The reason may be empty."""
        return self.paused.get(job.name, self.paused.get(job.dag))


def pause_text(reason: str) -> str:
    """Return a pause in words; it may have no reason."""
    return f"paused: {reason}" if reason else "paused"


def build_topology(
    epoch: int, jobs: Iterable[LiveJob], current: Mapping[str, str], paused: Mapping[str, str]
) -> Topology:
    """Index live jobs. Of an edition that is in two versions, the row of the active one counts."""
    by_edition: dict[str, LiveJob] = {}
    for job in jobs:
        present = by_edition.get(job.edition_id)
        if present is None or job.status is VersionStatus.ACTIVE:
            by_edition[job.edition_id] = job
    by_edition = _with_maps(by_edition, current)
    of_dag: dict[str, list[LiveJob]] = {}
    readers: dict[str, list[Reader]] = {}
    makers: dict[str, list[LiveJob]] = {}
    for job in by_edition.values():
        of_dag.setdefault(job.dag, []).append(job)
        for each in job.inputs:
            readers.setdefault(each.dataset_id, []).append(Reader(job, each))
        for output in job.outputs:
            makers.setdefault(output.dataset_id, []).append(job)
    refreshing = tuple(job for job in by_edition.values() if job.refreshing)
    return Topology(
        epoch,
        by_edition,
        current,
        paused,
        of_dag=_frozen(of_dag),
        readers=_frozen(readers),
        makers=_frozen(makers),
        generations=frozenset(output.generation_id for job in by_edition.values() for output in job.outputs),
        depth=_depths(by_edition.values(), makers),
        refreshing=refreshing,
        compared=frozenset(
            each.dataset_id for job in refreshing for some in (job.refreshing, job.outputs) for each in some
        ),
        concurrency=_concurrency_limits(by_edition.values()),
    )


def _frozen(lists: Mapping[str, list[T]]) -> dict[str, tuple[T, ...]]:
    return {key: tuple(values) for key, values in lists.items()}


def _concurrency_limits(jobs: Iterable[LiveJob]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for job in jobs:
        # Of two tasks that read the same changes, only one can commit: the second would work in vain.
        one = 1 if job.job.execution_strategy is Strategy.PER_CHANGE else None
        limit = one or job.job.scaling.max_concurrency
        if limit is not None:
            # Two live versions of a job may have different limits: neither is exceeded.
            limits[job.logical_id] = min(limit, limits.get(job.logical_id, limit))
    return limits


def _with_maps(jobs: Mapping[str, LiveJob], current: Mapping[str, str]) -> dict[str, LiveJob]:
    """Return the jobs with the maps of their inputs. What an input has is known by the job that makes it."""
    makers = {output.generation_id: job.job.partitions for job in jobs.values() for output in job.outputs}
    mapped = dict(jobs)
    for edition, job in jobs.items():
        if job.job.partitions is None:
            continue
        by_position = {
            each.position: makers.get(each.generation_id or current.get(each.dataset_id, ""))
            for each in job.inputs
        }
        maps = map_inputs(job.job, [by_position.get(position) for position in range(len(job.job.inputs))])
        if maps:
            mapped[edition] = replace(job, maps=maps)
    return mapped


def _depths(jobs: Iterable[LiveJob], makers: Mapping[str, Iterable[LiveJob]]) -> dict[str, int]:
    depth: dict[str, int] = {}
    for job in jobs:
        if job.edition_id not in depth:
            _record_depths(job, makers, depth)
    return depth


def _record_depths(job: LiveJob, makers: Mapping[str, Iterable[LiveJob]], depth: dict[str, int]) -> None:
    """Record the depth of a job and of all jobs upstream of it. Not recursive: a chain may be longer than the stack.

    A cycle, which several DAGs can form together, is cut where it closes.
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
            depths = [depth[maker.edition_id] + 1 for maker in before if maker.edition_id != this.edition_id]
            depth[this.edition_id] = max([depth[this.edition_id], *depths])
