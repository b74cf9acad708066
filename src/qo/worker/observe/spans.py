"""Trace spans of what a worker does around a handler: it looks for tasks, claims, dispatches and settles them.

The span of the attempt itself is made by the layer ``trace``. These are made only if an SDK receives them; the spans of
a task have the span that submitted it as their parent.
"""

from __future__ import annotations

from collections.abc import Callable

from qo.core.task import Task
from qo.telemetry.trace import Tracer, WorkSpan, make_tracer

EndSpan = Callable[[], None]


def _end_nothing() -> None:
    pass


class Spans:
    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._tracer: Tracer | None = make_tracer()
        self._is_recording = False  # As of the last look: a configured SDK stays.

    def open_look(self) -> WorkSpan | None:
        """Open the span of a look for tasks. Drop it if the look finds none: an idle queue would fill the trace."""
        if self._tracer is None:
            return None
        self._is_recording = self._tracer.is_recording()
        if not self._is_recording:
            return None
        attributes = {
            "messaging.system": "qo",
            "messaging.operation.type": "receive",
            "qo.worker.id": self._worker_id,
        }
        return self._tracer.open_span("dequeue", None, attributes)

    def open(self, step: str, task: Task) -> EndSpan:
        """Open the span of a step in the life of a task: claim, dispatch or settle. Return what ends it."""
        if self._tracer is None or not self._is_recording:
            return _end_nothing
        attributes: dict[str, str | int] = {
            "messaging.system": "qo",
            "messaging.operation.type": "settle" if step == "settle" else "receive",
            "messaging.message.id": task.id,
            "qo.task.type": task.task_type,
            "qo.attempt": task.attempt,
            "qo.worker.id": self._worker_id,
        }
        return self._tracer.open_span(f"{step} {task.task_type}", task.traceparent, attributes).end
