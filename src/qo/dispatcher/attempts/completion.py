"""The end of an attempt. Its outputs, cursors, lineage and events become visible together, or not at all.

Only the current attempt can end, and one more: an attempt whose lease ran out may still succeed until the next one
begins. A repeated request gets the same answer again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import sqlalchemy as sa

from qo.api.contract.task import CompleteAnswer, CompleteRequest, Outcome
from qo.core import lifecycle
from qo.core.lifecycle import Rejected
from qo.core.pipeline import late_completion
from qo.core.pipeline.change_range import Turn
from qo.core.pipeline.dag import Job, UpdateStrategy
from qo.core.pipeline.event import Event, event_id
from qo.core.pipeline.states import AttemptOutcome
from qo.core.pipeline.topology import Topology
from qo.core.task import Status, Task
from qo.dispatcher.attempts import changes_read
from qo.dispatcher.attempts.changes_read import ChangesRead
from qo.dispatcher.attempts.running import own_events, producer
from qo.dispatcher.commits import quality
from qo.dispatcher.commits.commits import Entry, commit, concerns_all
from qo.dispatcher.commits.outputs import Output, Write, definition_of, outputs_of, required_code, validate_outputs
from qo.dispatcher.events import event_log
from qo.dispatcher.events.event_log import ProducedEvent
from qo.dispatcher.state import commit_locks, schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks.rows import Move, Row, load_all, move_all, require_row, task_of
from qo.errors import LeaseLost

OTHER_CODE_S = 30.0  # Until a task whose worker ran other code is tried again.

_attempts, _cursors, _inputs = schema.attempts, schema.cursors, schema.task_inputs

# Tasks that invalidations created. The caller filters by status: SQLite would use another index for it.
_AGAIN = sa.select(schema.tasks.c.id, schema.tasks.c.status).where(
    schema.tasks.c.edition_id == sa.bindparam("edition"),
    schema.tasks.c.invalidation_id.is_not(None),
    schema.tasks.c.cursor >= sa.bindparam("upto"),
)

# How an attempt may have ended that reported this outcome before.
_ENDED_AS = {
    Outcome.SUCCESS: {AttemptOutcome.COMPLETED, AttemptOutcome.CANCELLED, AttemptOutcome.RELEASED},
    Outcome.RETRYABLE: {AttemptOutcome.RETRIED, AttemptOutcome.FAILED, AttemptOutcome.CANCELLED},
    Outcome.FATAL: {AttemptOutcome.FAILED, AttemptOutcome.CANCELLED},
    Outcome.CANCELLED: {AttemptOutcome.CANCELLED},
    Outcome.RELEASED: {AttemptOutcome.RELEASED, AttemptOutcome.RESCHEDULED, AttemptOutcome.CANCELLED},
}


class _Read(Enum):
    """How the range of cursors that an attempt has read overlaps with what its job has read by now."""

    NEW = auto()
    REPEATED = auto()  # Others have read all of it, before or meanwhile.
    MIXED = auto()  # Others have read some of it.


@dataclass(frozen=True, slots=True)
class Ending:
    request: CompleteRequest
    trusted: Sequence[
        Write
    ] = ()  # Outputs of a run of our own, which may point to files that others have written.


@dataclass(frozen=True, slots=True)
class _Success:
    """What becomes visible with the end of an attempt."""

    outputs: Sequence[Output]
    writes: Sequence[Write]
    events: Sequence[Event]
    job: Job
    ranges: Sequence[sa.RowMapping] = ()  # Of cursors, that count as read from now on.
    changes: ChangesRead | None = None  # That count as read from now on.


@dataclass(frozen=True, slots=True)
class _End:
    """A validated request, and the command that follows from it."""

    request: CompleteRequest
    row: Row
    command: lifecycle.Command
    as_if: Task | None = None
    success: _Success | None = None
    verdict: quality.Verdict | None = None  # On its data, stored if the end counts.


def complete(tx: Tx, request: CompleteRequest, data_root: str | None = None) -> CompleteAnswer:
    """End an attempt. Its outputs are committed only after a success, and never once cancellation was requested.

    Raises LeaseLost for an attempt that is not the current one, UsageError for invalid outputs or events (the attempt
    stays open: fail it), Forbidden for events of other jobs' datasets, NotFound.
    """
    return complete_all(tx, [Ending(request)], data_root)[0]


def complete_all(tx: Tx, endings: Sequence[Ending], data_root: str | None = None) -> list[CompleteAnswer]:
    """As ``complete``, for independent attempts of several tasks. All or none."""
    live = topology.load(tx)  # Its lock comes first, as everywhere.
    rows = load_all(tx, [each.request.task_id for each in endings])
    requested = [
        _validate_ending(tx, live, require_row(rows, each.request.task_id), each, data_root) for each in endings
    ]
    _lock_generations(tx, [each for each in requested if each is not None])
    ends = {each.row["id"]: _resolve_cursor_overlap(tx, each) for each in requested if each is not None}
    moved = dict(zip(ends, move_all(tx, [_move(each) for each in ends.values()]), strict=True))
    answers: list[CompleteAnswer] = []
    for each in endings:
        now = moved.get(each.request.task_id)
        if isinstance(now, Rejected):
            raise LeaseLost(now.detail)
        answers.append(_answer(rows[each.request.task_id], repeated=True) if now is None else _answer(now.row))
    _commit_outputs(tx, list(ends.values()))
    return answers


def _lock_generations(tx: Tx, ends: Sequence[_End]) -> None:
    """Lock what is committed to: partitions side by side, anything else alone."""
    alone: set[str] = set()
    shared: set[str] = set()
    for end in ends:
        if end.success is not None:
            # A range of cursors that others read, too, is compared with what all of them have committed.
            whole = end.row["cursor"] is not None or any(map(concerns_all, end.success.writes))
            (alone if whole else shared).update(each.generation_id for each in end.success.outputs)
    commit_locks.acquire(tx, alone=alone, shared=shared)


def _move(end: _End) -> Move:
    request = end.request
    return Move(end.row, end.command, end.as_if, request.code, request.packages, request.data_access)


def _validate_ending(tx: Tx, live: Topology, row: Row, ending: Ending, data_root: str | None) -> _End | None:
    """Return what follows from a request; None if it was applied before. Raises as ``complete``."""
    request, as_if = ending.request, None
    if row["status"] != Status.RUNNING or (row["attempt"], row["lease_id"]) != (request.attempt, request.lease_id):
        if _was_ended_before(tx, request):
            return None
        as_if = _late(row, request)
    wrong = _wrong_code(tx, live, row, request)
    if wrong is not None:
        return _End(request, row, wrong, as_if)
    verdict = quality.validate_checks(tx, live, row, request, data_root)
    if request.outcome is not Outcome.SUCCESS:
        return _End(request, row, _command(tx, request), verdict=verdict)
    outputs = outputs_of(tx, live, row)
    writes = [*validate_outputs(row, request.attempt, request.outputs, outputs, data_root), *ending.trusted]
    events = own_events(request.events, outputs)
    command = lifecycle.Complete(
        token=tx.ambient.token(), lease_id=request.lease_id, output=request.result, progress=request.progress
    )
    success = None if row["cancel_requested"] else _Success(outputs, writes, events, definition_of(tx, live, row))
    return _End(request, row, command, as_if, success, None if success is None else verdict)


def _wrong_code(tx: Tx, live: Topology, row: Row, request: CompleteRequest) -> lifecycle.Release | None:
    """Return the release of an attempt that succeeded with other code than its edition's, else None.

    The task waits for another attempt, which costs no retry, and the outputs of this one are never read.
    """
    required = required_code(tx, live, row)
    if request.outcome is not Outcome.SUCCESS or required is None or request.code == required:
        return None
    ran = "no code of a version" if request.code is None else f"the code {request.code}"
    return lifecycle.Release(
        token=tx.ambient.token(),
        lease_id=request.lease_id,
        delay_s=OTHER_CODE_S,
        error=f"its worker ran {ran}, and the task belongs to {required}: restart workers of an older qo",
    )


def _was_ended_before(tx: Tx, request: CompleteRequest) -> bool:
    attempt = tx.one(
        sa.select(_attempts).where(_attempts.c.task_id == request.task_id, _attempts.c.attempt == request.attempt)
    )
    if attempt is None or attempt["lease_id"] != request.lease_id:
        raise LeaseLost(f"attempt {request.attempt} of task {request.task_id} never held this lease")
    if attempt["outcome"] in (None, "timed_out"):
        return False
    if attempt["outcome"] in _ENDED_AS[request.outcome]:
        return True
    raise LeaseLost(
        f"attempt {request.attempt} of task {request.task_id} has ended already: it was {attempt['outcome']}"
    )


def _late(row: Row, request: CompleteRequest) -> Task:
    """Return the task as the late attempt left it. Raises LeaseLost for an attempt that may not end late."""
    as_if = None
    if request.outcome is Outcome.SUCCESS:
        as_if = late_completion.reopen(task_of(row), row["late_lease_id"], request.lease_id, request.attempt)
    if as_if is None:
        raise LeaseLost(
            f"attempt {request.attempt} of task {request.task_id} was given up: the task is {row['status']}, "
            f"attempt {row['attempt']}"
        )
    return as_if


def _resolve_cursor_overlap(tx: Tx, end: _End) -> _End:
    """Compare what the attempt read with what others have read of the same cursors meanwhile, and adapt its end.

    The generations that it commits to are locked.
    """
    success = end.success
    if success is None:
        return end
    if (changes := changes_read.load(tx, end.row, success.job)) is not None:
        return _resolve_change_overlap(end, success, changes)
    ranges = _ranges(tx, end.row)
    read = _Read.MIXED if _moved_on(tx, success.writes) else _read(tx, end.row, ranges)
    match read:
        case _Read.MIXED if success.writes:
            return _run_again(end)  # Its output has some rows twice.
        case _Read.REPEATED:
            # Another attempt has read the whole range, and committed it.
            return replace(end, success=replace(success, writes=(), ranges=ranges))
        case _:
            return replace(end, success=replace(success, ranges=ranges))


def _run_again(end: _End) -> _End:
    """Return the end of an attempt that commits nothing: the task runs again on what is left, which costs no retry."""
    release = lifecycle.Release(token=end.command.token, lease_id=end.request.lease_id)
    return replace(end, command=release, success=None, verdict=None)


def _resolve_change_overlap(end: _End, success: _Success, changes: ChangesRead) -> _End:
    """Compare the version of its input that the attempt began at with what its job has read by now."""
    match changes.turn:
        case Turn.NEXT:
            return replace(end, success=replace(success, changes=changes))
        case Turn.READ:
            return replace(end, success=replace(success, writes=()))
        case Turn.MOVED:
            return _run_again(end)


def _moved_on(tx: Tx, writes: Sequence[Write]) -> bool:
    """Whether others have appended since the rows were compared: some may be there twice."""
    table = schema.generations
    return any(
        (tx.value(sa.select(table.c.revision).where(table.c.id == each.event.generation_id)) or 0)
        != each.body.based_on
        for each in writes
        if each.body.based_on is not None
    )


def _commit_outputs(tx: Tx, ends: Sequence[_End]) -> None:
    """Commit outputs, store verdicts, advance cursors and announce events of these ends."""
    successes = [(each, each.success) for each in ends if each.success is not None]
    entries = commit(
        tx,
        [
            Entry(
                end.row,
                end.request.attempt,
                write,
                append=success.job.update_strategy is UpdateStrategy.APPEND,
                drift=success.job.drift,
            )
            for end, success in successes
            for write in success.writes
        ],
    )
    committed: dict[str, list[Write]] = {}
    for each in entries:
        committed.setdefault(each.row["id"], []).append(each.write)
    quality.keep(tx, [each.verdict for each in ends if each.verdict is not None], committed)
    for end, success in successes:
        _advance(tx, end.row, success.ranges)
        if success.changes is not None:
            success.changes.move_position(tx)
    _announce(tx, successes, {id_: [each.event for each in writes] for id_, writes in committed.items()})


def _command(tx: Tx, request: CompleteRequest) -> lifecycle.Command:
    token, lease_id = tx.ambient.token(), request.lease_id
    if request.outcome is Outcome.RELEASED and request.retry_after_s is not None:
        delay_s, reason = request.retry_after_s, request.error
        return lifecycle.Reschedule(token=token, lease_id=lease_id, delay_s=delay_s, reason=reason)
    if request.outcome is Outcome.RELEASED:
        return lifecycle.Release(token=token, lease_id=lease_id, error=request.error)
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


def _answer(row: Row, *, repeated: bool = False) -> CompleteAnswer:
    waiting = row["status"] == Status.PENDING
    return CompleteAnswer(
        status=row["status"], repeated=repeated, retry_at=row["available_at"] if waiting else None
    )


def _ranges(tx: Tx, row: Row) -> Sequence[sa.RowMapping]:
    """Return the ranges of cursors that the attempt has read and that count as read by its job."""
    if row["cursor"] is None or row["invalidation_id"] is not None:
        return []  # It follows no cursor, or reads a range again, which advances nothing.
    return tx.all(sa.select(_inputs).where(_inputs.c.task_id == row["id"], _inputs.c.cursor_upto.is_not(None)))


def _read(tx: Tx, row: Row, ranges: Sequence[sa.RowMapping]) -> _Read:
    read = _Read.NEW
    for each in ranges:
        value = tx.value(
            sa.select(_cursors.c.value).where(
                _cursors.c.edition_id == row["edition_id"], _cursors.c.generation_id == each["generation_id"]
            )
        )
        after = -1 if each["cursor_after"] is None else each["cursor_after"]
        if value is not None and after < value < each["cursor_upto"]:
            return _Read.MIXED
        is_read = max(after, -1 if value is None else value) >= each["cursor_upto"]
        if is_read or _made_again(tx, row, each, after):
            read = _Read.REPEATED
    return read


def _made_again(tx: Tx, row: Row, mine: sa.RowMapping, after: int) -> bool:
    """Whether a task of an invalidation has read the range again, in a later state, and ended first."""
    # The index has only tasks of invalidations, and of these the query needs those that reach so far: mostly none.
    rereads = tx.execute(_AGAIN, {"edition": row["edition_id"], "upto": mine["cursor_upto"]})
    ended = [id_ for id_, status in rereads if status == Status.COMPLETED]
    begins = sa.func.coalesce(_inputs.c.cursor_after, -1) <= after
    later = _inputs.c.revision > (mine["revision"] or 0)
    for some in batches(ended):
        # All of them reach far enough. The generation is compared last, so that SQLite uses the index of tasks.
        read = sa.select(_inputs.c.generation_id).where(_inputs.c.task_id.in_(some), begins, later)
        if mine["generation_id"] in tx.execute(read.where(_inputs.c.cursor_upto.is_not(None))).scalars().all():
            return True
    return False


def _advance(tx: Tx, row: Row, ranges: Sequence[sa.RowMapping]) -> None:
    """Advance the cursors of the job. They only grow: a slower task must not undo what a later one has read."""
    for each in ranges:
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


def _announce(
    tx: Tx, successes: Sequence[tuple[_End, _Success]], announced: Mapping[str, Sequence[Event]]
) -> None:
    """Store events for what was committed, and further events of the attempts that were not sent before."""
    known_ids = _known_events(
        tx, [event_id(producer(end.request), each) for end, success in successes for each in success.events]
    )
    produced: list[ProducedEvent] = []
    for end, success in successes:
        name, request = producer(end.request), end.request
        beside = {id_: each for each in success.events if (id_ := event_id(name, each)) not in known_ids}
        # Under another producer name: an event sent before the commit does not announce the commit.
        new = [*announced.get(request.task_id, ()), *beside.values()]
        produced += [ProducedEvent(f"{name}:end", each, request.task_id, request.attempt) for each in new]
    event_log.accept_all(tx, produced)


def _known_events(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Return which of the events are stored already."""
    table, known_ids = schema.events, set[str]()
    for some in batches(ids):
        known_ids.update(tx.execute(sa.select(table.c.id).where(table.c.id.in_(some))).scalars())
    return known_ids
