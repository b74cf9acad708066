"""What a task gets from the tasks that it depends on: they are read when they are asked for."""

from __future__ import annotations

from typing import Any

from qo.core.task import Status, Task
from qo.core.waits import ended_as, flow_of
from qo.errors import NotFound, UsageError
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import READS_AT_ONCE
from qo.queue.queue import Queue


async def dependencies(queue: Queue, task: Task) -> list[Task]:
    """Return the tasks that a task depends on, in the order in which it names them."""
    stored = await _read_all(queue, task)
    for each in stored:
        if each.output_ref is None:
            queue.payloads.require_sealed(each.output, f"task {each.id}", "output")
    return [queue.payloads.reveal(each) for each in stored]


async def _read_all(queue: Queue, task: Task) -> list[Task]:
    ids, tasks = flow_of(task).depends_on, list[Task]()
    for start in range(0, len(ids), READS_AT_ONCE):
        tasks += await gather_cancellable(_read(queue, each) for each in ids[start : start + READS_AT_ONCE])
    return tasks


async def results(queue: Queue, task: Task) -> list[Any]:
    """Return the outputs of the tasks that a task depends on, in order; None for one that did not complete."""
    tasks = await _read_all(queue, task)
    outputs: list[Any] = []
    for start in range(0, len(tasks), READS_AT_ONCE):
        outputs += await gather_cancellable(_output(queue, each) for each in tasks[start : start + READS_AT_ONCE])
    return outputs


async def result(queue: Queue, task: Task, dependency_id: str) -> Any:
    """Return the output of one task that a task depends on. Raises UsageError if it depends on no such task."""
    if dependency_id not in flow_of(task).depends_on:
        raise UsageError(f"task {task.id} does not depend on {dependency_id!r}")
    return await _output(queue, await _read(queue, dependency_id))


async def _read(queue: Queue, task_id: str) -> Task:
    """Return a task as it is stored."""
    snapshot = await queue.tasks.load(task_id)
    if snapshot is None:
        raise NotFound(
            f"there is no task {task_id} any more: this task depends on it, but it was purged meanwhile. Keep tasks of "
            "its type for longer ([retention] in the settings), or let a task that runs at once put its result where "
            "you need it"
        )
    return snapshot.task


async def _output(queue: Queue, task: Task) -> Any:
    return await queue.payloads.stored_output(task) if ended_as(task) is Status.COMPLETED else None
