"""Tasks that a worker read but had no room for: their types are remembered, and they are offered again later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from qo.core.discovery import Due, Verdict

TYPES_MAX = 100_000
DEFERRED_MAX = 20_000

# The verdict on a task of this type, given how many others of the type are being claimed now.
Judge = Callable[[str, int], Verdict]


class DeferredTasks:
    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self._types: dict[str, str] = {}  # By task id. A task never changes its type.
        self._by_type: dict[str, dict[str, Due]] = {}  # By type, then by task id, in the order in which they came.
        self._count = 0
        self._claiming_types: dict[str, str] = {}  # By task id, the types of tasks that are being claimed.
        self._claiming_count: Counter[str] = Counter()  # By type, how many tasks are being claimed.

    def add(self, due: Due, task_type: str) -> None:
        """Remember the type of a task, and the task itself if it only lacks room."""
        if len(self._types) >= TYPES_MAX:
            self._types.clear()
        self._types[due.task_id] = task_type
        deferred = self._by_type.setdefault(task_type, {})
        if (
            due.task_id not in deferred
            and self._count < DEFERRED_MAX
            and self.judge(task_type, 0) is Verdict.LATER
        ):
            deferred[due.task_id] = due
            self._count += 1

    def verdict(self, task_id: str) -> Verdict:
        """The verdict on a task. TAKE if its type is unknown: claiming it will tell the type."""
        task_type = self._types.get(task_id)
        return Verdict.TAKE if task_type is None else self.judge(task_type, self._claiming_count[task_type])

    def take(self, count: int) -> list[Due]:
        """Remove and return up to ``count`` tasks that have room now."""
        if not self._count:
            return []
        tasks: list[Due] = []
        for task_type, deferred in self._by_type.items():
            while (
                deferred
                and len(tasks) < count
                and self.judge(task_type, self._claiming_count[task_type]) is Verdict.TAKE
            ):
                due = deferred.pop(next(iter(deferred)))
                tasks.append(due)
                self._claiming_types[due.task_id] = task_type
                self._claiming_count[task_type] += 1
        self._count -= len(tasks)
        return tasks

    def mark_tried(self, task_id: str) -> None:
        """Stop counting a task as being claimed: the claim succeeded or was given up."""
        if (task_type := self._claiming_types.pop(task_id, None)) is not None:
            self._claiming_count[task_type] -= 1
