"""Commits: from one moment to the next, files that an attempt wrote become part of a dataset.

Nothing is moved or rewritten. A partition points to the prefix of the attempt that made it; what it pointed to before
stays in ``commits``, marked as replaced, for those that are still reading it.

Who commits to a generation holds its row until the end of the transaction, so revisions of one generation become
visible in order: whoever has seen one has seen all before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from qo.core.flow.event import Event
from qo.dispatcher import invalidations
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks.made import Made, Write
from qo.dispatcher.tasks.rows import Row

_commits, _partitions, _generations = schema.commits, schema.partitions, schema.generations


def hold(tx: Tx, made: Sequence[Made]) -> None:
    """Let nobody else commit to these generations until the transaction ends."""
    ids = [each.generation_id for each in made]
    tx.all(tx.lock(sa.select(_generations.c.id).where(_generations.c.id.in_(ids)).order_by(_generations.c.id)))


def commit(tx: Tx, row: Row, attempt: int, writes: Sequence[Write], *, append: bool) -> list[Event]:
    """Make them part of their generations, which are held; the events that announce them.

    Replacing a partition invalidates it. An output is left out if what it would replace was made from later inputs:
    this task is then the slower one of two.
    """
    announced: list[Event] = []
    for write in writes:
        if write.event.partition_key is None:
            _segment(tx, row, attempt, write)
        elif not _partition(tx, row, attempt, write, append=append):
            continue
        announced.append(write.event)
    return announced


def _segment(tx: Tx, row: Row, attempt: int, write: Write) -> None:
    event, body = write.event, write.body
    gone = _standing_segments(tx, row, event)
    revision = _insert(tx, row, attempt, write)
    _replace(tx, gone, revision)
    _add(
        tx,
        event.generation_id,
        segments=1 - len(gone),
        rows=(body.rows or 0) - sum(each["rows"] or 0 for each in gone),
        bytes=(body.bytes or 0) - sum(each["bytes"] or 0 for each in gone),
    )
    if gone:
        cursors = [each["cursor"] for each in gone]
        invalidations.replaced_range(
            tx, event, min(cursors), max(cursors) + 1, revision=revision, source_task_id=row["id"]
        )


def _standing_segments(tx: Tx, row: Row, event: Event) -> Sequence[sa.RowMapping]:
    """What the same job had made of the range, if the task has read it once more because of an invalidation."""
    if row["invalidation_id"] is None or row["cursor"] is None:
        return []
    tasks, inputs = schema.tasks, schema.task_inputs
    return tx.all(
        sa.select(_commits)
        .join(tasks, tasks.c.id == _commits.c.task_id)
        .join(inputs, inputs.c.task_id == tasks.c.id)
        .where(
            _commits.c.generation_id == event.generation_id,
            _commits.c.cursor.is_not(None),
            _commits.c.replaced_by.is_(None),
            tasks.c.id != row["id"],
            inputs.c.generation_id == row["generation_id"],
            inputs.c.cursor_upto <= row["cursor"],
            sa.func.coalesce(inputs.c.cursor_after, -1) >= (row["start"] or 0) - 1,
        )
    )


def _replace(tx: Tx, gone: Sequence[sa.RowMapping], revision: int) -> None:
    for each in gone:
        tx.execute(sa.update(_commits).where(_commits.c.revision == each["revision"]).values(replaced_by=revision))


def _partition(tx: Tx, row: Row, attempt: int, write: Write, *, append: bool) -> bool:
    event, body = write.event, write.body
    before = _current(tx, event)
    gone = _standing(tx, row, write, append=append)
    if _outdated(tx, row["id"], {each["task_id"] for each in gone}):
        return False
    revision = _insert(tx, row, attempt, write)
    _replace(tx, gone, revision)
    rows = (body.rows or 0) - sum(each["rows"] or 0 for each in gone)
    size = (body.bytes or 0) - sum(each["bytes"] or 0 for each in gone)
    stored = {
        "dataset_id": event.dataset_id,
        "generation_id": event.generation_id,
        "partition_key": event.partition_key,
        "start": event.start,
        "end": event.end,
        "revision": revision,
        "location": body.location,
        "files": body.files or None,
        "rows": rows if before is None else rows + (before["rows"] or 0),
        "bytes": size if before is None else size + (before["bytes"] or 0),
        "schema_hash": body.schema_hash,
        "task_id": row["id"],
        "committed_at": tx.now,
    }
    tx.upsert(_partitions, stored)
    _add(tx, event.generation_id, partitions=0 if before is not None else 1, rows=rows, bytes=size)
    if before is not None:
        invalidations.replaced(tx, event, revision=revision, source_task_id=row["id"])
    return True


def _current(tx: Tx, event: Event) -> sa.RowMapping | None:
    return tx.one(
        sa.select(_partitions).where(
            _partitions.c.dataset_id == event.dataset_id,
            _partitions.c.generation_id == event.generation_id,
            _partitions.c.partition_key == event.partition_key,
        )
    )


def _insert(tx: Tx, row: Row, attempt: int, write: Write) -> int:
    event, body = write.event, write.body
    values = {
        "dataset_id": event.dataset_id,
        "generation_id": event.generation_id,
        "partition_key": event.partition_key,
        "start": event.start,
        "end": event.end,
        "cursor": event.cursor,
        "location": body.location,
        "files": body.files or None,
        "rows": body.rows,
        "bytes": body.bytes,
        "schema_hash": body.schema_hash,
        "task_id": row["id"],
        "attempt": attempt,
        "committed_at": tx.now,
    }
    return tx.execute(sa.insert(_commits).values(values).returning(_commits.c.revision)).scalar_one()


def _standing(tx: Tx, row: Row, write: Write, *, append: bool) -> Sequence[sa.RowMapping]:
    """What the commit takes the place of. Appending, that is only what the same work had appended before."""
    standing = sa.select(_commits).where(
        _commits.c.generation_id == write.event.generation_id,
        _commits.c.partition_key == write.event.partition_key,
        _commits.c.replaced_by.is_(None),
    )
    if append:
        tasks = schema.tasks
        standing = standing.join(tasks, tasks.c.id == _commits.c.task_id).where(
            tasks.c.dataset_id == row["dataset_id"],
            tasks.c.generation_id == row["generation_id"],
            tasks.c.partition_key == row["partition_key"],
        )
    return tx.all(standing)


def _outdated(tx: Tx, task_id: str, others: set[str]) -> bool:
    """Whether one of the others has read a later state of something that both have read."""
    mine, theirs = schema.task_inputs.alias("mine"), schema.task_inputs.alias("theirs")
    same = sa.and_(
        theirs.c.position == mine.c.position,
        theirs.c.generation_id == mine.c.generation_id,
        # One may have read everything because the partition was not there yet.
        sa.or_(
            theirs.c.partition_key == mine.c.partition_key,
            theirs.c.partition_key == "",
            mine.c.partition_key == "",
        ),
    )
    later = (
        sa.select(mine.c.position)
        .join(theirs, same)
        .where(
            mine.c.task_id == task_id,
            theirs.c.task_id.in_(others - {task_id}),
            theirs.c.revision > sa.func.coalesce(mine.c.revision, 0),
        )
    )
    return bool(others) and tx.one(later.limit(1)) is not None


def _add(tx: Tx, generation_id: str, **sums: Any) -> None:
    changes = {name: _generations.c[name] + value for name, value in sums.items() if value}
    if changes:
        tx.execute(sa.update(_generations).where(_generations.c.id == generation_id).values(changes))
