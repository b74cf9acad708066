"""Do the same to many tasks: replay, cancel or archive all that match a filter.

Tasks are read in key order, a few at a time, and each is changed by its own conditional write, so that others may work
meanwhile. What was changed no longer matches, so an interrupted run can simply be repeated; ``after`` spares reading
again what it had passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from qo.core import keys
from qo.core.shard import validate_shards
from qo.core.task import Status, Task
from qo.core.words import quote
from qo.errors import NotFound, QoError, Refused, UsageError
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import INDEXES, READS_AT_ONCE, Filter, read_matching, task_pages

if TYPE_CHECKING:
    from qo.queue.queue import Queue

EXAMPLES_MAX = 5


class Action(StrEnum):
    REPLAY = "replay"
    CANCEL = "cancel"
    ARCHIVE = "archive"

    @property
    def statuses(self) -> frozenset[Status]:
        """Those of tasks to which this can be done."""
        return _STATUSES[self]


_STATUSES = {
    Action.REPLAY: frozenset({Status.FAILED, Status.CANCELLED, Status.EXPIRED}),
    Action.CANCEL: frozenset({Status.PENDING, Status.RUNNING}),
    Action.ARCHIVE: frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED}),
}

_LISTED = (keys.TASKS, *(prefix for prefixes in INDEXES.values() for prefix in prefixes))

Move = Callable[[str], Awaitable[Task]]


@dataclass(slots=True)
class BulkReport:
    """What became of the tasks that match a filter."""

    matched: int = 0
    changed: int = 0
    refused: int = 0  # Somebody else changed them first, so that this can no longer be done to them.
    failed: int = 0  # The store failed; run it again.
    by_type: Counter[tuple[str, Status]] = field(default_factory=Counter[tuple[str, Status]])
    examples: list[Task] = field(default_factory=list[Task])
    errors: list[str] = field(default_factory=list[str])  # The first few of those that failed.
    after: str = ""  # How far it has come; continue from here.
    complete: bool = False  # All tasks were examined.


async def act_on_matching(
    queue: Queue,
    action: Action,
    criteria: Filter,
    move: Move | None,
    *,
    limit: int | None = None,
    after: str = "",
    on_progress: Callable[[BulkReport], None] = lambda report: None,
) -> BulkReport:
    """Call ``move`` for up to ``limit`` tasks that match, and return what became of them. ``move`` None: only count.

    Raises UsageError for a status to which the action cannot be applied.
    """
    check_criteria(action, criteria)
    if criteria.shard is not None:
        validate_shards((criteria.shard,), queue.prefix_len)
    if after and not after.startswith(_LISTED):
        raise UsageError(f"after is a key that an interrupted run has printed, not {quote(after)}")
    if limit is not None and limit < 1:
        raise UsageError(f"the limit must be at least 1, not {limit}")
    report = BulkReport(after=after)
    async for last_key, tasks in matching_tasks(queue, action, criteria, after):
        room = len(tasks) if limit is None else limit - report.matched
        batch = tasks[:room]
        report.matched += len(batch)
        report.by_type.update((task.task_type, task.status) for task in batch)
        report.examples += batch[: EXAMPLES_MAX - len(report.examples)]
        if move is not None:
            await gather_cancellable(_move_one(task, move, report) for task in batch)
        if len(batch) == len(tasks):
            report.after = last_key  # Otherwise some of this batch are left for the next run.
        on_progress(report)
        if limit is not None and report.matched >= limit:
            return report
    report.complete = True
    return report


def check_criteria(action: Action, criteria: Filter) -> None:
    if criteria.status is not None and criteria.status not in action.statuses:
        accepted = ", ".join(sorted(action.statuses))
        raise UsageError(f"a {criteria.status} task cannot be changed by {action}: choose from {accepted}")


async def matching_tasks(
    queue: Queue, action: Action, criteria: Filter, after: str = ""
) -> AsyncIterator[tuple[str, list[Task]]]:
    """Yield the tasks that match and that the action applies to, in key order, with the key up to which each batch
    goes. Keys are those of an index if only active tasks can match, else those of tasks."""
    statuses = action.statuses if criteria.status is None else {criteria.status}
    prefixes = {prefix: status for status, indexes in INDEXES.items() for prefix in indexes}
    sources = sorted(prefix for prefix, status in prefixes.items() if status in statuses) or [keys.TASKS]
    seen_ids: set[str] = set()  # A task that moves on while its index is read may come twice.
    for prefix in sources:
        if after and not after.startswith(prefix) and after > prefix:
            continue
        start = after if after.startswith(prefix) else ""
        async for batch in task_pages(queue.store, queue.prefix_len, criteria, prefix, start, READS_AT_ONCE):
            tasks = await read_matching(
                queue.store, criteria, [task_key for _, task_key in batch], queue.payloads.reveal
            )
            fresh = [task for task in tasks if task.status in statuses and task.id not in seen_ids]
            if prefix != keys.TASKS:
                seen_ids.update(task.id for task in fresh)
            yield batch[-1][0], fresh


async def _move_one(task: Task, move: Move, report: BulkReport) -> None:
    try:
        await move(task.id)
    except (Refused, NotFound):
        report.refused += 1
    except QoError as error:
        report.failed += 1
        if len(report.errors) < EXAMPLES_MAX:
            report.errors.append(str(error))
    else:
        report.changed += 1
