"""The whole of one attempt, where the dispatcher is far: fetch, verify, run, send heartbeats, report.

The dispatcher has claimed the task and waits for the report. If none comes, the lease expires, and the reaper decides
about the next attempt; so nothing here needs to be certain to happen.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from qo.core.pipeline.states import Outcome
from qo.core.redaction import redact
from qo.errors import LeaseLost, QoError, Unauthenticated, Unavailable
from qo.function import execution, task_client
from qo.function.execution import Conditions
from qo.function.function_messages import Request, Stop, Verdict, parse_request
from qo.function.task_client import TaskClient

log = logging.getLogger(__name__)

BEATS = 3  # Heartbeats within one lease.
ERROR_MAX = 20_000


def handle(document: bytes, conditions: Conditions) -> Verdict:
    """Run the function of one invocation, and report its end.

    Raises UsageError for a document that is no invocation, Unavailable if the end could not be reported.
    """
    request = parse_request(document)
    fence = {"task_id": request.task_id, "attempt": request.attempt, "lease_id": request.lease_id}
    client = TaskClient(request.dispatcher_url, request.capability_token, fence)
    with Heartbeats(client, request.heartbeat_s) as heartbeats:
        verdict = _run(request, document, conditions, client, heartbeats)
        if verdict.stopped is not Stop.LOST:
            _report(client, verdict, request.heartbeat_s * BEATS)
    return verdict


class Heartbeats:
    """Renews the lease of an attempt on a thread of its own, and says when the attempt must stop."""

    def __init__(self, client: TaskClient, interval_s: float) -> None:
        self._client, self._interval_s = client, interval_s
        self._lease_s = interval_s * BEATS
        self._over = threading.Event()
        self._stop: Stop | None = None
        self._thread = threading.Thread(target=self._beat, name="qo-heartbeats", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()  # Not joined: a heartbeat under way does no harm.

    def stop(self) -> Stop | None:
        return self._stop

    def _beat(self) -> None:
        renewed_at = time.monotonic()
        while self._stop is None and not self._over.wait(self._interval_s):
            sent_at = time.monotonic()
            try:
                cancelled = self._client.heartbeat(self._interval_s)
            except Unavailable as error:
                log.warning("a heartbeat was not answered: %s", error)
                if time.monotonic() - renewed_at > self._lease_s:
                    self._stop = Stop.LOST  # By now the task may be another attempt's.
                continue
            except QoError as error:
                log.warning("the attempt is over: %s", error)
                self._stop = Stop.LOST
                return
            renewed_at = sent_at
            if cancelled:
                self._stop = Stop.CANCELLED


def _run(
    request: Request, document: bytes, conditions: Conditions, client: TaskClient, heartbeats: Heartbeats
) -> Verdict:
    try:
        body = client.bundle() if request.bundle_url is None else task_client.fetch(request.bundle_url)
        document = _complete_inputs(document, client)
    except LeaseLost:
        return Verdict(Outcome.CANCELLED, stopped=Stop.LOST)
    except (Unavailable, Unauthenticated) as error:
        return Verdict(Outcome.RETRYABLE, error=str(error))
    except QoError as error:
        return Verdict(Outcome.FATAL, error=f"the bundle cannot be fetched: {error}")
    limit_s = execution.time_limit_s(request.work.timeout_seconds)
    limits = replace(conditions, timeout_s=min(limit_s, conditions.timeout_s or limit_s))
    try:
        return execution.run(request, document, body, limits, heartbeats.stop)
    except OSError as error:  # No space, no memory, no processes: the machine's fault, not the function's.
        return Verdict(Outcome.RETRYABLE, error=f"the function could not be run: {error}")


def _complete_inputs(document: bytes, client: TaskClient) -> bytes:
    """Return the request with the first pieces of each input. The dispatcher leaves lists out that are too long."""
    whole: dict[str, Any] = json.loads(document)
    cut = [each for each in whole["work"]["inputs"] if each.get("more") and not each.get("pieces")]
    if not cut:
        return document
    for each in cut:
        page = client.inputs(each["position"])
        each.update(pieces=page["pieces"], after=page["after"], more=page["after"] is not None)
    return json.dumps(whole).encode()


def _report(client: TaskClient, verdict: Verdict, patience_s: float) -> None:
    """Raises Unavailable if the dispatcher does not answer while the lease may last."""
    try:
        client.complete(describe(verdict), patience_s)
    except LeaseLost as error:
        log.info("the task was settled by somebody else: %s", error)
    except Unavailable:
        raise
    except QoError as error:
        client.complete(describe(invalid_report(error)), patience_s)


def invalid_report(error: Exception) -> Verdict:
    """Return the end of a function whose report the dispatcher does not accept."""
    return Verdict(Outcome.FATAL, error=f"the function's report is not valid: {error}")


def describe(verdict: Verdict) -> dict[str, Any]:
    """Return the report of an end, without the fence."""
    # All readers see the error, and the environment of a function holds secrets.
    error = None if verdict.error is None else redact(verdict.error)[:ERROR_MAX]
    report: dict[str, Any] = {"outcome": verdict.outcome, "error": error}
    if (reply := verdict.reply) is None:
        return report
    return report | {
        "outputs": reply.outputs,
        "events": reply.events,
        "retry_after_s": reply.retry_after_s,
        "result": reply.result,
    }
