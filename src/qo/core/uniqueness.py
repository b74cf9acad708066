"""Unique tasks: what makes two of them the same, and for how long the first one stands for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from qo.core import wire
from qo.core.struct_preload import preload
from qo.core.task import Status, Task
from qo.core.waits import ended_as
from qo.errors import UsageError

TYPE, INPUT = "type", "input"
ACTIVE = frozenset({Status.PENDING, Status.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """A task is not submitted while another one stands for it.

    ``by``: what must be equal: "type", "input", or members of the input such as "input.customer". ``key``: instead of
    the input, a text of the caller's. ``for_s``: so long after the other was submitted; None: without limit.
    ``while_in``: as long as the other has one of these statuses; None: while it is pending or running and, with
    ``for_s``, also when it has completed.
    """

    by: Sequence[str] = (TYPE, INPUT)
    key: str | None = None
    for_s: float | None = None
    while_in: frozenset[Status] | None = None

    @property
    def statuses(self) -> frozenset[Status]:
        if self.while_in is not None:
            return frozenset(self.while_in)
        return ACTIVE if self.for_s is None else ACTIVE | {Status.COMPLETED}


class UniqueHolder(msgspec.Struct, frozen=True, kw_only=True):
    """``registers/unique/{hash}.json``: the task that stands for all that are the same."""

    task_id: str
    token: str


preload(UniqueHolder)


def identity(unique: Unique, task_type: str, input: Any) -> str:
    """Return a text that is equal for tasks that are the same. Raises UsageError if the input lacks a member."""
    parts: dict[str, Any] = {}
    for name in unique.by:
        if name == TYPE:
            parts[name] = task_type
        elif unique.key is None or name != INPUT:
            parts[name] = _member(input, name)
    if unique.key is not None:
        parts["key"] = unique.key
    return wire.fingerprint(parts)


def stands_for(task: Task, unique: Unique, *, now: datetime) -> bool:
    """Whether this task stands for a new one that is the same."""
    is_recent = unique.for_s is None or now < task.created_at + timedelta(seconds=unique.for_s)
    return is_recent and ended_as(task) in unique.statuses


def validate(unique: Unique) -> None:
    """Raise UsageError that says what is wrong."""
    if isinstance(unique.by, str) or not unique.by:
        raise UsageError(f'by is a list such as ("type", "input"), not {unique.by!r}')
    for name in unique.by:
        if name not in (TYPE, INPUT) and not name.startswith(f"{INPUT}."):
            raise UsageError(
                f'a task is unique by "type", "input" or a member of it such as "input.customer", not by {name!r}'
            )
    if unique.key is not None and not unique.key:
        raise UsageError("the key of a unique task must not be empty")
    if unknown := [each for each in unique.statuses if each not in list(Status)]:
        raise UsageError(f"while_in holds statuses such as {Status.PENDING!s}, not {unknown[0]!r}")


def _member(input: Any, path: str) -> Any:
    """Return a part of the input. ``path`` begins with "input"."""
    value = input
    for name in path.split(".")[1:]:
        if not isinstance(value, dict) or name not in value:
            raise UsageError(f"the task is to be unique by {path}, but its input has no such member")
        value = cast("dict[str, Any]", value)[name]
    return value
