"""Tasks that were read and not taken: of what type they are, and those to come back to when there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from qo.core.discovery import Due, Verdict

TYPES_MAX = 100_000
KEPT_MAX = 20_000

# What to do with a task of this type, after so many others of it that are being tried.
Judge = Callable[[str, int], Verdict]


class DeferredTasks:
    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self._types: dict[str, str] = {}  # By task id: to have been read once is enough.
        self._by_type: dict[str, dict[str, Due]] = {}  # By type, then by task id, in the order in which they came.
        self._count = 0
        self._tried_types: dict[str, str] = {}  # Types of those that were taken and are being tried, by task id.
        self._tried_count: Counter[str] = Counter()  # How many those are, by type.

    def add(self, due: Due, task_type: str) -> None:
        if len(self._types) >= TYPES_MAX:
            self._types.clear()
        self._types[due.task_id] = task_type
        deferred = self._by_type.setdefault(task_type, {})
        if due.task_id not in deferred and self._count < KEPT_MAX and self.judge(task_type, 0) is Verdict.LATER:
            deferred[due.task_id] = due
            self._count += 1

    def verdict(self, task_id: str) -> Verdict:
        """What to do with a task as far as is known: of most we learn the type by claiming them."""
        task_type = self._types.get(task_id)
        return Verdict.TAKE if task_type is None else self.judge(task_type, self._tried_count[task_type])

    def take(self, count: int) -> list[Due]:
        """Up to so many for which there is room now."""
        if not self._count:
            return []
        tasks: list[Due] = []
        for task_type, deferred in self._by_type.items():
            while (
                deferred
                and len(tasks) < count
                and self.judge(task_type, self._tried_count[task_type]) is Verdict.TAKE
            ):
                due = deferred.pop(next(iter(deferred)))
                tasks.append(due)
                self._tried_types[due.task_id] = task_type
                self._tried_count[task_type] += 1
        self._count -= len(tasks)
        return tasks

    def mark_tried(self, task_id: str) -> None:
        """It was claimed, or is not to be: from here on, others count it."""
        if (task_type := self._tried_types.pop(task_id, None)) is not None:
            self._tried_count[task_type] -= 1
