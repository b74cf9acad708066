"""A task's row, and how it moves: decide by the rules of the queue, write if nobody moved it meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core import lifecycle
from qo.core.lifecycle import Rejected
from qo.core.task import RetryPolicy, Status, Task
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.schema import attempts, tasks
from qo.errors import Contended, NotFound

MOVES_MAX = 5  # How often to decide again when others moved the task first.

RETRY = RetryPolicy(initial_interval_ms=30_000, max_interval_ms=600_000, multiplier=2.0, jitter_percent=0.5)

Row = Mapping[str, Any]

# What the rules may change; every column is called as the field is.
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


@dataclass(frozen=True, slots=True)
class Moved:
    row: Row  # As it is now.
    changed: bool  # False: it had obeyed this command already.


def task_of(row: Row) -> Task:
    """The row as the rules know it."""
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
    """The row, kept from others until the end of the transaction. Raises NotFound."""
    query = sa.select(tasks).where(tasks.c.id == task_id)
    row = tx.one(tx.lock(query) if lock else query)
    if row is None:
        raise NotFound(f"there is no task {task_id}: ask qo for the tasks of its job")
    return dict(row)


def move(tx: Tx, row: Row, command: lifecycle.Command, *, as_if: Task | None = None) -> Moved | Rejected:
    """Obey one command, or say why not. Keeps the record of attempts.

    ``as_if`` is decided on instead of the row, for the late reply of an attempt that had been given up.
    Raises Contended when others moved the task every time; call again.
    """
    for _ in range(MOVES_MAX):
        before = as_if or task_of(row)
        after = lifecycle.decide(before, command, now=tx.now)
        if isinstance(after, Rejected):
            return after
        if after is before:
            return Moved(row, changed=False)
        values = {name: getattr(after, name) for name in _FIELDS} | _beside(tx, row, before, after, command)
        values["status"] = after.status.value
        unmoved = sa.and_(tasks.c.id == row["id"], tasks.c.token == row["token"])
        if tx.execute(sa.update(tasks).where(unmoved).values(values)).rowcount == 1:
            _keep_attempt(tx, row, before, after, command)
            return Moved({**row, **values}, changed=True)
        row, as_if = load(tx, row["id"]), None
    raise Contended(f"task {row['id']} is being moved by others: call again")


def _beside(tx: Tx, row: Row, before: Task, after: Task, command: lifecycle.Command) -> dict[str, Any]:
    """What a move changes beside the task's life: its wake-up, and whose late reply would count."""
    match command:
        case lifecycle.Claim():
            return {"started_at": tx.now, "late_lease_id": None, "released_at": row["released_at"] or tx.now}
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


def _keep_attempt(tx: Tx, row: Row, before: Task, after: Task, command: lifecycle.Command) -> None:
    if isinstance(command, lifecycle.Claim):
        opened = {
            "task_id": row["id"],
            "attempt": after.attempt,
            "lease_id": after.lease_id,
            "worker_id": after.worker_id,
            "started_at": tx.now,
        }
        tx.insert(attempts, [opened])
        return
    if before.status is not Status.RUNNING or after.status is Status.RUNNING:
        return
    this = sa.and_(attempts.c.task_id == row["id"], attempts.c.attempt == before.attempt)
    error = None if after.status is Status.COMPLETED else after.last_error
    closed = {"ended_at": tx.now, "outcome": _outcome(after, command), "error": error}
    tx.execute(sa.update(attempts).where(this).values(closed))


def _outcome(after: Task, command: lifecycle.Command) -> str:
    if isinstance(command, lifecycle.Lapse):
        return "timed_out"
    if after.status is not Status.PENDING:
        return after.status.value
    return "retried" if isinstance(command, lifecycle.Fail) else "released"
