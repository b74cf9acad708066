"""How an attempt ended, as the completion that the dispatcher is sent."""

from __future__ import annotations

import asyncio
from typing import Any

from qo.agent.code.bundle_cache import CodeUnavailable
from qo.agent.heartbeats import HeldTask
from qo.agent.operator_run import QualityFailed, Run
from qo.agent.operators import ExecutorUnavailable
from qo.api.contract.task import CompleteRequest, Outcome
from qo.errors import NotFound, UsageError
from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.loop.cancel import Stopped, Why
from qo.worker.loop.outcome import ERROR_CHARS_MAX, reason_of, text_of, traceback_of
from qo.worker.observe.secrets import redact_secrets

REFUSED_S = 30.0


def attempt_fence(held: HeldTask) -> dict[str, Any]:
    """Return what every request of an attempt begins with."""
    claimed = held.claimed
    return {"task_id": claimed.work.task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}


def build_completion(held: HeldTask, work: asyncio.Task[Run]) -> CompleteRequest | None:
    """Return the completion of an attempt; None if its lease is lost."""
    fence = attempt_fence(held)
    why = held.cancel.why
    if why is Why.LOST:
        if not work.cancelled():
            work.exception()  # Retrieved, so that asyncio does not log it.
        return None
    error = None if work.cancelled() else work.exception()
    if not work.cancelled() and error is None:
        return _success(fence, held, work.result())
    if why is Why.CANCELLED:
        return CompleteRequest(**fence, outcome=Outcome.CANCELLED, error=str(why))
    if why is Why.TIMEOUT and not isinstance(error, ExecutorUnavailable):
        message = (
            f"timed out after {held.claimed.work.timeout_seconds:g} s: the job's timeout_seconds allow no more"
        )
        return CompleteRequest(**fence, outcome=Outcome.RETRYABLE, error=message)
    if why is Why.SHUTDOWN or error is None or isinstance(error, Stopped):
        return CompleteRequest(**fence, outcome=Outcome.RELEASED)
    return _failure(fence, error, held.run)


def _success(fence: dict[str, Any], held: HeldTask, run: Run) -> CompleteRequest:
    try:
        request = CompleteRequest(
            **fence,
            outcome=Outcome.SUCCESS,
            outputs=run.committed(),
            result=run.result,
            progress=held.progress,
            checks=run.checks,
            code=run.code.fingerprint,
            packages=list(run.code.packages),
        )
        request.model_dump_json()
    except (ValueError, TypeError) as error:
        # Report why the result cannot be sent, instead of sending nothing.
        why = redact_secrets(str(error))
        message = f"what {run.work.operator} returned or wrote cannot be sent to the dispatcher: {why}"
        return CompleteRequest(**fence, outcome=Outcome.FATAL, error=message[:ERROR_CHARS_MAX])
    return request


def _failure(fence: dict[str, Any], error: BaseException, run: Run | None) -> CompleteRequest:
    if isinstance(error, Reschedule):
        why = reason_of(error)
        return CompleteRequest(**fence, outcome=Outcome.RELEASED, error=why, retry_after_s=error.delay_s)
    if isinstance(error, CodeUnavailable):
        # Nothing has run: release the task, without using up an attempt, for a worker that can get its code.
        why = text_of(error)[:ERROR_CHARS_MAX]
        return CompleteRequest(**fence, outcome=Outcome.RELEASED, retry_after_s=REFUSED_S, error=why)
    fatal = isinstance(error, Reject | NotFound | UsageError | QualityFailed)
    delay_s = error.delay_s if isinstance(error, Retry) else None
    return CompleteRequest(
        **fence,
        outcome=Outcome.FATAL if fatal else Outcome.RETRYABLE,
        error=text_of(error),
        traceback=None if isinstance(error, QualityFailed) else traceback_of(error),
        retry_after_s=delay_s,
        checks=run.checks if run is not None else [],
        rejected=run.rejected if run is not None else [],
        code=run.code.fingerprint if run is not None else None,
        packages=list(run.code.packages) if run is not None else [],
    )
