"""How many tasks are still to be created for what is committed: an upper bound, and 0 is exact.

Up to the revision that the reconciler has come to (``versions.marks``), everything has its task. Beyond it, partitions
are looked at one by one while they are few, and only counted otherwise: the cost does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa

from qo.core.pipeline import change_range
from qo.core.pipeline.dag import Join, Strategy
from qo.core.pipeline.part_maps import PartMap, concerned
from qo.core.pipeline.plan import PlannedInput, PlannedJob
from qo.core.pipeline.topology import LiveJob
from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import backlog, bulk_changes, change_tasks, dedupe_keys
from qo.dispatcher.tasks.dedupe_keys import joined_prefix, partition_prefix
from qo.dispatcher.versions import marks
from qo.dispatcher.versions.marks import Mark
from qo.errors import UsageError

LOOKED_AT_MAX = 1_000

_tasks, _generations, _partitions = schema.tasks, schema.generations, schema.partitions
_Marks = Mapping[tuple[str, int, str], Mark]


def count_remaining(tx: Tx, jobs: Sequence[PlannedJob | LiveJob]) -> dict[str, int]:
    """Count by edition the tasks that are still to be created, or to be revived."""
    editions = {job.edition_id for job in jobs}
    reads, compared = _reads(tx, jobs), marks.settled(tx, editions)
    reviving = bulk_changes.reviving(tx, editions)
    return {
        job.edition_id: _remaining(tx, job, reads, compared)
        + (bulk_changes.count_given_up(tx, job.edition_id) if job.edition_id in reviving else 0)
        for job in jobs
    }


@dataclass(frozen=True, slots=True)
class _Read:
    """What is committed in a generation that a job reads."""

    dataset_id: str
    generation_id: str
    partitions: int
    revision: int | None
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
        key: _Read(row["dataset_id"], row["id"], row["partitions"], row["revision"], row["cursor"])
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


def _remaining(tx: Tx, job: PlannedJob | LiveJob, reads: Mapping[str, _Read], compared: _Marks) -> int:
    triggering = [(each, reads.get(_key(each))) for each in job.inputs if each.trigger]
    available = [(each, read) for each, read in triggering if read is not None]
    if job.job.execution_strategy is Strategy.PER_UPDATE:
        return sum(_cursor_remains(tx, job.edition_id, read) for _, read in available)
    if job.job.execution_strategy is Strategy.PER_CHANGE:
        return sum(_changes_remain(tx, job, read) for _, read in available)
    if (maps := _composite_maps(job)) is not None:
        return _count_composed(tx, job, maps, available, compared)
    if job.job.join is Join.ALL:
        if len(available) < len(triggering):
            return 0
        generations = [read.generation_id for _, read in available]
        counts = [
            _count_missing(tx, job, read, joined_prefix(generations), _mark(compared, job, each, read), available)
            for each, read in available
        ]
        return min(max(counts), *(read.partitions for _, read in available)) if counts else 0
    return sum(
        _count_missing(
            tx, job, read, partition_prefix(read.dataset_id, read.generation_id), _mark(compared, job, each, read)
        )
        for each, read in available
    )


def _composite_maps(job: PlannedJob | LiveJob) -> Mapping[int, PartMap] | None:
    """Return the maps of the inputs whose partitions those of the job are made of; None: they are not."""
    maps = {
        each.position: job.maps[each.position] for each in job.inputs if each.trigger and each.position in job.maps
    }
    return maps or None


def _count_composed(
    tx: Tx,
    job: PlannedJob | LiveJob,
    maps: Mapping[int, PartMap],
    available: Sequence[tuple[PlannedInput, _Read]],
    compared: _Marks,
) -> int:
    """Count the partitions without a task that something beyond the marks concerns: at most so many are to be made."""
    keys: set[str] = set()
    for each, read in available:
        mark = _mark(compared, job, each, read)
        if each.position not in maps or (mark is not None and (read.revision or 0) <= mark.settled):
            continue
        beyond = sa.and_(
            _partitions.c.generation_id == read.generation_id,
            _partitions.c.revision > (0 if mark is None else mark.settled),
        )
        query = sa.select(_partitions.c.partition_key).where(beyond).order_by(_partitions.c.revision)
        for key in tx.execute(query.limit(LOOKED_AT_MAX)).scalars():
            with suppress(UsageError):  # It was committed before its keys were declared.
                keys |= set(concerned(maps[each.position], key))
    present: set[str] = set()
    for some in batches(sorted(keys)):
        own = sa.and_(_tasks.c.edition_id == job.edition_id, _tasks.c.partition_key.in_(some))
        present.update(tx.execute(sa.select(_tasks.c.partition_key).where(own).distinct()).scalars())
    return len(keys - present)


def _mark(compared: _Marks, job: PlannedJob | LiveJob, each: PlannedInput, read: _Read) -> Mark | None:
    return compared.get((job.edition_id, each.position, read.generation_id))


def _count_missing(
    tx: Tx,
    job: PlannedJob | LiveJob,
    read: _Read,
    prefix: str,
    mark: Mark | None,
    joined: Sequence[tuple[PlannedInput, _Read]] = (),
) -> int:
    """Count the partitions of an input beyond the mark that have no task; with ``joined``, that all of these have."""
    if not read.partitions or (mark is not None and (read.revision or 0) <= mark.settled):
        return 0
    new = sa.and_(
        _partitions.c.generation_id == read.generation_id,
        _partitions.c.revision > (0 if mark is None else mark.settled),
    )
    keys = sa.select(_partitions.c.partition_key).where(new).order_by(_partitions.c.revision)
    page = list(tx.execute(keys.limit(LOOKED_AT_MAX + 1)).scalars())
    if len(page) > LOOKED_AT_MAX:
        some = keys.limit(backlog.COUNT_MAX).subquery()
        counted = int(tx.value(sa.select(sa.func.count()).select_from(some)))
        return max(counted, read.partitions - (0 if mark is None else mark.passed))
    for _, other in joined:
        if other.generation_id != read.generation_id:
            page = _existing_keys(tx, other, page)
    return len(page) - _count_tasks(tx, job.edition_id, [prefix + key for key in page])


def _existing_keys(tx: Tx, read: _Read, keys: Sequence[str]) -> list[str]:
    existing: list[str] = []
    for some in batches(keys):
        query = sa.select(_partitions.c.partition_key).where(
            _partitions.c.dataset_id == read.dataset_id,
            _partitions.c.generation_id == read.generation_id,
            _partitions.c.partition_key.in_(some),
        )
        existing += tx.execute(query).scalars()
    return existing


def _count_tasks(tx: Tx, edition_id: str, keys: Sequence[str]) -> int:
    count = 0
    for some in batches(keys):
        own = sa.and_(_tasks.c.edition_id == edition_id, _tasks.c.dedupe_key.in_(some))
        count += int(tx.value(sa.select(sa.func.count()).select_from(_tasks).where(own)))
    return count


def _changes_remain(tx: Tx, job: PlannedJob | LiveJob, read: _Read) -> bool:
    """Tell whether there is something to read, and no task yet that will or could not."""
    position = change_tasks.position(tx, job.edition_id, read.dataset_id)
    if not change_range.is_due(job.job.config, position, read.generation_id, read.revision):
        return False
    newest = sa.select(_tasks.c.cursor).where(_tasks.c.edition_id == job.edition_id)
    waiting = newest.where(_tasks.c.status.in_([Status.PENDING, Status.RUNNING]))
    failed = newest.where(_tasks.c.status == Status.FAILED, _tasks.c.cursor >= (read.revision or 0))
    return tx.one(waiting.limit(1)) is None and tx.one(failed.limit(1)) is None


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
