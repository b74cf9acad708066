"""The end of an attempt. Outputs, cursors, lineage and the next events all appear with it, or not at all.

Only the current attempt is heard, and one more: an attempt whose lease ran out may still succeed as long as the next
one has not begun. Whoever repeats what it has said already gets the same answer again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import sqlalchemy as sa

from qo.core import lifecycle
from qo.core.flow import late
from qo.core.flow.event import Event, event_id
from qo.core.lifecycle import Rejected
from qo.core.task import Status, Task
from qo.dispatcher import events, invalidations, topology
from qo.dispatcher.contract.task import CompleteAnswer, CompleteRequest, Outcome
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import commits, running
from qo.dispatcher.tasks.made import appends, outputs_of, validated
from qo.dispatcher.tasks.rows import Row, load, move, task_of
from qo.errors import LeaseLost

_attempts, _cursors, _inputs = schema.attempts, schema.cursors, schema.task_inputs

# How an attempt may have ended that had said this before.
_ENDED_AS = {
    Outcome.SUCCESS: {"completed", "cancelled", "released"},
    Outcome.RETRYABLE: {"retried", "failed", "cancelled"},
    Outcome.FATAL: {"failed", "cancelled"},
    Outcome.CANCELLED: {"cancelled"},
    Outcome.RELEASED: {"released", "cancelled"},
}


class _Read(Enum):
    """How the range of cursors that an attempt has read stands to what its job has read by now."""

    NEW = auto()
    KNOWN = auto()  # Others have read all of it, before or meanwhile.
    MIXED = auto()  # Others have read some of it.


def complete(
    tx: Tx, request: CompleteRequest, data_root: str | None = None, *, trusted: Sequence[commits.Write] = ()
) -> CompleteAnswer:
    """Settle an attempt. Outputs count for a success only, and never once cancellation was asked for.

    ``trusted``: outputs of a run of our own, which may point to files that others have written.
    Raises LeaseLost for an attempt that has no say any more, UsageError for outputs or events that are not valid
    (the attempt stays open: fail it), Forbidden for events of other jobs' datasets, NotFound.
    """
    topology.load(tx)  # First of all locks, as in everything that takes it.
    row = load(tx, request.task_id)
    if _said_before(tx, request):
        return _answer(row, repeated=True)
    as_if = _late(row, request)
    if request.outcome is Outcome.SUCCESS:
        return _succeed(tx, row, request, as_if, data_root, trusted)
    return _settle(tx, row, _command(tx, request), None)


def _said_before(tx: Tx, request: CompleteRequest) -> bool:
    found = tx.one(
        sa.select(_attempts).where(_attempts.c.task_id == request.task_id, _attempts.c.attempt == request.attempt)
    )
    if found is None or found["lease_id"] != request.lease_id:
        raise LeaseLost(f"attempt {request.attempt} of task {request.task_id} never held this lease")
    if found["outcome"] in (None, "timed_out"):
        return False
    if found["outcome"] in _ENDED_AS[request.outcome]:
        return True
    raise LeaseLost(
        f"attempt {request.attempt} of task {request.task_id} has ended already: it was {found['outcome']}"
    )


def _late(row: Row, request: CompleteRequest) -> Task | None:
    """None: the attempt is the current one. Raises LeaseLost if it is neither that nor allowed to be late."""
    fence = (request.attempt, request.lease_id)
    if row["status"] == Status.RUNNING and (row["attempt"], row["lease_id"]) == fence:
        return None
    as_if = None
    if request.outcome is Outcome.SUCCESS:
        as_if = late.reopened(task_of(row), row["late_lease_id"], request.lease_id, request.attempt)
    if as_if is None:
        raise LeaseLost(
            f"attempt {request.attempt} of task {request.task_id} was given up: the task is {row['status']}, "
            f"attempt {row['attempt']}"
        )
    return as_if


def _succeed(
    tx: Tx,
    row: Row,
    request: CompleteRequest,
    as_if: Task | None,
    data_root: str | None,
    trusted: Sequence[commits.Write],
) -> CompleteAnswer:
    made = outputs_of(tx, row)
    writes = [*validated(row, request.attempt, request.outputs, made, data_root), *trusted]
    said = running.own_events(request.events, made)
    done = lifecycle.Complete(
        token=tx.ambient.token(), lease_id=request.lease_id, output=request.result, progress=request.progress
    )
    if row["cancel_requested"]:
        return _settle(tx, row, done, as_if)
    commits.hold(tx, made)
    read = _read(tx, row)
    if read is _Read.MIXED and writes:
        # What it made holds some rows twice. It reads what is left, at no cost to it.
        return _settle(tx, row, lifecycle.Release(token=done.token, lease_id=done.lease_id), as_if)
    answer = _settle(tx, row, done, as_if)
    kept = writes if read is not _Read.KNOWN else []  # The one that has read it all has committed it all.
    announced = commits.commit(tx, row, request.attempt, kept, append=appends(tx, row))
    _advance(tx, row)
    _announce(tx, request, announced, said)
    invalidations.processed(tx, row)
    return answer


def _command(tx: Tx, request: CompleteRequest) -> lifecycle.Command:
    token, lease_id = tx.ambient.token(), request.lease_id
    if request.outcome is Outcome.RELEASED:
        return lifecycle.Release(token=token, lease_id=lease_id, delay_s=request.retry_after_s or 0.0)
    return lifecycle.Fail(
        token=token,
        lease_id=lease_id,
        error=request.error or f"the operator said {request.outcome.value}",
        traceback=request.traceback,
        unit=tx.ambient.unit(),
        permanent=request.outcome is Outcome.FATAL,
        delay_s=request.retry_after_s,
        cancelled=request.outcome is Outcome.CANCELLED,
    )


def _settle(tx: Tx, row: Row, command: lifecycle.Command, as_if: Task | None) -> CompleteAnswer:
    moved = move(tx, row, command, as_if=as_if)
    if isinstance(moved, Rejected):
        raise LeaseLost(moved.detail)
    return _answer(moved.row)


def _answer(row: Row, *, repeated: bool = False) -> CompleteAnswer:
    waiting = row["status"] == Status.PENDING
    return CompleteAnswer(
        status=row["status"], repeated=repeated, retry_at=row["available_at"] if waiting else None
    )


def _ranges(tx: Tx, row: Row) -> Sequence[sa.RowMapping]:
    """The ranges of cursors that the attempt has read and that count as read by its job."""
    if row["invalidation_id"] is not None:
        return []  # Once more what had been read before: that moves nothing on.
    return tx.all(sa.select(_inputs).where(_inputs.c.task_id == row["id"], _inputs.c.cursor_upto.is_not(None)))


def _read(tx: Tx, row: Row) -> _Read:
    read = _Read.NEW
    for each in _ranges(tx, row):
        value = tx.value(
            sa.select(_cursors.c.value).where(
                _cursors.c.edition_id == row["edition_id"], _cursors.c.generation_id == each["generation_id"]
            )
        )
        begun = -1 if each["cursor_after"] is None else each["cursor_after"]
        if value is not None and begun < value < each["cursor_upto"]:
            return _Read.MIXED
        known = max(begun, -1 if value is None else value) >= each["cursor_upto"]
        if known or _made_again(tx, row, each, begun):
            read = _Read.KNOWN
    return read


def _made_again(tx: Tx, row: Row, mine: sa.RowMapping, begun: int) -> bool:
    """Whether an invalidation had the range read once more, in a later state, and that was quicker."""
    tasks = schema.tasks
    again = (
        sa.select(tasks.c.id)
        .join(_inputs, _inputs.c.task_id == tasks.c.id)
        .where(
            _inputs.c.generation_id == mine["generation_id"],
            _inputs.c.partition_key == "",
            _inputs.c.cursor_upto >= mine["cursor_upto"],
            sa.func.coalesce(_inputs.c.cursor_after, -1) <= begun,
            _inputs.c.revision > sa.func.coalesce(sa.literal(mine["revision"]), 0),
            tasks.c.edition_id == row["edition_id"],
            tasks.c.invalidation_id.is_not(None),
            tasks.c.status == Status.COMPLETED,
        )
    )
    return tx.one(again.limit(1)) is not None


def _advance(tx: Tx, row: Row) -> None:
    """Cursors only ever grow: a slower task must not take back what a later one has read."""
    for each in _ranges(tx, row):
        stored = {
            "edition_id": row["edition_id"],
            "generation_id": each["generation_id"],
            "dataset_id": each["dataset_id"],
            "value": each["cursor_upto"],
            "updated_at": tx.now,
        }
        if tx.insert_absent(_cursors, [stored], returning=_cursors.c.edition_id):
            continue
        behind = sa.and_(
            _cursors.c.edition_id == row["edition_id"],
            _cursors.c.generation_id == each["generation_id"],
            _cursors.c.value < each["cursor_upto"],
        )
        tx.execute(sa.update(_cursors).where(behind).values(value=each["cursor_upto"], updated_at=tx.now))


def _announce(tx: Tx, request: CompleteRequest, announced: Sequence[Event], said: Sequence[Event]) -> None:
    """Events for what was committed, and those that the attempt wants beside and has not sent before."""
    if not announced and not said:
        return
    ids = {event_id(running.producer(request), each): each for each in said}
    table = schema.events
    known = set(tx.execute(sa.select(table.c.id).where(table.c.id.in_(ids))).scalars()) if ids else set[str]()
    fresh = [each for id_, each in ids.items() if id_ not in known]
    # Under a name of its own: what was said of a partition before it was committed does not announce the commit.
    events.accept(tx, f"{running.producer(request)}:end", [*announced, *fresh], request.task_id, request.attempt)
