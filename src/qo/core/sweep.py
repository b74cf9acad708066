"""Compare tasks with their hints, and plan the rounds in which that is done.

Ended tasks have no hints and do not change, so that a round needs to read a task only if it changed since the last
round, or if it has hints. Now and then a round is full and reads all: somebody may have removed the hint of a task that
waits for long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from qo.core import keys
from qo.core.discovery import STALE_AFTER
from qo.core.struct_preload import preload
from qo.core.task import Status, Task

ROUND_S = 86_400.0  # A round takes no longer than this, however many tasks there are; a full one a week.
FULL_ROUND_S = 7 * ROUND_S
FULL_EVERY = timedelta(days=30)
DATING_ERROR = timedelta(minutes=1)  # Between the time that a listing shows and the clock of the sweeper.


class SweepCursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the sweepers of a queue have come, all together."""

    after: str = ""
    token: str = ""
    moved_at: datetime | None = None
    rounds: int = 0  # How often the whole queue has been swept.
    started_at: datetime | None = None  # When the present round began.
    full: bool = True  # Whether it reads all tasks.
    begun_pages: int = 0  # Pages of this round that a sweeper has begun, …
    finished_pages: int = 0  # … and those that it has finished.
    pages: int = 0  # Of the last round.
    settled_at: datetime | None = None  # The start of the last round whose pages were all finished.
    full_at: datetime | None = None  # The start of the last full one of those.


preload(SweepCursor)


Cursor = TypeVar("Cursor", bound=msgspec.Struct)
_INSTANTS = ("moved_at", "started_at", "settled_at", "full_at")


def drop_future(cursor: Cursor, *, now: datetime) -> Cursor:
    """Return a cursor without instants that have not come yet. Somebody with a wrong clock has written them, and until
    they come nothing would be due."""
    latest = now + DATING_ERROR
    instants = {name: getattr(cursor, name, None) for name in _INSTANTS}
    ahead = dict.fromkeys(name for name, instant in instants.items() if instant is not None and instant > latest)
    return replace(cursor, **ahead) if ahead else cursor


def take_page(cursor: SweepCursor, *, now: datetime) -> SweepCursor:
    """Return the cursor under which the next page is swept: the same, or that of a new round."""
    if cursor.after:
        return cursor
    full = cursor.settled_at is None or cursor.full_at is None or now - cursor.full_at >= FULL_EVERY
    return replace(cursor, started_at=now, full=full, begun_pages=0, finished_pages=0)


def is_stuck(cursor: SweepCursor, interval_s: float, *, now: datetime) -> bool:
    """Whether the cursor should have moved by now: perhaps the page ahead ends every process that sweeps it."""
    return cursor.moved_at is None or now - cursor.moved_at > timedelta(seconds=2 * interval_s)


def pass_page(cursor: SweepCursor, after: str, *, now: datetime, token: str) -> SweepCursor:
    """Return the cursor behind a page that is about to be swept; ``after`` is empty if it is the last."""
    ended = after == ""
    return replace(
        cursor,
        after=after,
        token=token,
        moved_at=now,
        begun_pages=cursor.begun_pages + 1,
        rounds=cursor.rounds + ended,
        pages=cursor.begun_pages + 1 if ended else cursor.pages,
    )


def finish_page(cursor: SweepCursor, *, token: str) -> SweepCursor:
    """Return the cursor after a page was swept. Once all pages of a round are, its tasks need no second look."""
    finished = replace(cursor, token=token, finished_pages=cursor.finished_pages + 1)
    if finished.after or finished.finished_pages < finished.begun_pages:
        return finished
    return replace(
        finished,
        settled_at=finished.started_at,
        full_at=finished.started_at if finished.full else finished.full_at,
    )


def needs_reading(cursor: SweepCursor, modified: datetime) -> bool:
    """Whether a task without hints has to be read in this round, if its object changed at ``modified``."""
    return cursor.full or cursor.settled_at is None or modified >= cursor.settled_at - DATING_ERROR


def pages_per_sweep(cursor: SweepCursor, interval_s: float) -> int:
    """Return how many pages to sweep at intervals of ``interval_s``, so that the round is complete in time."""
    return max(1, math.ceil(cursor.pages * interval_s / (FULL_ROUND_S if cursor.full else ROUND_S)))


@dataclass(frozen=True, slots=True)
class Repair:
    missing: str | None  # The hint that should be there and is not.
    stale: tuple[str, ...]  # Those that should not be there.


def repair(task: Task | None, hints: Iterable[str], *, now: datetime | None = None) -> Repair:
    """Return which hint to write and which to remove, so that exactly the right one remains. ``task`` None: deleted.

    With ``now``, a task that was claimed a moment ago may keep its old hint: its worker is about to replace it.
    """
    hint = None if task is None else keys.index_key(task)
    present = set(hints)
    if task is not None and task.status is Status.RUNNING and now is not None and hint not in present:
        is_recent = now - task.updated_at <= STALE_AFTER
        if is_recent and any(map(keys.is_claimable_hint, present)):
            return Repair(missing=None, stale=())
    return Repair(
        missing=hint if hint is not None and hint not in present else None,
        stale=tuple(sorted(present - {hint})),
    )


def is_past_expiry(task: Task, now: datetime) -> bool:
    """Whether a pending task has outlived its expiry."""
    return task.status is Status.PENDING and task.expires_at is not None and task.expires_at <= now


def is_lapsed(task: Task, now: datetime) -> bool:
    """Whether a running task's lease has run out."""
    return task.status is Status.RUNNING and task.lease_expires_at is not None and task.lease_expires_at <= now


def is_left_behind(task: Task, now: datetime) -> bool:
    """Whether a ready hint of a task that is not pending was left behind: its worker should have removed it by now."""
    return is_lapsed(task, now) or now - task.updated_at > STALE_AFTER
