"""Submit many tasks with one result for each."""

from __future__ import annotations

from collections.abc import Sequence

from qo.errors import QoError, UsageError
from qo.queue.concurrency import gather_cancellable
from qo.queue.options import NewTask
from qo.queue.queue import Queue
from qo.queue.submitter import SUBMITS_AT_ONCE, PreparedTask, Submission


class BadTasks(UsageError):
    """Some of many tasks are wrong, so that none was written. ``problems`` has a text for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


async def submit_each(queue: Queue, tasks: Sequence[NewTask]) -> list[Submission | QoError]:
    """Write many tasks after checking all of them, and return what became of each, in the given order.

    An error of one task, such as a key that was used before for another input, is its result and stops no other.
    Raises BadTasks, before the first write, if any task is wrong.
    """
    now = await queue.store.now()
    prepared: list[PreparedTask] = []
    problems: list[str] = []
    for position, new in enumerate(tasks):
        try:
            prepared.append(queue.prepare(new, now))
        except UsageError as error:
            problems.append(f"tasks[{position}]: {error}")
    if problems:
        raise BadTasks(problems)
    results: list[Submission | QoError] = []
    for start in range(0, len(prepared), SUBMITS_AT_ONCE):
        batch = prepared[start : start + SUBMITS_AT_ONCE]
        if any(each.new.options.group is not None for each in batch):
            results += [await _create(queue, each) for each in batch]  # They get in line in the order given.
        else:
            results += await gather_cancellable(_create(queue, each) for each in batch)
    return results


async def _create(queue: Queue, prepared: PreparedTask) -> Submission | QoError:
    try:
        return await queue.create(prepared)
    except QoError as error:
        return error
