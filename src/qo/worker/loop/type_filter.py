"""Whether tasks of a type are for this worker now."""

from __future__ import annotations

import logging

from qo.ambient import Ambient
from qo.core.discovery import UnknownTypes, Verdict
from qo.worker.api.app import App
from qo.worker.api.handler import UNKNOWN, Handler
from qo.worker.loop.admission import Admission
from qo.worker.loop.control import Control
from qo.worker.observe.stats import Stats

log = logging.getLogger(__name__)

UNHANDLED_WARNED_MAX = 100
UNHANDLED_WARNED_EVERY_S = 600.0  # For as long as such tasks wait.


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
        self._warned_at: dict[str, float] = {}  # By type without a handler.

    def handler(self, task_type: str) -> Handler | None:
        return self._app.handler(task_type) or self._fallback

    def judge(self, task_type: str, ahead: int = 0) -> Verdict:
        """Decide about a task of this type when so many others of it come first."""
        if (handler := self.handler(task_type)) is None:
            self._warn_unhandled(task_type)
            return Verdict.PASS
        if task_type in self._control.paused_types:
            return Verdict.PASS
        return Verdict.TAKE if self._admission.room(handler) > ahead else Verdict.LATER

    def _warn_unhandled(self, task_type: str) -> None:
        at, warned_at = self._ambient.monotonic(), self._warned_at.get(task_type)
        if warned_at is None and len(self._warned_at) >= UNHANDLED_WARNED_MAX:
            return
        if warned_at is None or at - warned_at >= UNHANDLED_WARNED_EVERY_S:
            self._warned_at[task_type] = at
            self._stats.unhandled_types = len(self._warned_at)
            log.warning(
                "tasks of type %r wait, but this worker has no handler for them; qo status TASK says whether any has",
                task_type,
            )
