"""Tasks of PerChange jobs, and how far these have read: one task waits at a time, for all that changes until it begins.

The position of such a job is a row of ``cursors``: the generation of its input that its output was made from, and the
revision of it. It moves in the transaction that commits the output.
"""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from qo.core.pipeline import change_range
from qo.core.pipeline.change_range import Version
from qo.core.pipeline.topology import LiveJob
from qo.core.task import Status
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import dedupe_keys
from qo.dispatcher.tasks.creation import NewTask

_cursors, _tasks, _generations = schema.cursors, schema.tasks, schema.generations


def position(tx: Tx, edition_id: str, dataset_id: str) -> Version | None:
    """Return the version of an input that the output of a job was made from; None: it has read nothing."""
    query = sa.select(_cursors.c.generation_id, _cursors.c.value).where(
        _cursors.c.edition_id == edition_id, _cursors.c.dataset_id == dataset_id
    )
    row = tx.one(query)
    return None if row is None else Version(row["generation_id"], row["value"])


def move(tx: Tx, edition_id: str, dataset_id: str, to: Version) -> None:
    forget(tx, edition_id, dataset_id)
    stored = {
        "edition_id": edition_id,
        "generation_id": to.generation_id,
        "dataset_id": dataset_id,
        "value": to.revision,
        "updated_at": tx.now,
    }
    tx.insert(_cursors, [stored])


def forget(tx: Tx, edition_id: str, dataset_id: str) -> None:
    """Have a job read everything again: its next task begins at the beginning, and one that runs does not commit."""
    own = sa.and_(_cursors.c.edition_id == edition_id, _cursors.c.dataset_id == dataset_id)
    tx.execute(sa.delete(_cursors).where(own))


def is_due(tx: Tx, job: LiveJob, dataset_id: str, generation_id: str) -> bool:
    """Return whether a job has not read all of a generation."""
    read = position(tx, job.edition_id, dataset_id)
    return change_range.is_due(job.job.config, read, generation_id, _head(tx, generation_id))


def missing_task(tx: Tx, job: LiveJob, dataset_id: str, generation_id: str) -> NewTask | None:
    """Return the task for what a job has not read; None if it has an open one, or one that failed on that."""
    if not is_due(tx, job, dataset_id, generation_id) or _has_open(tx, job):
        return None
    new = _new_task(tx, job, dataset_id, generation_id)
    return None if tx.one(sa.select(_tasks.c.id).where(_tasks.c.id == new.task_id)) is not None else new


def _has_open(tx: Tx, job: LiveJob) -> bool:
    return scans.has_withheld(tx, job.edition_id) or scans.has_in_flight(tx, job.logical_id, job.edition_id)


def task_for(
    tx: Tx, job: LiveJob, dataset_id: str, generation_id: str, *, event_seq: int | None = None
) -> NewTask:
    """Return the task that reads what has changed: the one that waits already, or another."""
    # One that is locked is being claimed, and may have decided already what it reads.
    waiting = sa.select(_tasks.c.dedupe_key).where(
        _tasks.c.edition_id == job.edition_id, _tasks.c.status == Status.PENDING
    )
    key = tx.value(tx.lock(waiting.order_by(_tasks.c.created_at).limit(1), skip=True))
    new = _new_task(tx, job, dataset_id, generation_id)
    return replace(new, dedupe_key=key or new.dedupe_key, event_seq=event_seq)


def _new_task(tx: Tx, job: LiveJob, dataset_id: str, generation_id: str) -> NewTask:
    head, output_head = _head(tx, generation_id) or 0, _head(tx, job.outputs[0].generation_id) or 0
    return NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_change(generation_id, head, output_head),
        dataset_id=dataset_id,
        generation_id=generation_id,
        cursor=head,
    )


def _head(tx: Tx, generation_id: str) -> int | None:
    return tx.value(sa.select(_generations.c.revision).where(_generations.c.id == generation_id))
