"""How much waits in a queue, and for how long: counted from the keys of its indexes.

A key tells whether its task is due, delayed, running or waits for others, and since when; it does not tell the type.
The totals are therefore exact as far as the indexes are, while the counts of types are exact only if the type of every
task is known, and otherwise a share of the totals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from qo.core import keys
from qo.core.discovery import Listed
from qo.core.struct_preload import preload


class Wait(StrEnum):
    """What an active task waits for."""

    DUE = "due"  # For a worker.
    DELAYED = "delayed"  # For its time.
    RUNNING = "running"  # For its handler.
    WAITING = "waiting"  # For other tasks: those it depends on, or those before it in its group.


class ActiveTask(NamedTuple):
    """A task as its index key shows it."""

    task_id: str
    wait: Wait
    age_s: float  # Of a due task: how long it has been due.
    key: str


class TypeDepth(msgspec.Struct, frozen=True, kw_only=True):
    task_type: str
    due: int = 0
    delayed: int = 0
    running: int = 0
    waiting: int = 0
    oldest_age_s: float | None = (
        None  # How long the oldest due task has been due, among those whose type is known.
    )
    handled: bool | None = None  # Whether a live worker has a handler for it; None: there is no worker.


class QueueDepth(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    due: int = 0
    delayed: int = 0
    running: int = 0
    waiting: int = 0
    oldest_age_s: float | None = None
    exact: bool = True  # Whether the type of every task is known, so that ``types`` are counts, not estimates.
    waiting_complete: bool = True  # False: more tasks wait for others than were listed.
    types: list[TypeDepth] = []
    workers: int = 0


preload(TypeDepth, QueueDepth)


def active_tasks(entries: Iterable[Listed], now: datetime) -> list[ActiveTask]:
    """Return the tasks that the keys of the indexes lead to. A task with two keys is counted once, as the later."""
    minute, tasks = keys.minute_of(now), dict[str, ActiveTask]()
    newest: dict[str, datetime] = {}
    for entry in entries:
        parsed = keys.parse_index(entry.key) or _parse_routed(entry.key)
        if parsed is None or (parsed.task_id in newest and newest[parsed.task_id] > entry.modified):
            continue
        newest[parsed.task_id] = entry.modified
        if entry.key.startswith(keys.LEASES):
            wait, age_s = Wait.RUNNING, 0.0
        elif entry.key.startswith(keys.WAITING):
            wait, age_s = Wait.WAITING, 0.0
        elif parsed.due_minute > minute:
            wait, age_s = Wait.DELAYED, 0.0
        else:
            # Priority puts a key further ahead than its task has waited; it was written when the task became due.
            since_s = max(parsed.due_minute * 60.0, entry.modified.timestamp())
            wait, age_s = Wait.DUE, max(0.0, now.timestamp() - since_s)
        tasks[parsed.task_id] = ActiveTask(parsed.task_id, wait, age_s, entry.key)
    return list(tasks.values())


def _parse_routed(key: str) -> keys.IndexKey | None:
    """Return a key of an inbox as if its task were in the ready index: it waits for a worker, too."""
    routed = keys.parse_inbox(key)
    return None if routed is None else keys.IndexKey("", routed.minute, routed.task_id, routed.minute)


def count_depth(
    tasks: Iterable[ActiveTask],
    types: Mapping[str, str],
    *,
    handled: Container[str],
    workers: int,
    at: datetime,
    waiting_complete: bool = True,
) -> QueueDepth:
    """Count the tasks, in all and by type. ``types``: the type of each task as far as it is known, by id.
    ``waiting_complete``: whether all that wait for others are among the tasks."""
    totals, read = dict.fromkeys(Wait, 0), dict.fromkeys(Wait, 0)
    counts: dict[str, dict[Wait, int]] = defaultdict(lambda: dict.fromkeys(Wait, 0))
    oldest: dict[str, float] = {}
    oldest_s: float | None = None
    for task in tasks:
        totals[task.wait] += 1
        if task.wait is Wait.DUE:
            oldest_s = max(oldest_s or 0.0, task.age_s)
        if (task_type := types.get(task.task_id)) is None:
            continue
        read[task.wait] += 1
        counts[task_type][task.wait] += 1
        if task.wait is Wait.DUE:
            oldest[task_type] = max(oldest.get(task_type, 0.0), task.age_s)

    def scale(count: int, wait: Wait) -> int:
        return round(count * totals[wait] / read[wait]) if count else 0

    return QueueDepth(
        at=at,
        **{str(wait): count for wait, count in totals.items()},
        oldest_age_s=oldest_s,
        exact=read == totals,
        waiting_complete=waiting_complete,
        types=[
            TypeDepth(
                task_type=task_type,
                **{str(wait): scale(count, wait) for wait, count in by_wait.items()},
                oldest_age_s=oldest.get(task_type),
                handled=task_type in handled if workers else None,
            )
            for task_type, by_wait in sorted(counts.items())
        ],
        workers=workers,
    )


def choose_sample(tasks: list[ActiveTask], size: int) -> list[ActiveTask]:
    """Return up to ``size`` tasks: those that have been due longest, and as many spread evenly over the rest."""
    if len(tasks) <= size:
        return tasks
    ordered = sorted(tasks, key=lambda task: (-task.age_s, task.task_id))
    oldest, rest = ordered[: size // 2], sorted(ordered[size // 2 :], key=lambda task: task.task_id)
    count = size - len(oldest)
    return [*oldest, *(rest[number * len(rest) // count] for number in range(count))]
