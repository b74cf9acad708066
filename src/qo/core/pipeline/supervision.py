"""Supervision of always-on sources: the state of a source, and what to do to keep it running.

    PENDING ──claimed──▶ RUNNING ──silent, failed or returned──▶ DEAD ──rested──▶ PENDING
                            │
                            └──paused, or of no live version──▶ DRAINING ──ended──▶ STOPPED ──resumed──▶ PENDING

An always-on source is one task without an end. Its worker sends heartbeats; when they stop, the reaper ends the
attempt. The decision here is when to run it again: after a second, then after twice as long each time up to five
minutes, and after a second again once it has run for ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from qo.core.task import Status

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 300.0
SETTLED_S = 600.0  # After running for so long, its next failure counts as the first.


class SourceState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DEAD = "dead"
    DRAINING = "draining"
    STOPPED = "stopped"


class Action(StrEnum):
    NONE = "none"
    CREATE = "create"  # There is no task yet.
    RESTART = "restart"  # Run the task again, not before ``start_after``.
    STOP = "stop"  # Ask it to end.


@dataclass(frozen=True, slots=True)
class ObservedTask:
    """The task of a source as it is now, and its last attempt."""

    status: Status
    attempt: int
    heard_at: datetime
    lease_expires_at: datetime | None = None
    cancel_requested: bool = False
    started_at: datetime | None = None  # Of the last attempt.
    ended_at: datetime | None = None
    died: bool = False  # The last attempt failed, lost its lease or returned; False: its worker released it.
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Supervised:
    """A source as the supervisor remembers it."""

    state: SourceState = SourceState.PENDING
    restarts: int = 0  # In total, for people.
    streak: int = 0  # Deaths in a row, which determine the backoff.
    attempt: int = 0  # Deaths are counted up to this attempt.
    start_after: datetime | None = None
    heard_at: datetime | None = None
    error: str | None = None


def backoff_s(streak: int) -> float:
    """Return the seconds to wait after so many deaths in a row."""
    if streak <= 0:
        return 0.0
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(streak - 1, 30))


def supervise(
    source: Supervised, task: ObservedTask | None, *, unwanted: str | None, now: datetime
) -> tuple[Supervised, Action]:
    """Return the source to remember, and the one action to take. ``unwanted``: why it should not run, if so.

    The same arguments give the same result, so remember the source and take the action in one transaction.
    """
    if task is None:
        if unwanted is not None:
            return replace(source, state=SourceState.STOPPED, start_after=None, error=unwanted), Action.NONE
        return replace(source, state=SourceState.PENDING, error=None), Action.CREATE
    heard_at = task.heard_at if task.attempt > 0 else None
    source = replace(source, heard_at=heard_at)
    if unwanted is not None:
        return _stop(source, task, unwanted)
    if task.status is Status.RUNNING:
        return _observe_running(source, task, now), Action.NONE
    if task.status is Status.CANCELLED:
        fresh = replace(
            source, state=SourceState.PENDING, streak=0, attempt=task.attempt, start_after=now, error=None
        )
        return fresh, Action.RESTART  # It was stopped while it was not wanted; now it is.
    return _observe_idle(source, task, now)


def _stop(source: Supervised, task: ObservedTask, unwanted: str) -> tuple[Supervised, Action]:
    attempt = task.attempt if task.status is not Status.RUNNING else source.attempt
    source = replace(source, start_after=None, error=unwanted, streak=0, attempt=attempt)
    if task.status is Status.PENDING:
        return replace(source, state=SourceState.STOPPED), Action.STOP
    if task.status is not Status.RUNNING:
        return replace(source, state=SourceState.STOPPED), Action.NONE
    return replace(source, state=SourceState.DRAINING), Action.NONE if task.cancel_requested else Action.STOP


def _observe_running(source: Supervised, task: ObservedTask, now: datetime) -> Supervised:
    if task.cancel_requested:
        return replace(source, state=SourceState.DRAINING)  # If it was resumed meanwhile, it must end first.
    if task.lease_expires_at is not None and task.lease_expires_at <= now:
        return replace(source, state=SourceState.DEAD, error="no heartbeat")
    return replace(source, state=SourceState.RUNNING, start_after=None, error=None)


def _observe_idle(source: Supervised, task: ObservedTask, now: datetime) -> tuple[Supervised, Action]:
    """Handle a task that waits, or that has ended by itself."""
    ended = task.status is not Status.PENDING
    if not task.died and not ended:
        # It has not run yet, or a worker that shuts down has released it: no backoff.
        return replace(source, state=SourceState.PENDING, attempt=task.attempt, start_after=None), Action.NONE
    if task.attempt > source.attempt:
        ran_s = (task.ended_at - task.started_at).total_seconds() if task.ended_at and task.started_at else 0.0
        streak = 1 if ran_s >= SETTLED_S else source.streak + 1
        dead = replace(
            source,
            state=SourceState.DEAD,
            restarts=source.restarts + 1,
            streak=streak,
            attempt=task.attempt,
            start_after=(task.ended_at or now) + timedelta(seconds=backoff_s(streak)),
            error=task.error,
        )
        return dead, Action.RESTART
    if ended:  # It ended between two looks without having run: restart it at once.
        return replace(source, state=SourceState.PENDING, start_after=now, error=task.error), Action.RESTART
    rested = source.start_after is None or source.start_after <= now
    return replace(source, state=SourceState.PENDING if rested else SourceState.DEAD), Action.NONE
