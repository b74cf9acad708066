"""What a test expects to wait in a queue, held against what does."""

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
    """Stands where nothing was said: None may be an input, too."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return "anything"


ANYTHING: Final[Any] = _Anything()


@dataclass(frozen=True, slots=True)
class Wanted:
    task_type: str
    input: Any
    delay_s: Any
    priority: Any
    key: Any

    def fits(self, task: Task, now: datetime) -> bool:
        return (
            task.task_type == self.task_type
            and holds(self.input, task.input)
            and bool(self.delay_s == _delay_s(task, now))
            and bool(self.priority == task.priority)
            and bool(self.key == task.idempotency_key)
        )

    def __str__(self) -> str:
        named = {"input": self.input, "delay_s": self.delay_s, "priority": self.priority, "key": self.key}
        said = [f"{name} {value!r}" for name, value in named.items() if not isinstance(value, _Anything)]
        return " with ".join([f"type {self.task_type!r}", *([", ".join(said)] if said else [])])

    def instead(self, waiting: Sequence[Task], now: datetime) -> str:
        """What does wait; those of the type that was asked for first."""
        if not waiting:
            return "\nnothing waits"
        near = sorted(waiting, key=lambda task: task.task_type != self.task_type)
        more = [f"  and {len(near) - SHOWN_MAX} more"] if len(near) > SHOWN_MAX else []
        return "\n".join(["\nwhat waits:", *(shown(task, now) for task in near[:SHOWN_MAX]), *more])


def holds(wanted: Any, found: Any) -> bool:
    """Whether all that is wanted of a value is so. Keys of objects that are not named do not matter."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        named, there = cast("Mapping[Any, Any]", wanted), cast("Mapping[Any, Any]", found)
        return all(key in there and holds(value, there[key]) for key, value in named.items())
    if isinstance(wanted, list | tuple) and isinstance(found, list):
        pairs = cast("Sequence[Any]", wanted), cast("Sequence[Any]", found)
        return len(pairs[0]) == len(pairs[1]) and all(map(holds, *pairs))
    return bool(wanted == found)


def shown(task: Task, now: datetime) -> str:
    said = [f"  {task.task_type}", told(task.input)]
    if delay_s := _delay_s(task, now):
        said.append(f"delay_s={delay_s:g}")
    if task.priority:
        said.append(f"priority={task.priority}")
    if task.idempotency_key is not None:
        said.append(f"key={task.idempotency_key!r}")
    if task.attempt:
        said.append(f"after {plural(task.attempt, 'attempt')}: {task.last_error}")
    return "  ".join(said)


def told(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def _delay_s(task: Task, now: datetime) -> float:
    return max(0.0, (task.available_at - now).total_seconds())
