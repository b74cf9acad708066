"""The runtime ``lambda``: functions that the dispatcher itself starts.

    1. take a wake-up of the kind ``invoke`` from the outbox
    2. in one transaction: lease the task, issue its token, and mark the wake-up as done
    3. outside of a transaction: start the function; watch a local one, and renew its lease by heartbeats
    4. in another transaction: report how a local one ended, and repeat this while the state is unavailable and the
       lease lasts

If the dispatcher dies between 2 and 4, the lease expires, and the reaper decides about the next attempt. Functions of
a service report by themselves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from qo.api.contract.bundle import Invocation
from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, HeartbeatRequest, Outcome
from qo.core.pipeline.states import EffectKind
from qo.core.redaction import redact
from qo.core.retry import delay_s
from qo.core.task import RetryPolicy
from qo.dispatcher.attempts import completion, running
from qo.dispatcher.attempts.claiming import BEATS, claim
from qo.dispatcher.auth.scopes import token_for
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import TakenEffect
from qo.dispatcher.runtimes import subprocess_lambda
from qo.dispatcher.runtimes.subprocess_lambda import Stop, Verdict
from qo.dispatcher.state.database import State, Tx
from qo.errors import Contended, Forbidden, LeaseLost, NotFound, QoError, Refused, Unavailable, UsageError

log = logging.getLogger(__name__)

WORKER = "lambda"
PARALLEL = 8
ERROR_MAX = 20_000
# A function is stopped a little before its attempt times out, while its end can still be reported.
MARGIN_S, MARGIN_PART = 2.0, 0.1
REPORT_RETRY = RetryPolicy(initial_interval_ms=100, max_interval_ms=5_000, multiplier=2.0, jitter_percent=0.5)
NO_RUNTIME = (
    "this dispatcher runs no bundles: set QO_LAMBDA_FUNCTION to a function that does, or, where every writer is "
    "trusted with this machine, QO_LAMBDA_LOCAL=true; restart the dispatcher, then replay the task"
)
CLOSING_S = 5.0  # A dispatcher that stops repeats a report for so long.


class Functions(Protocol):
    """A runtime of functions. ``launch`` blocks while it watches; None: the function reports by itself."""

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None: ...


class NoFunctions:
    """Runs no functions: a bundle is code that some writer uploaded, and this process holds an admin's secrets."""

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None:
        return Verdict(Outcome.FATAL, error=NO_RUNTIME)


