"""Spreads invalidations: each direct reader of what is out of date gets a task to read it again.

A reader that has not read the old state gets none, because what it has still to do will read the new one. What the
others replace invalidates in turn, and since no job reads what follows from it, that ends.

Where a partition was removed, what its readers had made of it is removed (``removals``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.dag import Strategy
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher.commits import removals
from qo.dispatcher.effects import external_effects
from qo.dispatcher.events import event_log, invalidations
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import creation, dedupe_keys
from qo.dispatcher.tasks.creation import NewTask

SPLIT_MAX = 500  # Partitions of one range in one step.

_rows, _readers = schema.invalidations, schema.invalidation_readers
# Whose reading counts. What waits for another attempt decides anew what it reads, unless the last one may still
# finish late; what failed has made nothing.
_STANDS = sa.or_(
    schema.tasks.c.status.in_([Status.RUNNING, Status.COMPLETED]), schema.tasks.c.late_lease_id.is_not(None)
)
# Built once. This and nothing else is what their index has: what is spread may stay open for long.
_OPEN = (
    sa.select(_rows).where(_rows.c.spread_at.is_(None)).order_by(_rows.c.created_at).limit(sa.bindparam("most"))
)
_SPLIT = "split"  # The key under which it is kept how far a range has been split.


def tick(state: State, limit: int = 100) -> int:
    """Give up to ``limit`` invalidations to their readers, and wait no longer for readers that are gone; how many
    were dealt with."""
    with state.read() as tx:
        if tx.execute(_OPEN, {"most": 1}).first() is None and not invalidations.forsaken(tx, topology.load(tx)):
            return 0
    with state.write() as tx:
        live = topology.load(tx)
        taken = tx.execute(tx.lock(_OPEN, skip=True), {"most": limit}).mappings().all()
        for row in taken:
            _spread(tx, live, row)
        return len(taken) + _forsake(tx, live, limit)


def _forsake(tx: Tx, live: Topology, limit: int) -> int:
    """Close what waits for editions that no live version has; up to ``limit`` of it."""
    closed = 0
    for edition in invalidations.forsaken(tx, live):
        if closed < limit:
            closed += invalidations.give_up(tx, edition, limit - closed)
    return closed


def _spread(tx: Tx, live: Topology, row: sa.RowMapping) -> None:
    by_key = row["partition_key"] is not None
    jobs = _direct_readers(live, row)
    by_partition = [job for job in jobs if job.job.execution_strategy is Strategy.PER_PARTITION]
    if not by_key and by_partition and not _split(tx, row):
        return  # There are more partitions: the next step goes on.
    # Who follows a cursor is concerned by ranges, and by everything; a partition alone says nothing to it.
    chosen = by_partition if by_key else [job for job in jobs if job not in by_partition]
    orphaned = [job for job in chosen if removals.is_orphaned(tx, live, job, row)] if by_key else []
    reading = [job for job in chosen if job not in orphaned]
    wanted = {job.edition_id: new for job in reading if (new := _task(tx, row, job)) is not None}
    creation.create(tx, list(wanted.values()))
    for job in sorted(orphaned, key=lambda each: each.edition_id):
        removals.withdraw(tx, job, row)
    given = [
        {
            "invalidation_id": row["id"],
            "edition_id": job.edition_id,
            "task_id": wanted[job.edition_id].task_id if job.edition_id in wanted else None,
            "processed_at": None if job.edition_id in wanted else tx.now,
        }
        for job in chosen
    ]
    if given:
        tx.insert_absent(_readers, given, returning=_readers.c.edition_id)
    tx.execute(sa.update(_rows).where(_rows.c.id == row["id"]).values(spread_at=tx.now))
    invalidations.close(tx, row["id"])


def _direct_readers(live: Topology, row: sa.RowMapping) -> list[LiveJob]:
    """Those that something new in the generation would start, each once."""
    found = {each.job.edition_id: each.job for each in live.consumers(row["dataset_id"], row["generation_id"])}
    return list(found.values())


def _task(tx: Tx, row: sa.RowMapping, job: LiveJob) -> NewTask | None:
    """What the reader has to do again, or None if it has not done it with the old state."""
    upto, start, end = None, row["start"], row["end"]
    if row["partition_key"] is None:
        read = _read_range(tx, row, job)
        if read is None:
            return None
        start, end, upto = read[0], read[1] + 1, read[1]
    elif not (_has_read(tx, row, job) or _gave_up(tx, row, job) or _acted_on_another(tx, row, job)):
        return None
    elif start is None:
        start, end = _range_of(tx, row)
    return NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_invalidation(row["id"]),
        dataset_id=row["dataset_id"],
        generation_id=row["generation_id"],
        partition_key=row["partition_key"],
        start=start,
        end=end,
        cursor=upto,
        attributes=_said(tx, row),
        invalidation_id=row["id"],
    )


def _said(tx: Tx, row: sa.RowMapping) -> dict[str, Any] | None:
    key = row["partition_key"]
    return (
        None if key is None else event_log.attributes(tx, row["dataset_id"], row["generation_id"], [key]).get(key)
    )


def _range_of(tx: Tx, row: sa.RowMapping) -> tuple[int | None, int | None]:
    table = schema.partitions
    found = tx.one(
        sa.select(table.c.start, table.c.end).where(
            table.c.dataset_id == row["dataset_id"],
            table.c.generation_id == row["generation_id"],
            table.c.partition_key == row["partition_key"],
        )
    )
    return (None, None) if found is None else (found["start"], found["end"])


def _has_read(tx: Tx, row: sa.RowMapping, job: LiveJob) -> bool:
    """Whether the latest state that the job has read of the partition is an older one."""
    inputs, tasks = schema.task_inputs, schema.tasks
    latest = tx.value(
        sa.select(sa.func.max(inputs.c.revision))
        .join(tasks, tasks.c.id == inputs.c.task_id)
        .where(
            inputs.c.generation_id == row["generation_id"],
            inputs.c.partition_key == row["partition_key"],
            tasks.c.edition_id == job.edition_id,
            _STANDS,
        )
    )
    return latest is not None and (row["revision"] is None or latest < row["revision"])


def _gave_up(tx: Tx, row: sa.RowMapping, job: LiveJob) -> bool:
    """Whether all that the job wanted to do about the partition has failed or was cancelled. What is new now is
    another matter, and gets an attempt of its own."""
    tasks = schema.tasks
    about = sa.select(tasks.c.status).where(
        tasks.c.edition_id == job.edition_id,
        tasks.c.partition_key == row["partition_key"],
        tasks.c.generation_id == row["generation_id"],
    )
    states = set(tx.execute(about.distinct()).scalars())
    return row["revision"] is not None and bool(states) and states <= {Status.FAILED, Status.CANCELLED}


def _acted_on_another(tx: Tx, row: sa.RowMapping, job: LiveJob) -> bool:
    """Whether a job that has effects outside has had them for another generation's partition, and for none of this.

    The one that serves now has taken their place, so it is told as the other would have been.
    """
    if job.job.outputs or job.status is not VersionStatus.ACTIVE or row["revision"] is None:
        return False
    own = sa.select(schema.tasks.c.id).where(
        schema.tasks.c.edition_id == job.edition_id,
        schema.tasks.c.partition_key == row["partition_key"],
        schema.tasks.c.generation_id == row["generation_id"],
        schema.tasks.c.status.in_([Status.PENDING, Status.RUNNING, Status.COMPLETED]),
    )
    key = row["partition_key"]
    return tx.one(own.limit(1)) is None and key in external_effects.partitions_done(
        tx, job, row["dataset_id"], [key]
    )


def _read_range(tx: Tx, row: sa.RowMapping, job: LiveJob) -> tuple[int, int] | None:
    """The first and last cursor of all that a job which follows a cursor has read together with the range.

    Whole ranges, as its tasks read them, because what it made of each of them is replaced as a whole.
    """
    inputs, tasks = schema.task_inputs, schema.tasks
    first = sa.func.coalesce(inputs.c.cursor_after, -1) + 1
    query = (
        sa.select(sa.func.min(first), sa.func.max(inputs.c.cursor_upto))
        .join(tasks, tasks.c.id == inputs.c.task_id)
        .where(
            inputs.c.generation_id == row["generation_id"],
            inputs.c.partition_key == "",
            inputs.c.cursor_upto.is_not(None),
            tasks.c.edition_id == job.edition_id,
            _STANDS,
        )
    )
    if row["revision"] is not None:
        query = query.where(inputs.c.revision < row["revision"])
    if row["start"] is not None:
        query = query.where(inputs.c.cursor_upto >= row["start"], first < row["end"])
    found = tx.execute(query).one()
    return None if found[1] is None else (found[0], found[1])


def _split(tx: Tx, row: sa.RowMapping) -> bool:
    """Make one invalidation of each partition in the range, so many at a time; whether that is all."""
    kept = schema.operator_state
    place = sa.and_(kept.c.edition_id == row["id"], kept.c.key == _SPLIT)
    after = tx.value(sa.select(kept.c.value).where(place))
    found = _partitions(tx, row, after)
    children = [
        {
            "id": derive_id("invalidation", row["id"], "part", each["partition_key"]),
            "dataset_id": row["dataset_id"],
            "generation_id": row["generation_id"],
            "partition_key": each["partition_key"],
            "start": each["start"],
            "end": each["end"],
            "row_filter": row["row_filter"],
            "reason": row["reason"],
            "source_task_id": row["source_task_id"],
            "created_at": tx.now,
            "created_by": row["created_by"],
        }
        for each in found
        if _touches(row, each)
    ]
    if children:
        tx.insert_absent(_rows, children, returning=_rows.c.id)
    if len(found) < SPLIT_MAX:
        tx.execute(sa.delete(kept).where(place))
        return True
    last = found[-1]["partition_key"]
    tx.upsert(kept, {"edition_id": row["id"], "key": _SPLIT, "value": last, "updated_at": tx.now})
    return False


def _partitions(tx: Tx, row: sa.RowMapping, after: str | None) -> Sequence[sa.RowMapping]:
    table = schema.partitions
    query = sa.select(table.c.partition_key, table.c.start, table.c.end).where(
        table.c.dataset_id == row["dataset_id"], table.c.generation_id == row["generation_id"]
    )
    if after is not None:
        query = query.where(table.c.partition_key > after)
    return tx.all(query.order_by(table.c.partition_key).limit(SPLIT_MAX))


def _touches(row: sa.RowMapping, partition: sa.RowMapping) -> bool:
    """Half-open ranges: those that only share an end do not touch. A partition without a range is in every range."""
    if row["start"] is None or partition["start"] is None:
        return True
    return partition["start"] < row["end"] and row["start"] < partition["end"]
