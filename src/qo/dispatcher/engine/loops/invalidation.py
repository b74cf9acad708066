"""The invalidation loop spreads invalidations: each direct reader of outdated data gets a task to read it again.

A reader that has not read the old state gets none, because its next task reads the new one. The output that the others
replace is invalidated in turn. This ends, because no job reads its own results.

If a partition was removed, the output that its readers made from it is removed (``removals``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.dag import Strategy
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.states import InvalidationReason
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher.commits import composed_parts, removals
from qo.dispatcher.effects import external_effects
from qo.dispatcher.engine import composites
from qo.dispatcher.events import event_log, invalidations
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import change_tasks, creation, dedupe_keys
from qo.dispatcher.tasks.creation import NewTask

SPLIT_MAX = 500  # Partitions of one range in one step.

_rows, _readers = schema.invalidations, schema.invalidation_readers
# Tasks whose reads count. A task that waits for another attempt will read anew, unless the last attempt may still
# finish late; a failed task has written nothing.
_READ_COUNTS = sa.or_(
    schema.tasks.c.status.in_([Status.RUNNING, Status.COMPLETED]), schema.tasks.c.late_lease_id.is_not(None)
)
# Built once. The index covers exactly this condition: an invalidation may stay open long after it was spread.
_OPEN = (
    sa.select(_rows).where(_rows.c.spread_at.is_(None)).order_by(_rows.c.created_at).limit(sa.bindparam("most"))
)
_SPLIT = "split"  # The key in ``operator_state`` of how far a range has been split.


def tick(state: State, limit: int = 100) -> int:
    """Spread up to ``limit`` invalidations to their readers, and stop waiting for readers that are no longer live.
    Return how many were handled."""
    with state.read() as tx:
        if tx.execute(_OPEN, {"most": 1}).first() is None and not invalidations.forsaken(tx, topology.load(tx)):
            return 0
    with state.write() as tx:
        live = topology.load(tx)
        open_rows = tx.execute(tx.lock(_OPEN, skip=True), {"most": limit}).mappings().all()
        for row in open_rows:
            _spread(tx, live, row)
        return len(open_rows) + _close_forsaken(tx, live, limit)


def _close_forsaken(tx: Tx, live: Topology, limit: int) -> int:
    """Close up to ``limit`` invalidations that wait for editions without a live version."""
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
        return  # There are more partitions: the next step continues.
    # A job that reads by cursor is affected by ranges only, not by single partitions.
    by_change = [job for job in jobs if job.job.execution_strategy is Strategy.PER_CHANGE]
    affected = by_partition if by_key else [job for job in jobs if job not in (*by_partition, *by_change)]
    composed = [job for job in affected if job.is_composite]
    affected = [job for job in affected if not job.is_composite]
    orphaned = [job for job in affected if removals.is_orphaned(tx, live, job, row)] if by_key else []
    reading = [job for job in affected if job not in orphaned]
    tasks = {job.edition_id: new for job in reading if (new := _task(tx, row, job)) is not None}
    creation.create(tx, [*tasks.values(), *(_change_task(tx, row, job) for job in by_change)])
    for job in sorted(orphaned, key=lambda each: each.edition_id):
        removals.withdraw(tx, job, row)
    readers = [
        {
            "invalidation_id": row["id"],
            "edition_id": job.edition_id,
            "task_id": tasks[job.edition_id].task_id if job.edition_id in tasks else None,
            "processed_at": None if job.edition_id in tasks else tx.now,
        }
        for job in affected
    ]
    readers += [
        _follow_composite(tx, live, row, job) for job in sorted(composed, key=lambda each: each.edition_id)
    ]
    if readers:
        tx.insert_absent(_readers, readers, returning=_readers.c.edition_id)
    tx.execute(sa.update(_rows).where(_rows.c.id == row["id"]).values(spread_at=tx.now))
    invalidations.close(tx, row["id"])


def _follow_composite(tx: Tx, live: Topology, row: sa.RowMapping, job: LiveJob) -> dict[str, Any]:
    """Have the partitions made again that were made of this one, among others. Return the row of the reader.

    What they have read says whether they are made again, so the reader is done, unless somebody asked for it.
    """
    composites.lock(tx, [job])
    on_request = row["reason"] not in (InvalidationReason.REPLACED, InvalidationReason.REMOVED)
    keys = composites.concerned_keys(job, live, row["dataset_id"], row["generation_id"], row["partition_key"])
    if row["reason"] == InvalidationReason.REMOVED:
        bereft = {key for key in keys if composed_parts.is_bereft(tx, live, job, key)}
        for key in sorted(bereft):
            removals.withdraw(tx, job, row, key)
        keys = [key for key in keys if key not in bereft]
    settled = composites.Settled()
    followed = (
        composites.follow(tx, live, job, keys, settled, again=row["id"] if on_request else None) if keys else {}
    )
    event_log.settle(tx, settled.tasks)
    new = [one.task_id for one in followed.values() if one.new]
    return {
        "invalidation_id": row["id"],
        "edition_id": job.edition_id,
        "task_id": new[0] if new else None,
        "processed_at": None if on_request and new else tx.now,
    }


def _direct_readers(live: Topology, row: sa.RowMapping) -> list[LiveJob]:
    """Return the jobs that new data in the generation would trigger, each once."""
    readers = {each.job.edition_id: each.job for each in live.consumers(row["dataset_id"], row["generation_id"])}
    return list(readers.values())


def _task(tx: Tx, row: sa.RowMapping, job: LiveJob) -> NewTask | None:
    """Return the task that reads again, or None if the reader has not read the old state."""
    upto, start, end = None, row["start"], row["end"]
    if row["partition_key"] is None:
        read = _read_range(tx, row, job)
        if read is None:
            return None
        start, end, upto = read[0], read[1] + 1, read[1]
    elif not (_has_read(tx, row, job) or _has_given_up(tx, row, job) or _acted_on_other_generation(tx, row, job)):
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
        attributes=_attributes(tx, row),
        invalidation_id=row["id"],
    )


def _change_task(tx: Tx, row: sa.RowMapping, job: LiveJob) -> NewTask:
    """Return the task by which a PerChange job takes note: it finds what was replaced or removed by itself. What is
    declared invalid without being replaced makes it read everything again."""
    new = change_tasks.task_for(tx, job, row["dataset_id"], row["generation_id"])
    if row["revision"] is not None:
        return new
    change_tasks.forget(tx, job.edition_id, row["dataset_id"])
    is_waiting = (
        tx.value(sa.select(schema.tasks.c.status).where(schema.tasks.c.id == new.task_id)) == Status.PENDING
    )
    return new if is_waiting else replace(new, dedupe_key=dedupe_keys.for_invalidation(row["id"]))


def _attributes(tx: Tx, row: sa.RowMapping) -> dict[str, Any] | None:
    key = row["partition_key"]
    return None if key is None else event_log.attributes(tx, row["generation_id"], [key]).get(key)


def _range_of(tx: Tx, row: sa.RowMapping) -> tuple[int | None, int | None]:
    table = schema.partitions
    partition = tx.one(
        sa.select(table.c.start, table.c.end).where(
            table.c.dataset_id == row["dataset_id"],
            table.c.generation_id == row["generation_id"],
            table.c.partition_key == row["partition_key"],
        )
    )
    return (None, None) if partition is None else (partition["start"], partition["end"])


def _has_read(tx: Tx, row: sa.RowMapping, job: LiveJob) -> bool:
    """Tell whether the latest state of the partition that the job has read is an older one."""
    inputs, tasks = schema.task_inputs, schema.tasks
    latest = tx.value(
        sa.select(sa.func.max(inputs.c.revision))
        .join(tasks, tasks.c.id == inputs.c.task_id)
        .where(
            inputs.c.generation_id == row["generation_id"],
            inputs.c.partition_key == row["partition_key"],
            tasks.c.edition_id == job.edition_id,
            _READ_COUNTS,
        )
    )
    return latest is not None and (row["revision"] is None or latest < row["revision"])


def _has_given_up(tx: Tx, row: sa.RowMapping, job: LiveJob) -> bool:
    """Tell whether all tasks of the job for the partition have failed or were cancelled. The new state gets a new
    task."""
    tasks = schema.tasks
    about = sa.select(tasks.c.status).where(
        tasks.c.edition_id == job.edition_id,
        tasks.c.partition_key == row["partition_key"],
        tasks.c.generation_id == row["generation_id"],
    )
    states = set(tx.execute(about.distinct()).scalars())
    return row["revision"] is not None and bool(states) and states <= {Status.FAILED, Status.CANCELLED}


def _acted_on_other_generation(tx: Tx, row: sa.RowMapping, job: LiveJob) -> bool:
    """Tell whether a job with external effects has had them for this partition of another generation only.

    The active edition has taken over these effects, so it is notified as the other one would have been.
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
    """Return the first and last cursor of all ranges that a job has read and that touch the invalidated range.

    These are whole ranges as its tasks read them, because the output of each is replaced as a whole.
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
            _READ_COUNTS,
        )
    )
    if row["revision"] is not None:
        query = query.where(inputs.c.revision < row["revision"])
    if row["start"] is not None:
        query = query.where(inputs.c.cursor_upto >= row["start"], first < row["end"])
    begin, end = tx.execute(query).one()
    return None if end is None else (begin, end)


def _split(tx: Tx, row: sa.RowMapping) -> bool:
    """Split a range into one invalidation per partition, up to SPLIT_MAX at a time. Return whether that was all."""
    states = schema.operator_state
    own_state = sa.and_(states.c.edition_id == row["id"], states.c.key == _SPLIT)
    after = tx.value(sa.select(states.c.value).where(own_state))
    partitions = _partitions(tx, row, after)
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
        for each in partitions
        if _touches(row, each)
    ]
    if children:
        tx.insert_absent(_rows, children, returning=_rows.c.id)
    if len(partitions) < SPLIT_MAX:
        tx.execute(sa.delete(states).where(own_state))
        return True
    last = partitions[-1]["partition_key"]
    tx.upsert(states, {"edition_id": row["id"], "key": _SPLIT, "value": last, "updated_at": tx.now})
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
    """Tell whether a partition is within a range. Ranges are half-open; a partition without a range is in all."""
    if row["start"] is None or partition["start"] is None:
        return True
    return partition["start"] < row["end"] and row["start"] < partition["end"]
