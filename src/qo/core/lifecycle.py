"""Every state transition of a task, in one place.

``decide(task, command, now=...)`` returns the task as it should be written, the same task if the command has already
taken effect, or ``Rejected``. It is pure: it uses no clock, randomness, new ids or I/O; these come in the command.

                   ┌────────── Release, Reschedule, Fail (retries left), Lapse (retries left) ─────┐
                   ▼                                                                              │
    submit ──▶ PENDING ──Claim──▶ RUNNING ──Complete──▶ COMPLETED ──Archive──▶ ARCHIVED           │
                 │  ▲               │  └───────────────────────────────────────────────────────────┘
                 │  │               ├─ Fail, Lapse (none left) ─▶ FAILED      Archive ▶ ARCHIVED
                 │  │               └─ any of them after Cancel ▶ CANCELLED   Unarchive: back again
                 │  └── Replay from FAILED, CANCELLED, EXPIRED
                 ├─ Cancel, Break ─▶ CANCELLED
                 └─ Expire ─▶ EXPIRED

A pending task may be routed to one worker (``inbox``): Offer makes it anybody's again, without moving it otherwise.
A pending task may wait for others (``Flow.waits_for``): it cannot be claimed until Meet has removed every condition.

Only the holder of the ``lease_id`` moves a running task; everyone else may at most request cancellation or, once the
lease has run out by the store's clock, take the task back.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from qo.core.commands import (
    AddDependent,
    Archive,
    Break,
    Cancel,
    Claim,
    Command,
    Complete,
    Expire,
    Fail,
    FollowUp,
    Held,
    Lapse,
    Meet,
    Offer,
    Reason,
    Rejected,
    Release,
    Renew,
    Replay,
    Reschedule,
    Revive,
    TakeTurn,
    Unarchive,
)
from qo.core.retry import delay_s
from qo.core.task import Flow, Status, Task
from qo.core.waits import (
    DEPENDENTS_MAX,
    GROUP,
    flow_of,
    is_in_line,
    placed,
    replayed,
    with_dependent,
    without,
)
from qo.core.words import plural

LEASE_S = 300.0


def decide(task: Task, command: Command, *, now: datetime) -> Task | Rejected:
    """Return the task after the command, the task itself if nothing is left to do, or why the command is rejected."""
    if task.token == command.token:
        return task  # Our own write came through; only its reply was lost.
    if isinstance(command, Held) and (task.status is not Status.RUNNING or task.lease_id != command.lease_id):
        if task.settled_lease_id == command.lease_id and not isinstance(command, Renew):
            return task  # This holder has already ended its attempt, and repeats the command.
        return Rejected(Reason.LEASE_LOST, f"task {task.id} is {task.status}, attempt {task.attempt}")
    return _MOVES[type(command)](task, command, now)


def _change(task: Task, command: Command, now: datetime, **changes: Any) -> Task:
    # A clock that was corrected backwards must not make history run backwards.
    return replace(task, token=command.token, updated_at=max(now, task.updated_at), **changes)


def _end_lease(task: Task, command: Command, now: datetime, status: Status, **changes: Any) -> Task:
    ended_at = None if status is Status.PENDING else max(now, task.updated_at)
    changes = {"worker_id": None, "completed_at": ended_at, "inbox": None, **changes}
    if isinstance(command, Held):
        changes["settled_lease_id"] = command.lease_id
        changes["deliveries"] = 0  # The worker has survived the task.
    return _change(task, command, now, status=status, lease_id=None, lease_expires_at=None, **changes)


def _wrong_state(task: Task, rule: str) -> Rejected:
    return Rejected(Reason.WRONG_STATE, f"task {task.id} is {task.status}; {rule}")


def _claim(task: Task, command: Claim, now: datetime) -> Task | Rejected:
    if task.status is Status.RUNNING and task.lease_id == command.lease_id:
        return task  # Claimed, and renewed since.
    if task.status is not Status.PENDING:
        return _wrong_state(task, "only a pending task can be claimed")
    if task.waiting:
        return Rejected(Reason.WAITING, f"task {task.id} waits for {plural(len(flow_of(task).waits_for), 'task')}")
    if task.expires_at is not None and task.expires_at <= now:
        return Rejected(Reason.PAST_EXPIRY, f"task {task.id} expired at {task.expires_at.isoformat()}")
    # A task that was due when it was written stays due for a reader whose estimate of the store's time lags.
    if max(now, task.updated_at) < task.available_at:
        return Rejected(Reason.NOT_DUE, f"task {task.id} is due at {task.available_at.isoformat()}")
    return _change(
        task,
        command,
        now,
        status=Status.RUNNING,
        inbox=None,
        worker_id=command.worker_id,
        lease_id=command.lease_id,
        attempt=task.attempt + 1,
        deliveries=task.deliveries + 1,
        lease_expires_at=now + timedelta(seconds=_lease_s(task, command.lease_s)),
        on_failure=command.on_failure if task.on_failure is None else task.on_failure,
    )


def _lease_s(task: Task, lease_s: float | None) -> float:
    return (task.timeout_seconds or LEASE_S) if lease_s is None else lease_s


def _renew(task: Task, command: Renew, now: datetime) -> Task:
    until = now + timedelta(seconds=_lease_s(task, command.lease_s))
    if task.lease_expires_at is not None:
        until = max(until, task.lease_expires_at)  # A routine renewal must not shorten what a handler asked for.
    progress = task.progress if command.progress is None else command.progress
    return _change(task, command, now, lease_expires_at=until, progress=progress)


def _complete(task: Task, command: Complete, now: datetime) -> Task:
    # Once cancellation is requested, the task ends as cancelled; its output is kept.
    status = Status.CANCELLED if task.cancel_requested else Status.COMPLETED
    return _end_lease(
        task,
        command,
        now,
        status,
        worker_id=task.worker_id,
        output=command.output,
        output_ref=command.output_ref,
        progress=task.progress if command.progress is None else command.progress,
        last_error=None if status is Status.COMPLETED else task.last_error,
        traceback=None if status is Status.COMPLETED else task.traceback,
    )


def _fail(task: Task, command: Fail, now: datetime) -> Task:
    details = {"last_error": command.error, "traceback": command.traceback}
    if command.cancelled:
        return _end_lease(task, command, now, Status.CANCELLED, cancel_requested=True, **details)
    if command.permanent and not task.cancel_requested:
        return _end_lease(task, command, now, Status.FAILED, **details)
    return _retry(task, command, now, command.unit, command.delay_s, **details)


def _retry(task: Task, command: Command, now: datetime, unit: float, wish_s: float | None, **details: Any) -> Task:
    if task.cancel_requested:
        return _end_lease(task, command, now, Status.CANCELLED, **details)
    if task.retry_count >= task.max_retries:
        return _end_lease(task, command, now, Status.FAILED, **details)
    rest_s = delay_s(task.retry_policy, task.retry_count, unit) if wish_s is None else wish_s
    due = now + timedelta(seconds=rest_s)
    return _end_lease(
        task, command, now, Status.PENDING, retry_count=task.retry_count + 1, available_at=due, **details
    )


def _reschedule(task: Task, command: Reschedule, now: datetime) -> Task:
    if task.cancel_requested:
        return _end_lease(task, command, now, Status.CANCELLED)
    if task.max_reschedules is not None and task.reschedule_count >= task.max_reschedules:
        error = f"rescheduled more than {plural(task.max_reschedules, 'time')}"
        return _end_lease(task, command, now, Status.FAILED, last_error=error, traceback=None)
    due = now + timedelta(seconds=command.delay_s)
    return _end_lease(
        task, command, now, Status.PENDING, reschedule_count=task.reschedule_count + 1, available_at=due
    )


def _release(task: Task, command: Release, now: datetime) -> Task:
    if task.cancel_requested:
        return _end_lease(task, command, now, Status.CANCELLED)
    due = now + timedelta(seconds=command.delay_s)
    error = task.last_error if command.error is None else command.error
    return _end_lease(task, command, now, Status.PENDING, available_at=due, last_error=error)


def _lapse(task: Task, command: Lapse, now: datetime) -> Task | Rejected:
    if task.status is not Status.RUNNING or task.lease_expires_at is None:
        return _wrong_state(task, "only a running task has a lease")
    if task.lease_id != command.lease_id or now < task.lease_expires_at:
        return Rejected(Reason.LEASE_VALID, f"task {task.id} is held until {task.lease_expires_at.isoformat()}")
    error = f"lease expired: worker {task.worker_id} did not finish attempt {task.attempt} in time"
    if task.deliveries >= task.max_deliveries and not task.cancel_requested:
        error = (
            f"crash loop: {task.deliveries} workers in a row died or stalled while they ran it, "
            f"the last one {task.worker_id} in attempt {task.attempt}"
        )
        return _end_lease(task, command, now, Status.FAILED, last_error=error, traceback=None)
    return _retry(task, command, now, command.unit, None, last_error=error, traceback=None)


def _cancel(task: Task, command: Cancel, now: datetime) -> Task | Rejected:
    details = {"cancel_requested": True, "cancelled_by": command.by, "cancel_reason": command.reason}
    if task.status is Status.PENDING:
        return _end_lease(task, command, now, Status.CANCELLED, **details)
    if task.status is Status.RUNNING:
        return task if task.cancel_requested else _change(task, command, now, **details)
    if task.status is Status.CANCELLED:
        return task  # Cancelling twice is cancelling once.
    return _wrong_state(task, "it has ended and cannot be cancelled")


def _expire(task: Task, command: Expire, now: datetime) -> Task | Rejected:
    if task.status is not Status.PENDING or task.expires_at is None:
        return _wrong_state(task, "only a pending task with an expiry can expire")
    if now < task.expires_at:
        return Rejected(Reason.NOT_DUE, f"task {task.id} expires at {task.expires_at.isoformat()}")
    return _end_lease(task, command, now, Status.EXPIRED)


def _offer(task: Task, command: Offer, now: datetime) -> Task | Rejected:
    if task.status is not Status.PENDING:
        return _wrong_state(task, "only a pending task is in an inbox")
    return task if task.inbox is None else _change(task, command, now, inbox=None)


def _replay(task: Task, command: Replay, now: datetime) -> Task | Rejected:
    if task.status not in (Status.FAILED, Status.CANCELLED, Status.EXPIRED):
        return _wrong_state(task, "only a failed, cancelled or expired task can be replayed")
    return _end_lease(
        task,
        command,
        now,
        Status.PENDING,
        flow=None if task.flow is None else replayed(task.flow),
        available_at=now,
        retry_count=0,
        reschedule_count=0,
        deliveries=0,
        expires_at=None,
        cancel_requested=False,
        cancelled_by=None,
        cancel_reason=None,
    )


def _archive(task: Task, command: Archive, now: datetime) -> Task | Rejected:
    if task.status is Status.ARCHIVED:
        return task
    if not task.ended:
        return _wrong_state(task, "wait until it has ended, or cancel it first")
    return _change(task, command, now, status=Status.ARCHIVED, archived_from=task.status)


def _unarchive(task: Task, command: Unarchive, now: datetime) -> Task | Rejected:
    if task.status is not Status.ARCHIVED:
        return _wrong_state(task, "only an archived task can be unarchived")
    return _change(task, command, now, status=task.archived_from or Status.FAILED, archived_from=None)


def _follow_up(task: Task, command: FollowUp, now: datetime) -> Task:
    if not task.follow_up_due or command.attempt != task.attempt:
        return task  # Somebody else has recorded it, or the task was replayed.
    return _change(task, command, now, followed_attempt=command.attempt)


def _add_dependent(task: Task, command: AddDependent, now: datetime) -> Task | Rejected:
    flow = flow_of(task)
    if command.task_id in flow.dependents:
        return task
    if task.ended and not is_in_line(flow):
        return _wrong_state(task, "it has ended, and notifies no more tasks")
    if len(flow.dependents) >= DEPENDENTS_MAX:
        return Rejected(Reason.TOO_MANY, f"task {task.id} has {DEPENDENTS_MAX:,} dependents, which is the most")
    return _change(task, command, now, flow=with_dependent(flow, command.task_id))


def _meet(task: Task, command: Meet, now: datetime) -> Task:
    return _wait_for(task, command, now, without(flow_of(task), command.conditions))


def _take_turn(task: Task, command: TakeTurn, now: datetime) -> Task:
    flow = flow_of(task)
    if flow.turn != command.turn or GROUP not in flow.waits_for:
        return task  # It has its place.
    return _wait_for(task, command, now, placed(flow, command.after))


def _wait_for(task: Task, command: Command, now: datetime, flow: Flow) -> Task:
    """Return the task with the conditions that are left; without any, it is ready."""
    if flow == flow_of(task):
        return task
    if task.status is not Status.PENDING or flow.waits_for:
        return _change(task, command, now, flow=flow)
    # It has waited, but not for a worker: that it does from now on.
    return _change(task, command, now, flow=flow, available_at=max(task.available_at, now))


def _break(task: Task, command: Break, now: datetime) -> Task | Rejected:
    flow = flow_of(task)
    if not task.waiting or command.dependency not in flow.waits_for:
        return _wrong_state(task, f"it does not wait for task {command.dependency}")
    return _end_lease(
        task,
        command,
        now,
        Status.CANCELLED,
        flow=replace(flow, broken_by=command.dependency),
        cancel_requested=True,
        cancelled_by=None,
        cancel_reason=f"it depends on task {command.dependency}, which is {command.status}",
    )


def _revive(task: Task, command: Revive, now: datetime) -> Task | Rejected:
    flow = flow_of(task)
    if task.status is not Status.CANCELLED or flow.broken_by is None:
        return _wrong_state(task, "only a task that was cancelled for a dependency can be revived")
    waiting = replace(flow, broken_by=None)  # Its dependencies were not met, so it has no place in a group.
    cancellation = {"cancel_requested": False, "cancelled_by": None, "cancel_reason": None}
    return _end_lease(task, command, now, Status.PENDING, flow=waiting, **cancellation)


_MOVES: dict[type[Command], Callable[[Task, Any, datetime], Task | Rejected]] = {
    Claim: _claim,
    Renew: _renew,
    Complete: _complete,
    Fail: _fail,
    Reschedule: _reschedule,
    Release: _release,
    Lapse: _lapse,
    Cancel: _cancel,
    Expire: _expire,
    Offer: _offer,
    Replay: _replay,
    Archive: _archive,
    Unarchive: _unarchive,
    FollowUp: _follow_up,
    AddDependent: _add_dependent,
    Meet: _meet,
    Break: _break,
    Revive: _revive,
    TakeTurn: _take_turn,
}
