"""Whether tasks of a type are for this worker now."""

from __future__ import annotations

import logging
from dataclasses import replace

from qo.ambient import Ambient
from qo.core.discovery import UnknownTypes, Verdict
from qo.core.sealed import parse_sealed
from qo.core.task import Task
from qo.worker.api.app import App
from qo.worker.api.handler import UNKNOWN, Handler
from qo.worker.loop.admission import Admission
from qo.worker.loop.control import Control
from qo.worker.observe.stats import Stats

log = logging.getLogger(__name__)

SEPARATOR = "\0"  # Between the type and the key of a group; no type contains it.
UNHANDLED_WARNED_MAX = 100
UNHANDLED_WARNED_EVERY_S = 600.0  # For as long as such tasks wait.
UNHANDLED_FOR_S = 1_500.0  # A task of a foreign type is read again every ten minutes; after two misses it is gone.


class TypeFilter:
    def __init__(
        self,
        app: App,
        *,
        unknown_types: UnknownTypes,
        control: Control,
        admission: Admission,
        stats: Stats,
        ambient: Ambient,
    ) -> None:
        self._app = app
        self._fallback = UNKNOWN if unknown_types is UnknownTypes.FAIL else None
        self._control = control
        self._admission = admission
        self._stats = stats
        self._ambient = ambient
        self._seen_at: dict[str, float] = {}  # When a task was last seen, by type without a handler.
        self._warned_at: dict[str, float] = {}  # By what the worker cannot run: a type, or the id of a key.

    def group_of(self, task: Task) -> str:
        """Return the name of the tasks that are judged alike: their type and, if that has a limit for each key, the
        key."""
        key = self._admission.limit_key(task)
        return task.task_type if key is None else f"{task.task_type}{SEPARATOR}{key}"

    def handler(self, group: str) -> Handler | None:
        """Return the handler of a task type, or of a group of its tasks."""
        task_type, separator, key = group.partition(SEPARATOR)
        handler = self._app.handler(task_type) or self._fallback
        return replace(handler, limit_key=key) if handler is not None and separator else handler

    def hook_of(self, task: Task) -> str | None:
        """Return the type of the task that is to follow a final failure of this one, if the app wants one."""
        return self._app.hook_type(task.task_type)

    def judge(self, group: str, ahead: int = 0) -> Verdict:
        """Decide about a task of this type or group when so many others of it come first."""
        task_type = group.partition(SEPARATOR)[0]
        if (handler := self.handler(group)) is None:
            self._note_unhandled(task_type)
            return Verdict.PASS
        if task_type in self._control.paused_types:
            return Verdict.PASS
        return Verdict.TAKE if self._admission.room(handler) > ahead else Verdict.LATER

    def warn_unreadable(self, task: Task) -> None:
        """Log, now and then, that tasks are left to workers that have the key of their input."""
        sealed = parse_sealed(task.input)
        key_id = "" if sealed is None else sealed.key_id
        if self._is_worth_a_warning(f"key {key_id}"):
            log.warning(
                "tasks are encrypted with key %s, which this worker does not have: they are left to others", key_id
            )

    def _is_worth_a_warning(self, subject: str) -> bool:
        at, warned_at = self._ambient.monotonic(), self._warned_at.get(subject)
        if warned_at is None and len(self._warned_at) >= UNHANDLED_WARNED_MAX:
            return False
        if warned_at is not None and at - warned_at < UNHANDLED_WARNED_EVERY_S:
            return False
        self._warned_at[subject] = at
        return True

    def unhandled_types(self) -> tuple[str, ...]:
        """Return the types of tasks that wait, and that this worker has no handler for."""
        since = self._ambient.monotonic() - UNHANDLED_FOR_S
        self._seen_at = {task_type: at for task_type, at in self._seen_at.items() if at >= since}
        self._stats.unhandled_types = len(self._seen_at)
        return tuple(sorted(self._seen_at))

    def _note_unhandled(self, task_type: str) -> None:
        if task_type in self._seen_at or len(self._seen_at) < UNHANDLED_WARNED_MAX:
            self._seen_at[task_type] = self._ambient.monotonic()
            self._stats.unhandled_types = len(self._seen_at)
        if self._is_worth_a_warning(f"type {task_type}"):
            log.warning(
                "tasks of type %r wait, but this worker has no handler for them; qo status TASK says whether any has",
                task_type,
            )
