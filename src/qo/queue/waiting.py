"""Explain why a due task is not claimed: whether a worker is running that could run it."""

from __future__ import annotations

from datetime import timedelta

from qo.core.task import Status, Task
from qo.core.words import plural
from qo.errors import StoreError
from qo.queue import roster
from qo.queue.queue import Queue

SOON = timedelta(seconds=5)  # Until then a task that is due may simply be about to be claimed.


async def why_unclaimed(queue: Queue, task: Task) -> str | None:
    """Return the reason in words, or None if the task is not due or a worker could run it."""
    now = await queue.store.now()
    if task.status is not Status.PENDING or task.available_at + SOON > now:
        return None
    try:
        listed = await roster.workers(queue.store)
    except StoreError:
        return None  # Whoever may look at tasks need not have the right to look at workers.
    there = [each for each in listed if not each.is_stale(now) and not each.is_leaving]
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
