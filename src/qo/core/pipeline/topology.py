"""The topology: all live jobs as one value, with who reads what and which generations are current.

It is loaded from the state database once for each change (``qo.dispatcher.state.topology``). Routing, release,
reconciliation and backpressure use it, so that none of them has to query for structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import is_

from qo.core.pipeline.dag import Job, Refresh, Strategy
from qo.core.pipeline.part_maps import PartMap, map_inputs
from qo.core.pipeline.partitions import Partitions
from qo.core.pipeline.plan import PlannedInput, PlannedOutput


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
class LiveDag:
    """The live jobs of one DAG, indexed. It is kept for as long as they stay the same objects."""

    listed: tuple[LiveJob, ...]  # Of all live versions.
    jobs: tuple[LiveJob, ...]  # One of each edition, with maps.
    readers: Mapping[str, tuple[Reader, ...]]  # By dataset, also of other DAGs.
    makers: Mapping[str, tuple[LiveJob, ...]]  # By dataset.
    generations: frozenset[str]
    refreshing: tuple[LiveJob, ...]
    concurrency: Mapping[str, int]
    depth: Mapping[str, int] | None  # None: it depends on other DAGs.
    is_partitioned: bool  # Some of its jobs declare partitions: their maps depend on what they read.


@dataclass(frozen=True, slots=True)
class Topology:
    epoch: int
    jobs: Mapping[str, LiveJob]  # By edition.
    current: Mapping[str, str]  # Current generation by dataset: that of the active version.
    paused: Mapping[str, str]  # Reason by "dag" or "dag.job", as a person gave it.
    dags: Mapping[str, LiveDag] = field(default_factory=dict[str, LiveDag])
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

    def of_dag(self, dag: str) -> tuple[LiveJob, ...]:
        """Return the live jobs of a DAG, one of each edition; none if it has no live version."""
        live = self.dags.get(dag)
        return live.jobs if live is not None else ()

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
    epoch: int,
    jobs: Iterable[LiveJob],
    current: Mapping[str, str],
    paused: Mapping[str, str],
    before: Topology | None = None,
) -> Topology:
    """Index live jobs. Of an edition that is in two versions, the row of the active one counts.

    ``before``: an earlier topology. What it has of DAGs whose jobs are the same objects is taken over, which changes
    nothing but the time that it takes.
    """
    dags = _index_dags(jobs, {} if before is None else before.dags, current)
    live = [job for each in dags.values() for job in each.jobs]
    makers = {dataset: its_makers for each in dags.values() for dataset, its_makers in each.makers.items()}
    refreshing = tuple(job for each in dags.values() for job in each.refreshing)
    return Topology(
        epoch,
        {job.edition_id: job for job in live},
        current,
        paused,
        dags=dags,
        readers=_merge_readers(dags.values()),
        makers=makers,
        generations=frozenset[str]().union(*(each.generations for each in dags.values())),
        depth=_depths(dags.values(), makers),
        refreshing=refreshing,
        compared=frozenset(
            each.dataset_id for job in refreshing for some in (job.refreshing, job.outputs) for each in some
        ),
        concurrency={logical: most for each in dags.values() for logical, most in each.concurrency.items()},
    )


def _index_dags(
    jobs: Iterable[LiveJob], earlier: Mapping[str, LiveDag], current: Mapping[str, str]
) -> dict[str, LiveDag]:
    listed: dict[str, list[LiveJob]] = {}
    for job in jobs:
        listed.setdefault(job.dag, []).append(job)
    dags = {
        dag: _find_unchanged(earlier.get(dag), own) or _index(own, _editions(own)) for dag, own in listed.items()
    }
    partitioned = [dag for dag, each in dags.items() if each.is_partitioned]
    if partitioned:
        makers = {
            output.generation_id: job.job.partitions
            for each in dags.values()
            for job in each.jobs
            for output in job.outputs
        }
        for dag in partitioned:
            dags[dag] = _index(listed[dag], _with_maps(_editions(listed[dag]), makers, current))
    return dags


def _find_unchanged(dag: LiveDag | None, listed: Sequence[LiveJob]) -> LiveDag | None:
    """Return the DAG if these are its jobs."""
    if dag is None or len(dag.listed) != len(listed) or not all(map(is_, dag.listed, listed)):
        return None
    return dag


def _editions(listed: Iterable[LiveJob]) -> list[LiveJob]:
    by_edition: dict[str, LiveJob] = {}
    for job in listed:
        if job.edition_id not in by_edition or job.status is VersionStatus.ACTIVE:
            by_edition[job.edition_id] = job
    return list(by_edition.values())


def _index(listed: Iterable[LiveJob], jobs: Sequence[LiveJob]) -> LiveDag:
    readers: dict[str, list[Reader]] = {}
    makers: dict[str, list[LiveJob]] = {}
    for job in jobs:
        for each in job.inputs:
            readers.setdefault(each.dataset_id, []).append(Reader(job, each))
        for output in job.outputs:
            makers.setdefault(output.dataset_id, []).append(job)
    return LiveDag(
        tuple(listed),
        tuple(jobs),
        {dataset: tuple(its_readers) for dataset, its_readers in readers.items()},
        {dataset: tuple(its_makers) for dataset, its_makers in makers.items()},
        generations=frozenset(output.generation_id for job in jobs for output in job.outputs),
        refreshing=tuple(job for job in jobs if job.refreshing),
        concurrency=_concurrency_limits(jobs),
        depth=_record_all_depths(jobs, makers, {}) if readers.keys() <= makers.keys() else None,
        is_partitioned=any(job.job.partitions is not None for job in jobs),
    )


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


def _with_maps(
    jobs: Iterable[LiveJob], makers: Mapping[str, Partitions | None], current: Mapping[str, str]
) -> list[LiveJob]:
    """Return the jobs with the maps of their inputs. What an input has is known by the job that makes it."""
    return [_with_map(job, makers, current) for job in jobs]


def _with_map(job: LiveJob, makers: Mapping[str, Partitions | None], current: Mapping[str, str]) -> LiveJob:
    if job.job.partitions is None:
        return job
    by_position = {
        each.position: makers.get(each.generation_id or current.get(each.dataset_id, "")) for each in job.inputs
    }
    maps = map_inputs(job.job, [by_position.get(position) for position in range(len(job.job.inputs))])
    return replace(job, maps=maps) if maps else job


def _merge_readers(dags: Iterable[LiveDag]) -> dict[str, tuple[Reader, ...]]:
    merged: dict[str, tuple[Reader, ...]] = {}
    for each in dags:
        for dataset, readers in each.readers.items():
            merged[dataset] = merged[dataset] + readers if dataset in merged else readers
    return merged


def _depths(dags: Iterable[LiveDag], makers: Mapping[str, Iterable[LiveJob]]) -> dict[str, int]:
    depth: dict[str, int] = {}
    for each in dags:
        depth |= each.depth or {}
    for each in dags:
        if each.depth is None:
            _record_all_depths(each.jobs, makers, depth)
    return depth


def _record_all_depths(
    jobs: Iterable[LiveJob], makers: Mapping[str, Iterable[LiveJob]], depth: dict[str, int]
) -> dict[str, int]:
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
