"""Segments that an always-on source commits while it runs, since it has no end to commit them with.

A segment is known by its cursor. Committing it again, because the answer was lost or by another attempt, changes
nothing. Cursors only grow, because readers may have passed them.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from qo.api.contract.task import CommitAnswer, CommitRequest, LastSegment
from qo.core.pipeline.dag import Job, SourceKind, UpdateStrategy
from qo.dispatcher.attempts.running import held, paused
from qo.dispatcher.commits.commits import Entry
from qo.dispatcher.commits.commits import commit as commit_all
from qo.dispatcher.commits.outputs import Write, definition_of, outputs_of, required_code, validate_outputs
from qo.dispatcher.events import event_log
from qo.dispatcher.state import commit_locks, schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import rows
from qo.errors import Cancelled, LeaseLost, NotFound, Refused, UsageError

_commits, _generations = schema.commits, schema.generations


def commit(tx: Tx, request: CommitRequest, data_root: str | None = None) -> CommitAnswer:
    """Commit segments with their events; all or none.

    Raises LeaseLost for an attempt that is not the current one, Cancelled for one that was asked to stop, and Refused
    for rows that were compared with an earlier state: compare them again. Raises UsageError for invalid outputs, and
    for cursors behind the last announced one.
    """
    live = topology.load(tx)
    row = held(tx, request)
    if row["cancel_requested"]:
        raise Cancelled(f"task {request.task_id} was asked to stop: it commits nothing any more")
    required = required_code(tx, live, row)
    if required is not None and request.code != required:
        raise LeaseLost(
            f"task {request.task_id} belongs to the code {required}, and this attempt runs {request.code}"
        )
    job = definition_of(tx, live, row)
    outputs = outputs_of(tx, live, row)
    writes = validate_outputs(row, request.attempt, request.outputs, outputs, data_root)
    _check(job, writes)
    commit_locks.acquire(tx, alone={each.generation_id for each in outputs})
    new = [each for each in writes if not _is_there(tx, each)]
    for each in new:
        _check_order(tx, each)
    append = job.update_strategy is UpdateStrategy.APPEND
    commit_all(tx, [Entry(row, request.attempt, each, append=append, drift=job.drift) for each in new])
    # Named after the task, not the attempt: a segment is announced once.
    name = f"{request.task_id}:segments"
    event_log.accept(tx, name, [each.event for each in new], request.task_id, request.attempt)
    return CommitAnswer(committed=len(new), repeated=len(writes) - len(new), paused=paused(tx, live, row))


def last(tx: Tx, task_id: str, output: int) -> LastSegment:
    """Return the furthest segment of an output. Raises NotFound for an output that the job does not have."""
    row = rows.load(tx, task_id, lock=False)
    matches = [each for each in outputs_of(tx, topology.load(tx), row) if each.index == output]
    if not matches:
        raise NotFound(f"the job has no output {output}, counted from 0")
    query = (
        sa.select(_commits.c.cursor, _commits.c.attempt, _commits.c.location)
        .where(_commits.c.generation_id == matches[0].generation_id, _commits.c.cursor.is_not(None))
        .order_by(_commits.c.cursor.desc())
        .limit(1)
    )
    segment = tx.one(query)
    return LastSegment() if segment is None else LastSegment.model_validate(dict(segment))


def _check(job: Job, writes: Sequence[Write]) -> None:
    if job.source is None or job.source.kind is not SourceKind.ALWAYS_ON:
        raise UsageError(
            f"{job.name} has an end, and commits with it: only an always_on source commits while it runs"
        )
    for each in writes:
        if each.event.cursor is None:
            raise UsageError(
                f"output {each.body.output} needs a cursor: what is committed on the way has its number"
            )


def _is_there(tx: Tx, write: Write) -> bool:
    same = sa.and_(_commits.c.generation_id == write.event.generation_id, _commits.c.cursor == write.event.cursor)
    return tx.one(sa.select(_commits.c.revision).where(same).limit(1)) is not None


def _check_order(tx: Tx, write: Write) -> None:
    event, based_on = write.event, write.body.based_on
    generation = tx.one(
        sa.select(_generations.c.cursor, _generations.c.revision).where(_generations.c.id == event.generation_id)
    )
    furthest, revision = (None, 0) if generation is None else (generation["cursor"], generation["revision"] or 0)
    if furthest is not None and (event.cursor or 0) <= furthest:
        raise UsageError(
            f"cursor {event.cursor} of output {write.body.output} lies behind {furthest}, which was announced: "
            "cursors only grow, because what reads them has gone on"
        )
    if based_on is not None and based_on != revision:
        raise Refused("others have appended since these rows were compared: read them again")
