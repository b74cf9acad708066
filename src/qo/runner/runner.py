"""A wake-up becomes a run: claim, keep alive, run the operator, tell how it went.

The wake-up is only a hint. Whatever becomes of it, the dispatcher's row decides whether there is anything to do
and whether this attempt still counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

from qo.dispatcher.client import DispatcherClient
from qo.dispatcher.contract.task import (
    Claimed,
    CompleteRequest,
    EventBody,
    EventsRequest,
    NotClaimed,
    Outcome,
    PiecesAnswer,
    WorkInput,
)
from qo.errors import Contended, Forbidden, NotFound, QoError, Refused, Unauthenticated, Unavailable, UsageError
from qo.runner.heart import Heart, Held
from qo.runner.operators import Executor
from qo.runner.run import Run
from qo.runner.storage import Storage
from qo.telemetry.trace import tracer
from qo.worker.cancel import CancelToken, Stopped, Why
from qo.worker.context import Context
from qo.worker.outcome import ERROR_CHARS_MAX, text_of, traceback_of
from qo.worker.signals import Reject, Reschedule, Retry

log = logging.getLogger(__name__)

T = TypeVar("T")

WAKE = "wake"  # The task type of wake-ups.
REFUSED_S = 30.0
ASK_AGAIN_S = 2.0  # While the dispatcher does not answer.
AWAY = (Unavailable, Contended)
NOT_OURS = (Refused, NotFound, Forbidden, Unauthenticated)


class Runner:
    def __init__(
        self, api: DispatcherClient, heart: Heart, executor: Executor, storage: Storage, secrets_dir: Path = Path()
    ) -> None:
        self._api = api
        self._heart = heart
        self._executor = executor
        self._storage = storage
        self._secrets_dir = secrets_dir
        self._tracer = tracer()

    async def wake(self, input: Any, context: Context) -> str:
        """The handler of wake-ups. The answer, for who looks at the queue, is what became of it."""
        task_id = _task_id(input)
        claimed = await self._claim(task_id, context.worker_id)
        if isinstance(claimed, NotClaimed):
            return f"not claimed: {claimed.reason}"
        return await self._attempt(claimed, context)

    async def _claim(self, task_id: str, worker_id: str) -> Claimed | NotClaimed:
        try:
            return await self._api.claim(task_id, worker_id)
        except AWAY as error:
            raise Reschedule(ASK_AGAIN_S) from error  # The wake-up waits for the dispatcher, at no cost to it.
        except (Unauthenticated, Forbidden) as error:
            log.error("the dispatcher refuses this worker: %s; set QO_WORKER_TOKEN to the token it expects", error)
            raise Reschedule(REFUSED_S) from error  # Another worker, or this one with its new token.

    async def _attempt(self, claimed: Claimed, context: Context) -> str:
        held = Held(claimed, CancelToken(), token=claimed.capability_token)
        work = asyncio.create_task(self._traced(held))
        loop = asyncio.get_running_loop()

        def stop(why: Why) -> None:
            loop.call_soon_threadsafe(work.cancel)

        held.cancel.on_request(stop)
        limit_s = claimed.work.timeout_seconds
        alarm = None if limit_s is None else loop.call_later(limit_s, held.cancel.request, Why.TIMEOUT)
        self._heart.hold(held)
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            # The worker wants its slot back: the operator is stopped, and the task given back at no cost. So too when
            # the wake-up was lost: that says nothing of the task's own lease.
            why = context.cancel.why
            held.cancel.request(Why.SHUTDOWN if why in (None, Why.LOST) else why)
            work.cancel()
            await asyncio.wait({work})
            await self._settle(held, _completion(held, work))
            raise
        else:
            return await self._settle(held, _completion(held, work))
        finally:
            if alarm is not None:
                alarm.cancel()
            self._heart.let_go(held)

    async def _traced(self, held: Held) -> Run:
        work = held.claimed.work
        if self._tracer is None or not self._tracer.recording():
            return await self._run(held)
        about = {"qo.dag": work.dag, "qo.job": work.job, "qo.task_id": work.task_id, "qo.attempt": work.attempt}
        with self._tracer.processing(f"{work.dag}.{work.job}", work.traceparent, about) as span:
            try:
                return await self._run(held)
            except Exception as error:
                span.failed(text_of(error))
                raise

    async def _run(self, held: Held) -> Run:
        run = self._prepared(held)
        await self._executor.execute(run)
        return run

    def _prepared(self, held: Held) -> Run:
        loop = asyncio.get_running_loop()

        def wait(call: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(call, loop).result()

        async def emit(events: list[EventBody]) -> bool:
            request = EventsRequest(**_fence(held), events=events)
            held.paused = (await self._api.events(held.token, request)).paused
            return not held.paused

        def more(given: WorkInput, after: str | None) -> PiecesAnswer:
            return wait(self._api.inputs(held.token, given.position, after))

        def progress(value: Any) -> None:
            held.progress = value

        return Run(
            held.claimed.work,
            self._storage,
            cancel=held.cancel,
            progress=progress,
            emit=emit,
            wait=wait,
            more=more,
            secrets_dir=self._secrets_dir,
        )

    async def _settle(self, held: Held, completion: CompleteRequest | None) -> str:
        """Tell the dispatcher, for as long as it takes. The lease is kept meanwhile, so the result stays good."""
        if completion is None:
            return "lost"
        while True:
            try:
                answer = await self._api.complete(held.token, completion)
            except NOT_OURS as lost:
                log.warning("task %s: its result was refused: %s", held.task_id, lost)
                return "lost"
            except UsageError as error:
                if completion.outcome is not Outcome.SUCCESS:
                    raise
                # What it wants to commit is not acceptable, and would not be the next time.
                completion = CompleteRequest(**_fence(held), outcome=Outcome.FATAL, error=text_of(error))
            except QoError as error:
                log.warning("task %s: the dispatcher has not taken its result: %s", held.task_id, error)
                if held.lost and not isinstance(error, AWAY):
                    return "lost"  # It answers, and the lease is gone: nothing is left to wait for.
                await asyncio.sleep(ASK_AGAIN_S)
            else:
                return f"{completion.outcome}: {answer.status}"


def _task_id(input: Any) -> str:
    task_id = cast("dict[str, Any]", input).get("task_id") if isinstance(input, dict) else None
    if not isinstance(task_id, str) or not 0 < len(task_id) <= 36:
        raise Reject('a wake-up is {"task_id": "..."}')
    return task_id


def _fence(held: Held) -> dict[str, Any]:
    claimed = held.claimed
    return {"task_id": claimed.work.task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}


def _completion(held: Held, work: asyncio.Task[Run]) -> CompleteRequest | None:
    """How it went; None: nothing may be said any more."""
    fence = _fence(held)
    why = held.cancel.why
    if why is Why.LOST:
        if not work.cancelled():
            work.exception()  # Nobody will ask for it again.
        return None
    error = None if work.cancelled() else work.exception()
    if not work.cancelled() and error is None:
        return _success(fence, held, work.result())
    if why is Why.CANCELLED:
        return CompleteRequest(**fence, outcome=Outcome.CANCELLED, error=str(why))
    if why is Why.TIMEOUT:
        said = f"timed out after {held.claimed.work.timeout_seconds:g} s"
        return CompleteRequest(**fence, outcome=Outcome.RETRYABLE, error=said)
    if why is Why.SHUTDOWN or error is None or isinstance(error, Stopped):
        return CompleteRequest(**fence, outcome=Outcome.RELEASED)
    return _failure(fence, error)


def _success(fence: dict[str, Any], held: Held, run: Run) -> CompleteRequest:
    try:
        said = CompleteRequest(
            **fence, outcome=Outcome.SUCCESS, outputs=run.committed(), result=run.result, progress=held.progress
        )
        said.model_dump_json()
    except (ValueError, TypeError) as error:
        # Better a failure that says why than a result that cannot leave this process.
        told = f"what {run.work.operator} returned or wrote cannot be told to the dispatcher: {error}"
        return CompleteRequest(**fence, outcome=Outcome.FATAL, error=told[:ERROR_CHARS_MAX])
    return said


def _failure(fence: dict[str, Any], error: BaseException) -> CompleteRequest:
    if isinstance(error, Reschedule):
        return CompleteRequest(**fence, outcome=Outcome.RELEASED, retry_after_s=error.delay_s)
    fatal = isinstance(error, Reject | NotFound | UsageError)
    delay_s = error.delay_s if isinstance(error, Retry) else None
    return CompleteRequest(
        **fence,
        outcome=Outcome.FATAL if fatal else Outcome.RETRYABLE,
        error=text_of(error),
        traceback=traceback_of(error),
        retry_after_s=delay_s,
    )
