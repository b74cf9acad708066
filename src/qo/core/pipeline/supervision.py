"""Keeping an always-on source running: what its state is, and what to do about it.

    PENDING ──claimed──▶ RUNNING ──silent, failed or returned──▶ DEAD ──rested──▶ PENDING
                            │
                            └──paused, or of no live version──▶ DRAINING ──ended──▶ STOPPED ──resumed──▶ PENDING

A source is one task that has no end. Whoever runs it is heard through the task's heartbeats; the reaper takes the
task away when they stop. What is decided here is when it is tried again: after a second, then after twice as long
each time up to five minutes, and from the beginning once it has run for ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from qo.core.task import Status

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 300.0
SETTLED_S = 600.0  # Having run so long, it is well: the next failure is the first.


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
    """The task as it is now, and its last attempt."""

    status: Status
    attempt: int
    heard_at: datetime
    lease_expires_at: datetime | None = None
    cancel_requested: bool = False
    started_at: datetime | None = None  # Of the last attempt.
    ended_at: datetime | None = None
    died: bool = False  # The last attempt failed, fell silent or returned; False: it was given back in good order.
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Supervised:
    state: SourceState = SourceState.PENDING
    restarts: int = 0  # Ever, for people to see.
    streak: int = 0  # Deaths in a row: how long to rest.
    attempt: int = 0  # Up to which attempt deaths have been counted.
    start_after: datetime | None = None
    heard_at: datetime | None = None
    error: str | None = None


def backoff_s(streak: int) -> float:
    """How long to rest after so many deaths in a row."""
    if streak <= 0:
        return 0.0
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(streak - 1, 30))


def supervise(
    known: Supervised, seen: ObservedTask | None, *, unwanted: str | None, now: datetime
) -> tuple[Supervised, Action]:
    """The source as it is to be remembered, and the one thing to do. ``unwanted``: why it should not run, if so.

    Asked twice about the same, it says the same: the action of the first time must have taken effect before it is
    remembered, so both belong in one transaction.
    """
    if seen is None:
        if unwanted is not None:
            return replace(known, state=SourceState.STOPPED, start_after=None, error=unwanted), Action.NONE
        return replace(known, state=SourceState.PENDING, error=None), Action.CREATE
    heard = seen.heard_at if seen.attempt > 0 else None
    known = replace(known, heard_at=heard)
    if unwanted is not None:
        return _stopping(known, seen, unwanted)
    if seen.status is Status.RUNNING:
        return _running(known, seen, now), Action.NONE
    if seen.status is Status.CANCELLED:
        fresh = replace(
            known, state=SourceState.PENDING, streak=0, attempt=seen.attempt, start_after=now, error=None
        )
        return fresh, Action.RESTART  # It was stopped because it was not wanted; now it is.
    return _resting(known, seen, now)


def _stopping(known: Supervised, seen: ObservedTask, unwanted: str) -> tuple[Supervised, Action]:
    attempt = seen.attempt if seen.status is not Status.RUNNING else known.attempt
    known = replace(known, start_after=None, error=unwanted, streak=0, attempt=attempt)
    if seen.status is Status.PENDING:
        return replace(known, state=SourceState.STOPPED), Action.STOP
    if seen.status is not Status.RUNNING:
        return replace(known, state=SourceState.STOPPED), Action.NONE
    return replace(known, state=SourceState.DRAINING), Action.NONE if seen.cancel_requested else Action.STOP


def _running(known: Supervised, seen: ObservedTask, now: datetime) -> Supervised:
    if seen.cancel_requested:
        return replace(known, state=SourceState.DRAINING)  # Resumed before it had stopped: it ends first.
    if seen.lease_expires_at is not None and seen.lease_expires_at <= now:
        return replace(known, state=SourceState.DEAD, error="no heartbeat")
    return replace(known, state=SourceState.RUNNING, start_after=None, error=None)


def _resting(known: Supervised, seen: ObservedTask, now: datetime) -> tuple[Supervised, Action]:
    """The task waits, or ended by itself."""
    ended = seen.status is not Status.PENDING
    if not seen.died and not ended:
        # Never run yet, or given back by a worker that shuts down: nothing to rest from.
        return replace(known, state=SourceState.PENDING, attempt=seen.attempt, start_after=None), Action.NONE
    if seen.attempt > known.attempt:
        ran_s = (seen.ended_at - seen.started_at).total_seconds() if seen.ended_at and seen.started_at else 0.0
        streak = 1 if ran_s >= SETTLED_S else known.streak + 1
        dead = replace(
            known,
            state=SourceState.DEAD,
            restarts=known.restarts + 1,
            streak=streak,
            attempt=seen.attempt,
            start_after=(seen.ended_at or now) + timedelta(seconds=backoff_s(streak)),
            error=seen.error,
        )
        return dead, Action.RESTART
    if ended:  # Somebody ended it between two looks without running it: begin again at once.
        return replace(known, state=SourceState.PENDING, start_after=now, error=seen.error), Action.RESTART
    rested = known.start_after is None or known.start_after <= now
    return replace(known, state=SourceState.PENDING if rested else SourceState.DEAD), Action.NONE
