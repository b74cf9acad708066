"""Wait for the end of a task: by conditional reads, which transfer the task only when it has changed."""

from __future__ import annotations

import asyncio

from qo.ambient import Ambient
from qo.core.poll import Pace
from qo.core.shard import validate_task_id
from qo.core.task import Task
from qo.errors import NotFound
from qo.queue.tasks import Snapshot, Tasks


async def load_again(tasks: Tasks, task_id: str, last: Snapshot | None) -> Snapshot:
    """Return the task as it is now, which is ``last`` itself if it has not changed. Raises NotFound."""
    snapshot = await tasks.load(task_id, last)
    if snapshot is None:
        raise NotFound(f"there is no task {task_id} in this queue")
    return snapshot


async def wait_for_end(tasks: Tasks, task_id: str, timeout_s: float | None, ambient: Ambient) -> Task:
    """Return the task once it has ended. Raises TimeoutError."""
    task_id, pace = validate_task_id(task_id), Pace()
    async with asyncio.timeout(timeout_s):
        snapshot = await load_again(tasks, task_id, None)
        while not snapshot.task.ended:
            pace = pace.after(found_work=False)
            await asyncio.sleep(pace.rest_s(ambient.unit()))
            snapshot = await load_again(tasks, task_id, snapshot)
    return snapshot.task
