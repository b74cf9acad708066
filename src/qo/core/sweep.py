"""Compare a task with its hints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from qo.core import keys
from qo.core.task import Status, Task


@dataclass(frozen=True, slots=True)
class Repair:
    missing: str | None  # The hint that should be there and is not.
    stale: tuple[str, ...]  # Those that should not be there.


def repair(task: Task | None, hints: Iterable[str]) -> Repair:
    """Return which hint to write and which to remove, so that exactly the right one remains. ``task`` None: deleted."""
    hint = None if task is None else keys.index_key(task)
    present = set(hints)
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
