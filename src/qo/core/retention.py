"""Retention: how long ended tasks are kept, and which of them a round of the purger has to read.

A task is kept for a while after its last change; how long depends on its type and status. A listing shows when each
object changed, but neither type nor status. So a round reads a task only if its age has passed one of the policy's
limits since the last round: each task is read at most once for each different limit, however long it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from qo.core.struct_preload import preload
from qo.core.task import Status, Task
from qo.core.waits import flow_of, is_in_line

# The store dates an object by its own clock and to the second; the task's own time is an estimate of that clock.
DATING_ERROR = timedelta(minutes=1)
ROUND_EVERY = timedelta(days=1)  # From the start of one round to the start of the next.
FULL_EVERY = timedelta(days=30)  # A round that reads whatever may be due, in case a date was wrong.
# Data is written before the task that refers to it. Younger data may belong to a task that is about to be created.
DATA_GRACE = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """For how long tasks are kept after they have ended, by status. None: for ever."""

    completed: timedelta | None = None
    failed: timedelta | None = None
    cancelled: timedelta | None = None
    expired: timedelta | None = None
    archived: timedelta | None = None  # Since they were archived.

    def limit(self, status: Status) -> timedelta | None:
        return getattr(self, status) if status in _STATUSES else None


_STATUSES = frozenset(Keep.__slots__)


@dataclass(frozen=True, slots=True)
class Policy:
    """How long tasks of each type are kept. Types that are not named are kept as ``default`` says."""

    default: Keep = Keep()
    types: Mapping[str, Keep] = field(default_factory=dict[str, Keep])

    def keep(self, task_type: str) -> Keep:
        return self.types.get(task_type, self.default)

    @property
    def limits(self) -> tuple[timedelta, ...]:
        """The different times for which tasks are kept, shortest first; empty: everything is kept for ever."""
        keeps = (self.default, *self.types.values())
        limits = {limit for keep in keeps for name in Keep.__slots__ if (limit := getattr(keep, name)) is not None}
        return tuple(sorted(limits))

    @property
    def fingerprint(self) -> str:
        """A text that is equal for equal policies, to notice that the policy was changed between two rounds."""
        rows = {"": self.default, **self.types}
        return ";".join(
            f"{task_type!r}:"
            + ",".join("-" if (k := getattr(keep, n)) is None else str(k.total_seconds()) for n in Keep.__slots__)
            for task_type, keep in sorted(rows.items())
        )


def due_at(task: Task, policy: Policy) -> datetime | None:
    """Return when the task may be purged. None: never, as it has not ended, something has to follow its failure, its
    turn in a group has not come yet, or it is kept for ever."""
    limit = policy.keep(task.task_type).limit(task.status)
    return None if limit is None or task.follow_up_due or is_in_line(flow_of(task)) else task.updated_at + limit


def is_due(task: Task, policy: Policy, now: datetime) -> bool:
    due = due_at(task, policy)
    return due is not None and due <= now


def may_be_due(
    modified: datetime, limits: tuple[timedelta, ...], *, settled_at: datetime | None, now: datetime
) -> bool:
    """Whether a task whose object changed at ``modified`` has to be read.

    ``settled_at``: a time at which everything that was due was purged. Tasks are left out whose age has passed none of
    the limits since then, so that those which are kept longer are not read again and again.
    """
    return any(
        modified + limit - DATING_ERROR <= now
        and (settled_at is None or settled_at < modified + limit + DATING_ERROR)
        for limit in limits
    )


class PurgeCursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the purgers of a queue have come, all together."""

    after: str = ""  # The last key whose task was examined; empty between two rounds.
    token: str = ""
    policy: str = ""  # The fingerprint of the policy that the round applies.
    started_at: datetime | None = None
    settled_at: datetime | None = None  # The start of the last round that examined everything under this policy.
    full_at: datetime | None = None  # The start of the last full round.
    full: bool = True
    purged: int = 0  # Tasks, since the queue exists.


preload(PurgeCursor)


def next_round(cursor: PurgeCursor, policy: Policy, *, now: datetime, at_once: bool = False) -> PurgeCursor | None:
    """Return the cursor to continue with: that of the round under way, or of a new one; None if none is due yet.

    ``at_once``: do not wait until the next round is due.
    """
    same = cursor.policy == policy.fingerprint
    if same and cursor.after:
        return cursor
    if same and not at_once and cursor.started_at is not None and now - cursor.started_at < ROUND_EVERY:
        return None
    full = not same or cursor.full_at is None or now - cursor.full_at >= FULL_EVERY
    return replace(
        cursor,
        after="",
        policy=policy.fingerprint,
        started_at=now,
        settled_at=None if full else cursor.settled_at,
        full=full,
    )


def advance(cursor: PurgeCursor, after: str, *, token: str, purged: int) -> PurgeCursor:
    """Return the cursor after a page; ``after`` is empty if it was the last."""
    moved = replace(cursor, after=after, token=token, purged=cursor.purged + purged)
    if after:
        return moved
    return replace(
        moved, settled_at=cursor.started_at, full_at=cursor.started_at if cursor.full else cursor.full_at
    )


@dataclass(slots=True)
class Allowance:
    """A budget of requests: it grows evenly and is spent a page at a time, so that it may be overdrawn by a page."""

    per_minute: float
    balance: float = 0.0
    seen_at: float | None = None

    def is_open(self, now_s: float) -> bool:
        """Whether another page may be started. ``now_s``: seconds by any steady clock."""
        if self.seen_at is None:
            self.balance = self.per_minute
        else:
            self.balance = min(self.per_minute, self.balance + (now_s - self.seen_at) * self.per_minute / 60)
        self.seen_at = now_s
        return self.balance > 0

    @property
    def opens_in_s(self) -> float:
        """How long it takes from the last question until the balance is positive again."""
        return max(0.0, -self.balance) * 60 / self.per_minute + 0.001

    def spend(self, requests: int) -> None:
        self.balance -= requests
