"""Layers that make attempts visible: a trace span, and two log lines."""

from __future__ import annotations

import asyncio
import logging

from qo.telemetry.trace import make_tracer
from qo.worker.api.request import Request
from qo.worker.layers.stack import Layer, Service
from qo.worker.loop.outcome import Acked, Dead, Lost, Outcome, Released, Retried, text_of

_log = logging.getLogger(__name__)


def trace() -> Layer:
    """Make a span for each attempt, current while the handler runs; its parent is the span that submitted the task.

    Without OpenTelemetry this layer does nothing; without a parent and a configured SDK almost nothing.
    """

    def layer(inner: Service) -> Service:
        if (tracer := make_tracer()) is None:
            return inner

        async def run(request: Request) -> Outcome:
            task = request.task
            if task.traceparent is None and not tracer.is_recording():
                return await inner(request)
            attributes: dict[str, str | int] = {
                "messaging.system": "qo",
                "messaging.operation.type": "process",
                "messaging.message.id": task.id,
                "qo.task.type": task.task_type,
                "qo.attempt": task.attempt,
                "qo.worker.id": request.worker_id,
            }
            with tracer.start_span(f"process {task.task_type}", task.traceparent, attributes) as span:
                try:
                    outcome = await inner(request)
                except BaseException as error:
                    span.set_error(_stop_reason(request, error))
                    raise
                if isinstance(outcome, Retried | Dead):
                    span.set_error(outcome.error)
                return outcome

        return run

    return layer


def log() -> Layer:
    """Log the start and the end of each attempt, with its id: failures at level info, the rest at debug."""

    def layer(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            if not _log.isEnabledFor(logging.INFO):
                return await inner(request)
            now = asyncio.get_running_loop().time
            started_at = now()
            if _log.isEnabledFor(logging.DEBUG):
                _log_attempt(logging.DEBUG, request, "started")
            try:
                outcome = await inner(request)
            except BaseException as error:
                _log_attempt(logging.INFO, request, f"stopped: {_stop_reason(request, error)}", now() - started_at)
                raise
            if isinstance(outcome, Retried | Dead):
                _log_attempt(logging.INFO, request, _describe(outcome), now() - started_at)
            elif _log.isEnabledFor(logging.DEBUG):
                _log_attempt(logging.DEBUG, request, _describe(outcome), now() - started_at)
            return outcome

        return run

    return layer


def _log_attempt(level: int, request: Request, message: str, seconds: float | None = None) -> None:
    task = request.task
    fields: dict[str, str | int | float] = {
        "task_id": task.id,
        "task_type": task.task_type,
        "attempt": task.attempt,
    }
    after = ""
    if seconds is not None:
        fields["seconds"] = seconds
        after = f" after {seconds:.3f} s"
    _log.log(level, "%s %s#%d%s: %s", task.task_type, task.id, task.attempt, after, message, extra=fields)


def _describe(outcome: Outcome) -> str:
    match outcome:
        case Acked():
            return "done"
        case Retried(error):
            return f"failed: {error}"
        case Dead(error):
            return f"failed for good: {error}"
        case Released(reason):
            return f"given back: {reason}"
        case Lost(reason):
            return f"lost: {reason}"


def _stop_reason(request: Request, error: BaseException) -> str:
    return str(request.cancel.why) if request.cancel.why is not None else text_of(error)
