"""How far a version is with the data that it builds anew."""

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

NAMED_MAX = 3  # So many jobs are named that another one waits for.

_tasks, _generations = schema.tasks, schema.generations


def rebuild(tx: Tx, dag: str, number: int | None = None) -> RebuildAnswer:
    """The jobs of a version that the active one does not have; of the active one, those its predecessor had not.

    Without a number, of the newest live one. Raises NotFound.
    """
    version = records.find(tx, dag, number)
    serving = records.active(tx, dag)
    against = serving["id"] if serving is not None else None
    if version["status"] == VersionStatus.ACTIVE:
        against = version["replaced_version_id"]
    known = backlog.editions(tx, against) if against is not None else frozenset[str]()
    jobs = [job for job in records.stored_plan(tx, version).jobs if job.edition_id not in known]
    building = [job for job in jobs if job.outputs and not job.job.is_source]
    effects = {job.edition_id for job in jobs if not job.outputs}
    counted = failures.counts(tx, {job.edition_id for job in building})
    tasks, waiting = _summed(counted), _summed(backlog.counts(tx, effects))
    left = _remaining_by_edition(tx, building)
    remaining = sum(left.values())
    busy = {edition for edition, n in left.items() if n} | {
        edition for edition in counted if _open(counted[edition])
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
        blocked=sum(_open(counted.get(edition, {})) for edition in held) if stuck else 0,
        stuck=stuck,
        caught_up=open_ == 0 and not waiting_jobs,
    )


