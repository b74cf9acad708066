"""What others see of an attempt: a span and two lines in the log."""

from __future__ import annotations

import asyncio
import logging

from qo.telemetry.trace import tracer
from qo.worker.api.request import Request
from qo.worker.layers.stack import Layer, Service
from qo.worker.loop.outcome import Acked, Dead, Lost, Outcome, Released, Retried, text_of

_log = logging.getLogger(__name__)


def trace() -> Layer:
    """A span for each attempt, current while the handler runs, whose parent is the span that submitted the task.

    Without OpenTelemetry this adds nothing at all; without a parent and a configured SDK next to nothing.
    """

    def layer(inner: Service) -> Service:
        if (traced := tracer()) is None:
            return inner

        async def run(request: Request) -> Outcome:
            task = request.task
            if task.traceparent is None and not traced.recording():
                return await inner(request)
            about: dict[str, str | int] = {
                "messaging.system": "qo",
                "messaging.operation.type": "process",
                "messaging.message.id": task.id,
                "qo.task.type": task.task_type,
                "qo.attempt": task.attempt,
                "qo.worker.id": request.worker_id,
            }
            with traced.processing(f"process {task.task_type}", task.traceparent, about) as span:
                try:
                    outcome = await inner(request)
                except BaseException as error:
                    span.failed(_why(request, error))
                    raise
                if isinstance(outcome, Retried | Dead):
                    span.failed(outcome.error)
                return outcome

        return run

    return layer


def log() -> Layer:
    """A line when an attempt starts and one when it ends, with its id: for failures on level info, else debug."""

    def layer(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            if not _log.isEnabledFor(logging.INFO):
                return await inner(request)
            now = asyncio.get_running_loop().time
            begun = now()
            if _log.isEnabledFor(logging.DEBUG):
                _say(logging.DEBUG, request, "started")
            try:
                outcome = await inner(request)
            except BaseException as error:
                _say(logging.INFO, request, f"stopped: {_why(request, error)}", now() - begun)
                raise
            if isinstance(outcome, Retried | Dead):
                _say(logging.INFO, request, _ending(outcome), now() - begun)
            elif _log.isEnabledFor(logging.DEBUG):
                _say(logging.DEBUG, request, _ending(outcome), now() - begun)
            return outcome

        return run

    return layer


def _say(level: int, request: Request, what: str, seconds: float | None = None) -> None:
    task = request.task
    about: dict[str, str | int | float] = {
        "task_id": task.id,
        "task_type": task.task_type,
        "attempt": task.attempt,
    }
    after = ""
    if seconds is not None:
        about["seconds"] = seconds
        after = f" after {seconds:.3f} s"
    _log.log(level, "%s %s#%d%s: %s", task.task_type, task.id, task.attempt, after, what, extra=about)


def _ending(outcome: Outcome) -> str:
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


def _why(request: Request, error: BaseException) -> str:
    return str(request.cancel.why) if request.cancel.why is not None else text_of(error)
