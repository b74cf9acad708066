"""Explain why a task is not claimed: what it waits for, or whether a worker is running that could run it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from qo.core.durations import format_instant
from qo.core.task import Status, Task
from qo.core.waits import GROUP, flow_of, target_of
from qo.core.words import plural
from qo.errors import StoreError
from qo.queue import roster
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo

SHOWN_MAX = 5
SOON = timedelta(seconds=5)  # Until then a task that is due may simply be about to be claimed.


def _live(workers: Iterable[WorkerInfo], now: datetime) -> list[WorkerInfo]:
    return [each for each in workers if not each.is_stale(now) and not each.is_leaving]


async def types_without_handler(queue: Queue, task_types: Iterable[str]) -> list[str]:
    """Return those of the types that no running worker has a handler for, sorted."""
    workers = _live(await roster.workers(queue.store), await queue.store.now())
    return sorted(set(task_types) - {task_type for worker in workers for task_type in worker.task_types})


async def find_orphans(queue: Queue, tasks: Iterable[Task]) -> list[str]:
    """Return the types of due tasks among these that no running worker has a handler for. None if it cannot be told:
    nobody runs at all, or the reader may not look at workers."""
    now = await queue.store.now()
    waiting = {task.task_type for task in tasks if is_overdue(task, now)}
    if not waiting:
        return []
    try:
        workers = _live(await roster.workers(queue.store), now)
    except StoreError:
        return []
    return (
        sorted(waiting - {task_type for worker in workers for task_type in worker.task_types}) if workers else []
    )


def is_overdue(task: Task, now: datetime) -> bool:
    """Whether a task has been due for so long that a worker should have claimed it."""
    return task.status is Status.PENDING and task.available_at + SOON <= now


async def why_unclaimed(queue: Queue, task: Task) -> str | None:
    """Return the reason in words, or None if the task is not due or a worker could run it."""
    if task.waiting:
        return await _describe_waiting(queue, task)
    now = await queue.store.now()
    if not is_overdue(task, now):
        return None
    try:
        listed = await roster.workers(queue.store)
    except StoreError:
        return None  # Whoever may look at tasks need not have the right to look at workers.
    there = _live(listed, now)
    if not there:
        return "it is due, and no worker is running: start one with qo worker"
    if not any(task.task_type in each.task_types for each in there):
        return (
            f"it is due, and no worker has a handler for the type {task.task_type!r} ({plural(len(there), 'worker')} "
            "looked at): start one whose app has it (@app.task), or cancel the task"
        )
    if all(task.task_type in each.paused_types for each in there if task.task_type in each.task_types):
        return f"it is due, and the type {task.task_type!r} is paused: qo resume"
    return None


async def _describe_waiting(queue: Queue, task: Task) -> str:
    """Return what a waiting task waits for; of many, the first few."""
    conditions = flow_of(task).waits_for
    described: list[str] = []
    for condition in conditions[:SHOWN_MAX]:
        if condition == GROUP:
            described.append(f"a place in the line of group {flow_of(task).group!r}")
            continue
        target = await queue.tasks.load(target_of(condition))
        state = (
            "does not exist, perhaps since it was purged: cancel this task, or cancel and replay it to run it now"
        )
        if target is not None:
            state = f"is {target.task.status}{await _describe_delay(queue, target.task)}"
        place = f"before it in group {flow_of(task).group!r}, " if "#" in condition else ""
        described.append(f"task {target_of(condition)}, {place}which {state}")
    more = len(conditions) - len(described)
    return "it waits for " + "; ".join(described) + (f"; and {plural(more, 'more task')}" if more else "")


async def _describe_delay(queue: Queue, task: Task) -> str:
    if task.status is not Status.PENDING or task.waiting or task.available_at <= await queue.store.now():
        return ""
    return f", and not due before {format_instant(task.available_at)}"
