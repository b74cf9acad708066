"""The task that follows one which has failed for good (``on_failure``).

The failed task itself records that it is due, and has a hint until it is submitted: so it is submitted even if whoever
wrote the failure dies right after. Its id follows from the failed task and its attempt: so it is submitted once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from qo.core.lifecycle import FollowUp
from qo.core.sealed import is_sealed
from qo.core.task import Task
from qo.errors import IdempotencyConflict, QoError
from qo.queue.options import Options
from qo.queue.tasks import Snapshot

if TYPE_CHECKING:
    from qo.queue.queue import Queue

log = logging.getLogger(__name__)

KEY_SCOPE = "qo.on_failure"


def describe_failure(task: Task) -> dict[str, Any]:
    """Return the input of the task that follows."""
    failed_at = task.completed_at or task.updated_at
    return {
        "task_id": task.id,
        "task_type": task.task_type,
        "attempt": task.attempt,
        "error": None if is_sealed(task.last_error) else task.last_error,
        "failed_at": failed_at.isoformat(),
    }


async def follow_up(queue: Queue, snapshot: Snapshot) -> Snapshot:
    """Submit what follows a task that has failed for good, and record that it is submitted.

    Raises nothing of the store's: what could not be done is left to a monitor, which finds the task by its hint.
    """
    task = snapshot.task
    if task.on_failure is None:
        return snapshot
    options = Options(
        key=f"{task.id}/{task.attempt}",
        key_scope=KEY_SCOPE,
        priority=task.priority,
        traceparent=task.traceparent,
    )
    try:
        try:
            await queue.submit(task.on_failure, describe_failure(queue.payloads.reveal(task)), options)
        except IdempotencyConflict:
            log.debug("what follows task %s was submitted before, in other words", task.id)
        moved = await queue.tasks.apply(snapshot, FollowUp(queue.ambient.token(), task.attempt))
    except QoError as error:
        log.warning("task %s: what follows its failure is left to a monitor: %s", task.id, error)
        return snapshot
    return moved if isinstance(moved, Snapshot) else snapshot
