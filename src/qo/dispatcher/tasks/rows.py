"""Rows of tasks: loaded, changed by the rules of ``core.lifecycle``, and written if they are unchanged since.

Many tasks are changed by as many statements as one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core import lifecycle
from qo.core.lifecycle import Rejected
from qo.core.pipeline.states import AttemptOutcome
from qo.core.task import RetryPolicy, Status, Task
from qo.dispatcher.events import invalidations
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.loop_names import LoopName
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import attempts, tasks
from qo.dispatcher.tasks.dedupe_keys import KeyKind
from qo.errors import Contended, NotFound

RETRY = RetryPolicy(initial_interval_ms=30_000, max_interval_ms=600_000, multiplier=2.0, jitter_percent=0.5)

Row = Mapping[str, Any]

# What the rules may change; each column has the name of its field.
_FIELDS = (
    "status",
    "token",
    "attempt",
    "available_at",
    "lease_id",
    "lease_expires_at",
    "settled_lease_id",
    "worker_id",
    "retry_count",
    "deliveries",
    "last_error",
    "traceback",
    "cancel_requested",
    "cancelled_by",
    "cancel_reason",
    "progress",
    "output",
    "updated_at",
    "completed_at",
)
_BESIDE = ("started_at", "late_lease_id", "released_at", "cancel_code")  # Other columns that a move may change.

# Building a statement takes longer than executing it, so these are built once.
_SOME = sa.select(tasks).where(tasks.c.id.in_(sa.bindparam("ids", expanding=True))).order_by(tasks.c.id)
_THESE, _THESE_LOCKED = Prepared(_SOME), Prepared(_SOME.with_for_update())
_UNMOVED = Prepared(
    sa.update(tasks).where(tasks.c.id == sa.bindparam("moved"), tasks.c.token == sa.bindparam("unmoved"))
)
_CLOSED = Prepared(
    sa.update(attempts).where(
        attempts.c.task_id == sa.bindparam("of_task"), attempts.c.attempt == sa.bindparam("number")
    )
)


@dataclass(frozen=True, slots=True)
class Move:
    row: Row  # Loaded in this transaction, and locked.
    command: lifecycle.Command
    as_if: Task | None = None  # Decide on this instead of the row, for the late end of an attempt that timed out.
    code: str | None = None  # The fingerprint of what the attempt ran, as it reports.
    packages: Sequence[str] = ()  # Installed ones that differ from those that the version recorded.
    data_access: str | None = None  # With whose rights the attempt read and wrote, as it reports.


@dataclass(frozen=True, slots=True)
class Moved:
    row: Row  # As it is now.
    changed: bool  # False: the command had been applied before.


@dataclass(frozen=True, slots=True)
class Change:
    """What a command does to a task."""

    before: Task
    after: Task
    values: dict[str, Any]  # The columns of the row that may change, as they are then.

    @property
    def is_repeated(self) -> bool:
        """The command had been applied before."""
        return self.after is self.before

    @property
    def ends_attempt(self) -> bool:
        return self.before.status is Status.RUNNING and self.after.status is not Status.RUNNING


def task_of(row: Row) -> Task:
    """Return the row as a value for the rules."""
    values: dict[str, Any] = {name: row[name] for name in _FIELDS}
    values["status"] = Status(row["status"])
    return Task(
        id=row["id"],
        task_type=row["operator"],
        shard=row["id"][:2],
        created_at=row["created_at"],
        timeout_seconds=row["timeout_seconds"],
        max_retries=row["max_retries"],
        max_deliveries=row["max_deliveries"],
        retry_policy=RETRY,
        traceparent=row["traceparent"],
        **values,
    )


def load(tx: Tx, task_id: str, *, lock: bool = True) -> Row:
    """Return the row of a task, locked until the transaction ends. Raises NotFound."""
    return require_row(load_all(tx, [task_id], lock=lock), task_id)


def load_all(tx: Tx, ids: Collection[str], *, lock: bool = True) -> dict[str, Row]:
    """As ``load``, for several tasks, by id; those that do not exist are left out."""
    # Ordered by id: two transactions that lock the same tasks must not deadlock.
    query = _THESE_LOCKED if lock else _THESE
    return {row["id"]: dict(row) for row in tx.mappings(query, {"ids": list(ids)})}


def require_row(rows: Mapping[str, Row], task_id: str) -> Row:
    """Return one of the loaded rows. Raises NotFound."""
    if task_id not in rows:
        raise NotFound(f"there is no task {task_id}: list the tasks of its job with qo run list JOB")
    return rows[task_id]


def move(tx: Tx, row: Row, command: lifecycle.Command, *, as_if: Task | None = None) -> Moved | Rejected:
    """As ``move_all``, for one."""
    return move_all(tx, [Move(row, command, as_if)])[0]


def move_all(tx: Tx, moves: Sequence[Move]) -> list[Moved | Rejected]:
    """Apply one command to each of several tasks, and record their attempts. The answers are in order.

    Raises Contended if another writer changed one of them meanwhile; call again in a new transaction.
    """
    answers: list[Moved | Rejected] = []
    changes: list[dict[str, Any]] = []
    new_attempts: list[dict[str, Any]] = []
    ended_attempts: list[dict[str, Any]] = []
    ended: list[Row] = []
    reopened: list[Row] = []
    for each in moves:
        row, change = each.row, decide(tx, each)
        if isinstance(change, Rejected):
            answers.append(change)
        elif change.is_repeated:
            answers.append(Moved(row, changed=False))
        else:
            changes.append(change.values | {"moved": row["id"], "unmoved": row["token"]})
            answers.append(Moved({**row, **change.values}, changed=True))
            if isinstance(each.command, lifecycle.Claim):
                new_attempts.append(attempt_row(tx, change))
            elif change.ends_attempt:
                key = {"of_task": change.before.id, "number": change.before.attempt}
                ended_attempts.append(key | attempt_end(tx, change, each))
            if change.after.ended is not change.before.ended:
                (ended if change.after.ended else reopened).append(row)
    if tx.do(_UNMOVED, *changes) != len(changes):
        raise Contended(f"tasks are being moved by others, {changes[0]['moved']} or after it: call again")
    tx.insert(attempts, new_attempts)
    tx.do(_CLOSED, *ended_attempts)
    invalidations.ended(tx, ended)
    if any(each["dedupe_key"].startswith(KeyKind.BACKFILL.prefix) for each in ended):
        tx.loops_to_wake.add(LoopName.BACKFILL)  # It may have room for the next task.
    invalidations.reopened(tx, reopened)
    return answers


def decide(tx: Tx, move: Move) -> Change | Rejected:
    """Return what the rules make of a command. Nothing is written."""
    row, before = move.row, move.as_if or task_of(move.row)
    after = lifecycle.decide(before, move.command, now=tx.now)
    if isinstance(after, Rejected):
        return after
    values = {name: getattr(after, name) for name in _FIELDS} | {name: row[name] for name in _BESIDE}
    values |= _beside(tx, before, after, move.command) | {"status": after.status.value}
    if isinstance(move.command, lifecycle.Cancel | lifecycle.Replay):
        values["cancel_code"] = None  # Only ``backlog`` cancels with a code.
    return Change(before, after, values)


def _beside(tx: Tx, before: Task, after: Task, command: lifecycle.Command) -> dict[str, Any]:
    """Return the other columns that a move changes: the wake-up, and which attempt may complete late."""
    match command:
        case lifecycle.Claim():
            return {"started_at": tx.now, "late_lease_id": None}
        case lifecycle.Renew():
            return {}
        case lifecycle.Lapse() if after.status is not Status.CANCELLED:
            return {"late_lease_id": before.lease_id, "released_at": None}
        case _ if after.status is Status.PENDING:
            return {"late_lease_id": None, "released_at": None}  # Its next wake-up has to be released first.
        case _ if after.ended:
            return {"late_lease_id": None}
        case _:
            return {}


def attempt_row(tx: Tx, change: Change) -> dict[str, Any]:
    """Return the row of an attempt that begins."""
    after = change.after
    return {
        "task_id": after.id,
        "attempt": after.attempt,
        "lease_id": after.lease_id,
        "worker_id": after.worker_id,
        "started_at": tx.now,
    }


def attempt_end(tx: Tx, change: Change, move: Move) -> dict[str, Any]:
    """Return the columns of an attempt that change when it ends."""
    return {
        "ended_at": tx.now,
        "outcome": _outcome(change.after, move.command),
        "error": _error(change.after, move.command),
        "code": move.code,
        "packages": list(move.packages) or None,
        "data_access": move.data_access,
    }


def _error(after: Task, command: lifecycle.Command) -> str | None:
    """Return what is stored with an attempt: its error, or what it waits for."""
    if isinstance(command, lifecycle.Reschedule):
        return command.reason
    return None if after.status is Status.COMPLETED else after.last_error


def _outcome(after: Task, command: lifecycle.Command) -> AttemptOutcome:
    if isinstance(command, lifecycle.Lapse):
        return AttemptOutcome.TIMED_OUT
    if after.status is not Status.PENDING:
        return AttemptOutcome(after.status.value)
    if isinstance(command, lifecycle.Reschedule):
        return AttemptOutcome.RESCHEDULED
    return AttemptOutcome.RETRIED if isinstance(command, lifecycle.Fail) else AttemptOutcome.RELEASED


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """How often a task has asked to run later, and what its last attempt waits for."""

    times: int
    reason: str | None

    @property
    def text(self) -> str:
        times = "once" if self.times == 1 else f"{self.times:,} times"
        return f"rescheduled {times}, " + ("without a reason" if self.reason is None else f"last: {self.reason}")


def rescheduled(tx: Tx, row: Row | sa.RowMapping) -> Rescheduled | None:
    """Return how often the task was rescheduled; None unless its last attempt ended so."""
    of_task = attempts.c.task_id == row["id"]
    last = tx.one(sa.select(attempts).where(of_task, attempts.c.attempt == row["attempt"]))
    if last is None or last["outcome"] != AttemptOutcome.RESCHEDULED:
        return None
    counted = sa.select(sa.func.count()).where(of_task, attempts.c.outcome == AttemptOutcome.RESCHEDULED)
    return Rescheduled(int(tx.value(counted)), last["error"])
