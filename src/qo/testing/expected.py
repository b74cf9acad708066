"""The task that a test expects in a queue, and its comparison with the tasks that wait."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from qo.core.task import Task
from qo.core.words import plural

SHOWN_MAX = 20
SHOWN_CHARS_MAX = 200


class _Anything:
    """The default of an expectation, equal to everything. None cannot be it: None may be an input."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return "anything"


ANYTHING: Final[Any] = _Anything()


@dataclass(frozen=True, slots=True)
class ExpectedTask:
    task_type: str
    input: Any
    delay_s: Any
    priority: Any
    key: Any

    def fits(self, task: Task, now: datetime) -> bool:
        return (
            task.task_type == self.task_type
            and matches(self.input, task.input)
            and bool(self.delay_s == _delay_s(task, now))
            and bool(self.priority == task.priority)
            and bool(self.key == task.idempotency_key)
        )

    def __str__(self) -> str:
        fields = {"input": self.input, "delay_s": self.delay_s, "priority": self.priority, "key": self.key}
        parts = [f"{name} {value!r}" for name, value in fields.items() if not isinstance(value, _Anything)]
        return " with ".join([f"type {self.task_type!r}", *([", ".join(parts)] if parts else [])])

    def describe_instead(self, waiting: Sequence[Task], now: datetime) -> str:
        """Return the tasks that wait instead, those of the expected type first."""
        if not waiting:
            return "\nnothing waits"
        near = sorted(waiting, key=lambda task: task.task_type != self.task_type)
        more = [f"  and {len(near) - SHOWN_MAX} more"] if len(near) > SHOWN_MAX else []
        return "\n".join(["\nwhat waits:", *(describe_task(task, now) for task in near[:SHOWN_MAX]), *more])


def matches(expected: Any, actual: Any) -> bool:
    """Return whether the value matches; keys that are not expected do not matter."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        expected_items, actual_items = cast("Mapping[Any, Any]", expected), cast("Mapping[Any, Any]", actual)
        return all(
            key in actual_items and matches(value, actual_items[key]) for key, value in expected_items.items()
        )
    if isinstance(expected, list | tuple) and isinstance(actual, list):
        pairs = cast("Sequence[Any]", expected), cast("Sequence[Any]", actual)
        return len(pairs[0]) == len(pairs[1]) and all(map(matches, *pairs))
    return bool(expected == actual)


def describe_task(task: Task, now: datetime) -> str:
    parts = [f"  {task.task_type}", format_value(task.input)]
    if delay_s := _delay_s(task, now):
        parts.append(f"delay_s={delay_s:g}")
    if task.priority:
        parts.append(f"priority={task.priority}")
    if task.idempotency_key is not None:
        parts.append(f"key={task.idempotency_key!r}")
    if task.attempt:
        parts.append(f"after {plural(task.attempt, 'attempt')}: {task.last_error}")
    return "  ".join(parts)


def format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def _delay_s(task: Task, now: datetime) -> float:
    return max(0.0, (task.available_at - now).total_seconds())
