"""The runtimes ``lambda`` and ``container``: functions that the dispatcher itself starts.

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
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import ValidationError

from qo.api.contract.bundle import Invocation
from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, HeartbeatRequest, Outcome, Work
from qo.core.pipeline.states import EffectKind
from qo.core.retry import delay_s
from qo.core.task import RetryPolicy
from qo.dispatcher.attempts import completion, running
from qo.dispatcher.attempts.claiming import BEATS, claim
from qo.dispatcher.auth.scopes import token_for
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import Effect, TakenEffect
from qo.dispatcher.runtimes.local_functions import Functions
from qo.dispatcher.state.database import State, Tx
from qo.errors import Contended, Forbidden, LeaseLost, NotFound, Refused, Unavailable, UsageError
from qo.function.function_messages import Stop, Verdict
from qo.function.invocation_handler import describe, invalid_report
from qo.pipeline.operators.built_in import CONTAINER

log = logging.getLogger(__name__)

RUNTIME = "lambda"
PARALLEL = 8
REPORT_RETRY = RetryPolicy(initial_interval_ms=100, max_interval_ms=5_000, multiplier=2.0, jitter_percent=0.5)
CLOSING_S = 5.0  # A dispatcher that stops repeats a report for so long.


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An attempt whose function cannot be started."""

    claimed: Claimed
    error: str


class Invoker:
    """Handles ``invoke`` wake-ups of some queues, ``parallel`` at once. ``url``: where functions reach the task API.

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
        queues: Collection[str] = (RUNTIME,),
        parallel: int = PARALLEL,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._state, self._ring, self._functions = state, ring, functions
        self._on_end, self._queues = on_end, tuple(queues)
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
            if not outbox.due(tx, {EffectKind.INVOKE}, self._queues):
                return []  # Without a write transaction, which would keep other writers waiting.
        with self._state.write() as tx:
            return outbox.take(tx, limit, {EffectKind.INVOKE}, self._queues)

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
                invocation = self._begin(tx, wake.effect)
                outbox.mark_done(tx, [wake.effect.id])
        except Exception as error:
            log.exception("task %s could not be leased", wake.effect.task_id)
            with self._state.write() as tx:
                outbox.mark_failed(tx, wake.effect.id, f"{type(error).__name__}: {error}")
            return
        if invocation is None:
            return
        if isinstance(invocation, _Refusal):
            self._report(invocation.claimed, Verdict(Outcome.FATAL, error=invocation.error))
            return
        verdict = self._launch(invocation)
        if verdict is not None and verdict.stopped is not Stop.LOST:
            self._report(invocation, verdict)

    def _begin(self, tx: Tx, wake: Effect) -> Invocation | _Refusal | None:
        """Lease the task. None: it cannot be claimed any more."""
        claimed = claim(tx, ClaimRequest(task_id=wake.task_id, worker_id=wake.queue), self._data_root)
        if not isinstance(claimed, Claimed):
            return None
        work = claimed.work
        try:
            code = {} if work.operator == CONTAINER.name else _find_bundle(tx, work)
        except (NotFound, Refused) as error:
            return _Refusal(claimed, str(error))
        token_id = tx.ambient.task_id()
        token = token_for(self._ring, work, claimed.lease_id, self._data_root, token_id=token_id, now=tx.now)
        return Invocation(
            task_id=wake.task_id,
            attempt=claimed.attempt,
            lease_id=claimed.lease_id,
            lease_expires_at=claimed.lease_expires_at,
            heartbeat_s=claimed.heartbeat_s,
            capability_token=token,
            dispatcher_url=self._url,
            work=work,
            **code,
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

    def _report(self, attempt: Invocation | Claimed, verdict: Verdict) -> None:
        """Report how it ended. Repeating a report whose answer was lost changes nothing."""
        ambient, tries = self._state.ambient, 0
        began, lease_s = ambient.monotonic(), attempt.heartbeat_s * BEATS
        while True:
            closing = self._closing.is_set()
            try:
                self._settle(attempt, verdict)
                return
            except (Unavailable, Contended) as error:
                wait_s = delay_s(REPORT_RETRY, tries, ambient.unit())
                allowed_s = min(lease_s, CLOSING_S) if closing else lease_s
                if ambient.monotonic() - began + wait_s > allowed_s:
                    log.warning("the end of task %s could not be reported: %s", attempt.work.task_id, error)
                    return  # Its lease expires.
            tries += 1
            if closing:
                time.sleep(wait_s)
            else:
                self._closing.wait(wait_s)

    def _settle(self, attempt: Invocation | Claimed, verdict: Verdict) -> None:
        try:
            self._complete(_completion(attempt, verdict))
        except LeaseLost as error:
            log.info("task %s was settled by somebody else: %s", attempt.work.task_id, error)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            reason = UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
            self._complete(_completion(attempt, invalid_report(reason)))
        except (UsageError, Forbidden) as error:
            self._complete(_completion(attempt, invalid_report(error)))

    def _complete(self, end: CompleteRequest) -> None:
        with self._state.write() as tx:
            completion.complete(tx, end, self._data_root)


def _find_bundle(tx: Tx, work: Work) -> dict[str, str]:
    """Raises NotFound or Refused for work without a bundle that may run."""
    if work.bundle_id is None:
        raise Refused("the job names no bundle: give it udf with bundle_id and entrypoint")
    bundle = bundle_store.usable(tx, work.bundle_id)
    return {"bundle_sha256": bundle.sha256, "entrypoint": work.entrypoint or bundle.entrypoint or ""}


def _completion(attempt: Invocation | Claimed, verdict: Verdict) -> CompleteRequest:
    """Raises ValidationError for a reply that no completion can hold."""
    fence = {"task_id": attempt.work.task_id, "attempt": attempt.attempt, "lease_id": attempt.lease_id}
    return CompleteRequest.model_validate(fence | describe(verdict))