def _summed(counted: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for by_status in counted.values():
        for status, n in by_status.items():
            summed[status] = summed.get(status, 0) + n
    return summed


def _open(by_status: Mapping[str, int]) -> int:
    return by_status.get(Status.PENDING, 0) + by_status.get(Status.RUNNING, 0)


# What is built after something else


def _waiting_jobs(tx: Tx, version_id: str, busy: Collection[str]) -> list[Rebuild]:
    """The jobs of a version, staged or ready, that wait for what they read beside. ``busy``: editions that are not
    done; the others have been built from all that there was, and new inputs are to them as to jobs that serve."""
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
    """Whether nothing is left to do but for jobs that wait, and nothing that these wait for is under way."""
    held = {rebuild.job.edition_id for rebuild in waiting}
    lacks = [each for rebuild in waiting for each in _behind(tx, rebuild) if each.job.edition_id not in held]
    return held.issuperset(busy) and bool(lacks) and {each.lack for each in lacks} == {Lack.SUCCESS}


def why_held(tx: Tx, live: Topology, edition: str) -> str | None:
    """Why tasks of the edition wait for what it reads beside, as it is now; None: they do not."""
    rebuild = side_inputs.rebuilds(tx, live).get(edition)
    if rebuild is None or not side_inputs.is_held(tx, live, rebuild):
        return None
    return explain(tx, rebuild)


def _behind(tx: Tx, rebuild: Rebuild) -> list[Behind]:
    others = rebuild.makers if not side_inputs.is_compared(tx, rebuild.job.edition_id) else rebuild.waits_for
    return list(side_inputs.behind(tx, topology.load(tx), others))


def explain(tx: Tx, rebuild: Rebuild) -> str:
    """What keeps a job waiting, with numbers, for people."""
    found = [_described(tx, each) for each in _behind(tx, rebuild)]
    if not found:
        left = _remaining_by_edition(tx, rebuild.makers)
        found = [_tasks_left(job.job.name, left[job.edition_id]) for job in rebuild.makers if left[job.edition_id]]
    if not found:
        return "what was made of it before is compared with what it reads beside"
    shown = found[:NAMED_MAX] + ([f"and {len(found) - NAMED_MAX} more"] if len(found) > NAMED_MAX else [])
    return f"waits for inputs read beside: {', '.join(shown)}"


def _described(tx: Tx, each: Behind) -> str:
    name, dag = each.job.job.name, each.job.dag
    counted = failures.counts(tx, {each.job.edition_id}).get(each.job.edition_id, {})
    match each.lack:
        case Lack.TASKS:
            return _tasks_left(name, _open(counted) + sum(_remaining_by_edition(tx, [each.job]).values()))
        case Lack.SUCCESS:
            failed = plural(counted.get(Status.FAILED, 0), f"task of {name} failed", f"tasks of {name} failed")
            return (
                f"{failed} (replay what qo run list {dag} --status failed shows, or take the version as it is with "
                f"qo dag ready {dag} {each.job.version_number} --force)"
            )
        case Lack.EVENTS:
            return f"events that {name} reads are to be routed"
        case Lack.COMPARISON:
            return f"{name} is compared with what it reads beside"


def _tasks_left(name: str, n: int) -> str:
    return f"{name} has {plural(n, 'task')} left"


# What has no task yet


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
    """By dataset and generation of a triggering input, as ``_key`` has it; without those that hold nothing yet."""
    wanted = [each for job in jobs for each in job.inputs if each.trigger]
    outside = _current(tx, {each.dataset_id for each in wanted if each.generation_id is None})
    chosen = {_key(each): each.generation_id or outside.get(each.dataset_id) for each in wanted}
    found: dict[str, sa.RowMapping] = {}
    for some in batches(sorted({generation for generation in chosen.values() if generation is not None})):
        rows = tx.all(sa.select(_generations).where(_generations.c.id.in_(some)))
        found |= {row["id"]: row for row in rows if row["partitions"] or row["cursor"] is not None}
    return {
        key: _Read(row["dataset_id"], row["id"], row["partitions"], row["cursor"])
        for key, generation in chosen.items()
        if (row := found.get(generation or "")) is not None
    }


def _key(each: PlannedInput) -> str:
    return f"{each.dataset_id}:{each.generation_id}"


def _current(tx: Tx, datasets: Collection[str]) -> dict[str, str]:
    pointers, dags = schema.version_generations, schema.dags
    found: dict[str, str] = {}
    for some in batches(sorted(datasets)):
        rows = tx.execute(
            sa.select(pointers.c.dataset_id, pointers.c.generation_id)
            .join(dags, dags.c.active_version_id == pointers.c.version_id)
            .where(pointers.c.dataset_id.in_(some))
        )
        found |= {row.dataset_id: row.generation_id for row in rows}
    return found


def _remaining(tx: Tx, job: PlannedJob | LiveJob, reads: Mapping[str, _Read]) -> int:
    """At most so many tasks are still to be made for what is committed; 0 is exact."""
    triggering = [reads.get(_key(each)) for each in job.inputs if each.trigger]
    there = [read for read in triggering if read is not None]
    if job.job.execution_strategy is Strategy.PER_UPDATE:
        return sum(_cursor_remains(tx, job.edition_id, read) for read in there)
    if job.job.join is Join.ALL:
        if len(there) < len(triggering):
            return 0
        held = min((read.partitions for read in there), default=0)
        return (
            max(0, held - _made(tx, job.edition_id, joined_prefix([read.generation_id for read in there])))
            if held
            else 0
        )
    return sum(
        max(0, read.partitions - _made(tx, job.edition_id, partition_prefix(read.dataset_id, read.generation_id)))
        for read in there
        if read.partitions
    )


def _made(tx: Tx, edition_id: str, prefix: str) -> int:
    # Read from the unique index alone: it has both columns.
    made = sa.and_(_tasks.c.edition_id == edition_id, _tasks.c.dedupe_key.startswith(prefix, autoescape=True))
    return int(tx.value(sa.select(sa.func.count()).select_from(_tasks).where(made)))


def _cursor_remains(tx: Tx, edition_id: str, read: _Read) -> bool:
    """Whether the furthest cursor has no task yet and has not been read."""
    if read.cursor is None:
        return False
    cursors = schema.cursors
    done = tx.value(
        sa.select(cursors.c.value).where(
            cursors.c.edition_id == edition_id, cursors.c.generation_id == read.generation_id
        )
    )
    if done is not None and done >= read.cursor:
        return False
    key = dedupe_keys.for_cursor(read.dataset_id, read.generation_id, read.cursor)
    return (
        tx.one(sa.select(_tasks.c.id).where(_tasks.c.edition_id == edition_id, _tasks.c.dedupe_key == key)) is None
    )