class LocalFunctions:
    """Runs functions as processes of this machine, with all rights of its user: only if the operator allows it.

    ``offered``: environment variables that a bundle may request.
    """

    def __init__(self, store: BundleStore, offered: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._offered = dict(offered or {})

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None:
        try:
            body = self._store.read(invocation.bundle_sha256)
        except Unavailable as error:
            return Verdict(Outcome.RETRYABLE, error=str(error))
        except QoError as error:
            return Verdict(Outcome.FATAL, error=str(error))
        timeout = invocation.work.timeout_seconds or subprocess_lambda.TIMEOUT_S
        limit = timeout - min(MARGIN_S, timeout * MARGIN_PART)
        return subprocess_lambda.run(invocation, body, offered=self._offered, watch=watch, timeout_s=limit)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An attempt whose function cannot be started."""

    claimed: Claimed
    error: str


class Invoker:
    """Handles ``invoke`` wake-ups, several at once. ``url``: where functions reach the task API.

    ``on_end`` is called after each, on its thread.
    """

    def __init__(
        self,
        state: State,
        ring: KeyRing,
        functions: Functions,
        *,
        data_root: str,
        url: str,
        parallel: int = PARALLEL,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._state, self._ring, self._functions = state, ring, functions
        self._on_end = on_end
        self._data_root, self._url = data_root, url
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="qo-invoke")
        self._free = threading.Semaphore(parallel)
        self._closing = threading.Event()

    def tick(self) -> int:
        """Start as many functions as there is room for, without waiting for them; returns how many."""
        slots = 0
        while not self._closing.is_set() and self._free.acquire(blocking=False):
            slots += 1
        try:
            wakes = self._take(slots)
        except BaseException:
            self._free.release(slots)
            raise
        if slots > len(wakes):
            self._free.release(slots - len(wakes))
        for each in wakes:
            try:
                self._pool.submit(self._handle, each)
            except RuntimeError:
                self._free.release()  # Closed meanwhile: another dispatcher gets the wake-up.
        return len(wakes)

    def close(self) -> None:
        """Stop the functions that run here, release their tasks, and wait until that is done."""
        self._closing.set()
        self._pool.shutdown(wait=True)

    def _take(self, limit: int) -> list[TakenEffect]:
        if limit == 0:
            return []
        with self._state.read() as tx:
            if not outbox.due(tx, {EffectKind.INVOKE}):
                return []  # Without a write transaction, which would keep other writers waiting.
        with self._state.write() as tx:
            return outbox.take(tx, limit, {EffectKind.INVOKE})

    def _handle(self, wake: TakenEffect) -> None:
        try:
            self._invoke(wake)
        except Exception:
            log.exception("task %s could not be invoked", wake.effect.task_id)  # Its lease expires.
        finally:
            self._free.release()
            self._on_end()

    def _invoke(self, wake: TakenEffect) -> None:
        try:
            with self._state.write() as tx:
                invocation = self._begin(tx, wake.effect.task_id)
                outbox.mark_done(tx, [wake.effect.id])
        except Exception as error:
            log.exception("task %s could not be leased", wake.effect.task_id)
            with self._state.write() as tx:
                outbox.mark_failed(tx, wake.effect.id, f"{type(error).__name__}: {error}")
            return
        if invocation is None:
            return
        if isinstance(invocation, _Refusal):
            claimed = invocation.claimed
            self._report(
                _completion(claimed, Verdict(Outcome.FATAL, error=invocation.error)), claimed.heartbeat_s * BEATS
            )
            return
        verdict = self._launch(invocation)
        if verdict is not None and verdict.stopped is not Stop.LOST:
            self._report(_completion(invocation, verdict), invocation.heartbeat_s * BEATS)

    def _begin(self, tx: Tx, task_id: str) -> Invocation | _Refusal | None:
        """Lease the task. None: it cannot be claimed any more."""
        claimed = claim(tx, ClaimRequest(task_id=task_id, worker_id=WORKER), self._data_root)
        if not isinstance(claimed, Claimed):
            return None
        work = claimed.work
        try:
            if work.bundle_id is None:
                raise Refused("the job names no bundle: give it udf with bundle_id and entrypoint")
            bundle = bundle_store.usable(tx, work.bundle_id)
        except (NotFound, Refused) as error:
            return _Refusal(claimed, str(error))
        token_id = tx.ambient.task_id()
        token = token_for(self._ring, work, claimed.lease_id, self._data_root, token_id=token_id, now=tx.now)
        return Invocation(
            task_id=task_id,
            attempt=claimed.attempt,
            lease_id=claimed.lease_id,
            lease_expires_at=claimed.lease_expires_at,
            heartbeat_s=claimed.heartbeat_s,
            capability_token=token,
            dispatcher_url=self._url,
            bundle_sha256=bundle.sha256,
            entrypoint=work.entrypoint or bundle.entrypoint or "",
            work=work,
        )

    def _launch(self, invocation: Invocation) -> Verdict | None:
        try:
            return self._functions.launch(invocation, self._watch(invocation))
        except Exception as error:
            log.exception("the function of task %s could not be run", invocation.task_id)
            return Verdict(
                Outcome.RETRYABLE, error=f"the function could not be run: {type(error).__name__}: {error}"
            )

    def _watch(self, invocation: Invocation) -> Callable[[], Stop | None]:
        """Return a function to be called often while the function runs; it sends a heartbeat when one is due."""
        monotonic = self._state.ambient.monotonic
        beat = HeartbeatRequest(
            task_id=invocation.task_id, attempt=invocation.attempt, lease_id=invocation.lease_id
        )
        last_beat = monotonic()

        def watch() -> Stop | None:
            nonlocal last_beat
            if self._closing.is_set():
                return Stop.RELEASED
            if monotonic() - last_beat < invocation.heartbeat_s:
                return None
            try:
                with self._state.write() as tx:
                    answer = running.heartbeat(tx, beat)
            except (LeaseLost, NotFound):
                return Stop.LOST
            except (Unavailable, Contended):
                return None  # The lease outlives two lost heartbeats; the next call tries again.
            last_beat = monotonic()
            return Stop.CANCELLED if answer.cancel_requested else None

        return watch

    def _report(self, end: CompleteRequest, lease_s: float) -> None:
        """Report how it ended. Repeating a report whose answer was lost changes nothing."""
        ambient, tries = self._state.ambient, 0
        began = ambient.monotonic()
        while True:
            closing = self._closing.is_set()
            try:
                self._settle(end)
                return
            except (Unavailable, Contended) as error:
                wait_s = delay_s(REPORT_RETRY, tries, ambient.unit())
                allowed_s = min(lease_s, CLOSING_S) if closing else lease_s
                if ambient.monotonic() - began + wait_s > allowed_s:
                    log.warning("the end of task %s could not be reported: %s", end.task_id, error)
                    return  # Its lease expires.
            tries += 1
            if closing:
                time.sleep(wait_s)
            else:
                self._closing.wait(wait_s)

    def _settle(self, end: CompleteRequest) -> None:
        try:
            with self._state.write() as tx:
                completion.complete(tx, end, self._data_root)
        except LeaseLost as error:
            log.info("task %s was settled by somebody else: %s", end.task_id, error)
        except (UsageError, Forbidden) as error:
            message = f"the function's report is not valid: {error}"
            fatal = CompleteRequest(
                task_id=end.task_id,
                attempt=end.attempt,
                lease_id=end.lease_id,
                outcome=Outcome.FATAL,
                error=message[:ERROR_MAX],
            )
            with self._state.write() as tx:
                completion.complete(tx, fatal, self._data_root)


def _completion(attempt: Invocation | Claimed, verdict: Verdict) -> CompleteRequest:
    reply = verdict.reply
    return CompleteRequest(
        task_id=attempt.work.task_id,
        attempt=attempt.attempt,
        lease_id=attempt.lease_id,
        outcome=verdict.outcome,
        outputs=reply.outputs if reply is not None else [],
        events=reply.events if reply is not None else [],
        # All readers see the error, and the environment of a function holds secrets.
        error=redact(verdict.error)[:ERROR_MAX] if verdict.error is not None else None,
        retry_after_s=reply.retry_after_s if reply is not None else None,
        result=reply.result if reply is not None else None,
    )
