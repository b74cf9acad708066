"""How far a version has come with rebuilding its data, and what its jobs wait for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from qo.api.contract.dag import JobWait, RebuildAnswer
from qo.core.pipeline.dag import Join, Strategy
from qo.core.pipeline.plan import PlannedInput, PlannedJob
from qo.core.pipeline.rebuilds import Rebuild
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.core.words import plural
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import backlog, dedupe_keys, failures
from qo.dispatcher.tasks.dedupe_keys import joined_prefix, partition_prefix
from qo.dispatcher.versions import records, side_inputs
from qo.dispatcher.versions.side_inputs import Behind, Lack

NAMED_MAX = 3  # Jobs that are named as causes of a wait.

_tasks, _generations = schema.tasks, schema.generations


def rebuild(tx: Tx, dag: str, number: int | None = None) -> RebuildAnswer:
    """Return the progress of the jobs that a version rebuilds: those that the active version does not have.

    For the active version, those that its predecessor did not have. Without a number, for the newest live version.
    Raises NotFound.
    """
    version = records.find(tx, dag, number)
    serving = records.active(tx, dag)
    against = serving["id"] if serving is not None else None
    if version["status"] == VersionStatus.ACTIVE:
        against = version["replaced_version_id"]
    unchanged = backlog.editions(tx, against) if against is not None else frozenset[str]()
    jobs = [job for job in records.stored_plan(tx, version).jobs if job.edition_id not in unchanged]
    building = [job for job in jobs if job.outputs and not job.job.is_source]
    effects = {job.edition_id for job in jobs if not job.outputs}
    counts = failures.counts(tx, {job.edition_id for job in building})
    tasks, waiting = _sum_by_status(counts), _sum_by_status(backlog.counts(tx, effects))
    remaining_by_edition = _remaining_by_edition(tx, building)
    remaining = sum(remaining_by_edition.values())
    busy = {edition for edition, n in remaining_by_edition.items() if n} | {
        edition for edition in counts if _open(counts[edition])
    }
    waiting_jobs = _waiting_jobs(tx, version["id"], busy)
    held = {rebuild.job.edition_id for rebuild in waiting_jobs}
    stuck = bool(tasks.get(Status.FAILED)) and not tasks.get(Status.RUNNING) and _is_stuck(tx, waiting_jobs, busy)
    open_ = remaining + tasks.get(Status.PENDING, 0) + tasks.get(Status.RUNNING, 0)
    return RebuildAnswer(
        dag=dag,
        version=version["number"],
        status=version["status"],
        jobs=sorted(job.job.name for job in jobs),
        tasks=tasks,
        remaining=remaining,
        waiting=waiting.get(Status.PENDING, 0),
        waits=[JobWait(job=each.job.job.name, reason=explain(tx, each)) for each in waiting_jobs],
        blocked=sum(_open(counts.get(edition, {})) for edition in held) if stuck else 0,
        stuck=stuck,
        caught_up=open_ == 0 and not waiting_jobs,
    )


def _sum_by_status(counted: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for by_status in counted.values():
        for status, n in by_status.items():
            summed[status] = summed.get(status, 0) + n
    return summed


def _open(by_status: Mapping[str, int]) -> int:
    return by_status.get(Status.PENDING, 0) + by_status.get(Status.RUNNING, 0)


def _waiting_jobs(tx: Tx, version_id: str, busy: Collection[str]) -> list[Rebuild]:
    """Return the jobs of a staged or ready version that wait for their side inputs.

    ``busy``: editions that are not done. The others have been built from all there was, and treat new input as active
    jobs do.
    """
    live = topology.load(tx)
    return [
        rebuild
        for edition, rebuild in side_inputs.rebuilds(tx, live).items()
        if rebuild.job.version_id == version_id
        and (
            not side_inputs.is_compared(tx, edition)
            or (edition in busy and side_inputs.is_held(tx, live, rebuild))
        )
    ]


def _is_stuck(tx: Tx, waiting: Sequence[Rebuild], busy: Collection[str]) -> bool:
    """Tell whether only waiting jobs have work left, and nothing that they wait for is in progress."""
    held = {rebuild.job.edition_id for rebuild in waiting}
    lacks = [each for rebuild in waiting for each in _behind(tx, rebuild) if each.job.edition_id not in held]
    return held.issuperset(busy) and bool(lacks) and {each.lack for each in lacks} == {Lack.SUCCESS}


def why_held(tx: Tx, live: Topology, edition: str) -> str | None:
    """Return why tasks of the edition wait for side inputs now; None if they do not."""
    rebuild = side_inputs.rebuilds(tx, live).get(edition)
    if rebuild is None or not side_inputs.is_held(tx, live, rebuild):
        return None
    return explain(tx, rebuild)


def _behind(tx: Tx, rebuild: Rebuild) -> list[Behind]:
    others = rebuild.makers if not side_inputs.is_compared(tx, rebuild.job.edition_id) else rebuild.waits_for
    return list(side_inputs.behind(tx, topology.load(tx), others))


def explain(tx: Tx, rebuild: Rebuild) -> str:
    """Describe for people, with numbers, what a job waits for."""
    causes = [_describe(tx, each) for each in _behind(tx, rebuild)]
    if not causes:
        remaining = _remaining_by_edition(tx, rebuild.makers)
        causes = [
            _tasks_left(job.job.name, remaining[job.edition_id])
            for job in rebuild.makers
            if remaining[job.edition_id]
        ]
    if not causes:
        return "its earlier output is being compared with its side inputs"
    texts = causes[:NAMED_MAX] + ([f"and {len(causes) - NAMED_MAX} more"] if len(causes) > NAMED_MAX else [])
    return f"waits for side inputs: {', '.join(texts)}"


def _describe(tx: Tx, each: Behind) -> str:
    name, dag = each.job.job.name, each.job.dag
    counts = failures.counts(tx, {each.job.edition_id}).get(each.job.edition_id, {})
    match each.lack:
        case Lack.TASKS:
            return _tasks_left(name, _open(counts) + sum(_remaining_by_edition(tx, [each.job]).values()))
        case Lack.SUCCESS:
            failed = plural(counts.get(Status.FAILED, 0), f"task of {name} failed", f"tasks of {name} failed")
            return (
                f"{failed} (replay what qo run list {dag} --status failed shows, or take the version as it is with "
                f"qo dag ready {dag} {each.job.version_number} --force)"
            )
        case Lack.EVENTS:
            return f"events that {name} reads are not routed yet"
        case Lack.COMPARISON:
            return f"{name} is being compared with its side inputs"


def _tasks_left(name: str, n: int) -> str:
    return f"{name} has {plural(n, 'task')} left"


def _remaining_by_edition(tx: Tx, jobs: Sequence[PlannedJob | LiveJob]) -> dict[str, int]:
    reads = _reads(tx, jobs)
    return {job.edition_id: _remaining(tx, job, reads) for job in jobs}


@dataclass(frozen=True, slots=True)
class _Read:
    """What is committed in a generation that a job reads."""

    dataset_id: str
    generation_id: str
    partitions: int
    cursor: int | None


def _reads(tx: Tx, jobs: Sequence[PlannedJob | LiveJob]) -> dict[str, _Read]:
    """Return what the triggering inputs hold, by ``_key``; without inputs that hold nothing yet."""
    triggers = [each for job in jobs for each in job.inputs if each.trigger]
    outside = _current(tx, {each.dataset_id for each in triggers if each.generation_id is None})
    generations = {_key(each): each.generation_id or outside.get(each.dataset_id) for each in triggers}
    rows: dict[str, sa.RowMapping] = {}
    for some in batches(sorted({generation for generation in generations.values() if generation is not None})):
        page = tx.all(sa.select(_generations).where(_generations.c.id.in_(some)))
        rows |= {row["id"]: row for row in page if row["partitions"] or row["cursor"] is not None}
    return {
        key: _Read(row["dataset_id"], row["id"], row["partitions"], row["cursor"])
        for key, generation in generations.items()
        if (row := rows.get(generation or "")) is not None
    }


def _key(each: PlannedInput) -> str:
    return f"{each.dataset_id}:{each.generation_id}"


def _current(tx: Tx, datasets: Collection[str]) -> dict[str, str]:
    pointers, dags = schema.version_generations, schema.dags
    current: dict[str, str] = {}
    for some in batches(sorted(datasets)):
        rows = tx.execute(
            sa.select(pointers.c.dataset_id, pointers.c.generation_id)
            .join(dags, dags.c.active_version_id == pointers.c.version_id)
            .where(pointers.c.dataset_id.in_(some))
        )
        current |= {row.dataset_id: row.generation_id for row in rows}
    return current


def _remaining(tx: Tx, job: PlannedJob | LiveJob, reads: Mapping[str, _Read]) -> int:
    """Return an upper bound of the tasks that are still to be created for committed input; 0 is exact."""
    triggering = [reads.get(_key(each)) for each in job.inputs if each.trigger]
    available = [read for read in triggering if read is not None]
    if job.job.execution_strategy is Strategy.PER_UPDATE:
        return sum(_cursor_remains(tx, job.edition_id, read) for read in available)
    if job.job.join is Join.ALL:
        if len(available) < len(triggering):
            return 0
        partitions = min((read.partitions for read in available), default=0)
        return (
            max(
                0,
                partitions
                - _count_tasks(tx, job.edition_id, joined_prefix([read.generation_id for read in available])),
            )
            if partitions
            else 0
        )
    return sum(
        max(
            0,
            read.partitions
            - _count_tasks(tx, job.edition_id, partition_prefix(read.dataset_id, read.generation_id)),
        )
        for read in available
        if read.partitions
    )


def _count_tasks(tx: Tx, edition_id: str, prefix: str) -> int:
    # Answered from the unique index alone, which has both columns.
    matches = sa.and_(_tasks.c.edition_id == edition_id, _tasks.c.dedupe_key.startswith(prefix, autoescape=True))
    return int(tx.value(sa.select(sa.func.count()).select_from(_tasks).where(matches)))


def _cursor_remains(tx: Tx, edition_id: str, read: _Read) -> bool:
    """Tell whether the furthest cursor has no task yet and has not been read."""
    if read.cursor is None:
        return False
    cursors = schema.cursors
    position = tx.value(
        sa.select(cursors.c.value).where(
            cursors.c.edition_id == edition_id, cursors.c.generation_id == read.generation_id
        )
    )
    if position is not None and position >= read.cursor:
        return False
    key = dedupe_keys.for_cursor(read.dataset_id, read.generation_id, read.cursor)
    return (
        tx.one(sa.select(_tasks.c.id).where(_tasks.c.edition_id == edition_id, _tasks.c.dedupe_key == key)) is None
    )
