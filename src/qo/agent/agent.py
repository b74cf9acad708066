"""The agent handles wake-ups: claim the task, send heartbeats, run the operator, report the outcome, and go on with the
next task of the queue.

A wake-up is only a hint. The dispatcher's row decides whether there is anything to do, and whether this attempt still
counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

from qo.agent.code.bundle_cache import Codes, CodeUnavailable
from qo.agent.code.loaded import Code, OwnCode
from qo.agent.code.version_processes import ProcessDied, VersionProcess, VersionProcesses
from qo.agent.completions import REFUSED_S, attempt_fence, build_completion
from qo.agent.data_access import AttemptData, DataAccesses
from qo.agent.dataset_files import Storage
from qo.agent.heartbeats import HeartbeatThread, HeldTask
from qo.agent.lineage import Lineage, NoLineage
from qo.agent.logs.capture import enter_log
from qo.agent.logs.log_thread import LogThread
from qo.agent.operator_run import Run, run_label
from qo.agent.operators import Executor
from qo.agent.segments import HeldSegments
from qo.agent.walk import AttemptContext, Walk
from qo.api.contract.credential import CredentialsAnswer, CredentialsRequest
from qo.api.contract.task import (
    Claimed,
    CompleteAnswer,
    CompleteRequest,
    DataAccess,
    EventBody,
    EventsRequest,
    InputPart,
    KeptAnswer,
    KeptRequest,
    NotClaimed,
    Outcome,
    PiecesAnswer,
    StandingAnswer,
    Work,
    WorkCode,
    WorkInput,
)
from qo.api.internal_client import DispatcherClient
from qo.core.task import Status
from qo.errors import Contended, Forbidden, NotFound, QoError, Refused, Unauthenticated, Unavailable, UsageError
from qo.telemetry.trace import make_tracer
from qo.worker.api.context import Context
from qo.worker.api.signals import Reject, Reschedule
from qo.worker.loop.cancel import CancelToken, Why
from qo.worker.loop.outcome import Acked, text_of

log = logging.getLogger(__name__)

T = TypeVar("T")

WAKE = "wake"  # The task type of wake-ups.
ASK_AGAIN_S = 2.0  # While the dispatcher does not answer.
AWAY = (Unavailable, Contended)
NOT_OURS = (Refused, NotFound, Forbidden, Unauthenticated)


class Agent:
    """Runs the tasks of one runtime in a worker."""

    def __init__(
        self,
        api: DispatcherClient,
        heart: HeartbeatThread,
        executor: Executor,
        storage: Storage,
        secrets_dir: Path = Path(),
        lineage: Lineage | None = None,
        codes: Codes | None = None,
        processes: VersionProcesses | None = None,
        logs: LogThread | None = None,
        data: DataAccesses | None = None,
    ) -> None:
        """``data``: how attempts get at theirs; None: all by ``storage``."""
        self._data = data
        self._api = api
        self._heart = heart
        self._executor = executor
        self._storage = storage
        self._secrets_dir = secrets_dir
        self._lineage = lineage or NoLineage()
        self._codes = codes
        self._processes = processes
        self._logs = logs
        self._tracer = make_tracer()
        self.idle_timeouts: set[str | None] = set()  # Of the jobs that it has run.

    async def wake(self, input: Any, context: Context) -> str | Acked:
        """Handle a wake-up. Return the outcome, for people who look at the queue.

        The dispatcher records a failed run, so its wake-up is completed; the worker only counts the failure.
        """
        task_id, queue = _parse_wake_up(input)
        claimed = await self._claim(task_id, context.worker_id)
        if queue is not None:
            walk = Walk(self._api, queue, context, self.run_claimed)
            return await walk.run(claimed)
        if isinstance(claimed, NotClaimed):
            return f"not claimed: {claimed.reason}"
        return await self.run_claimed(claimed, context)

    async def run_claimed(self, claimed: Claimed, context: AttemptContext) -> str | Acked:
        """Run a claimed task here, or in the process of its version, and return the outcome."""
        self.idle_timeouts.add(claimed.work.idle_timeout)
        if self._processes is not None and (code := claimed.work.code) is not None:
            held = HeldTask(claimed, CancelToken(), token=claimed.capability_token)
            try:
                process = await self._find_process(self._processes, held, code)
            except BaseException as error:
                # Nothing has run yet: the worker ends, or no process can be started on this machine.
                why = None if isinstance(error, asyncio.CancelledError) else text_of(error)
                await self._settle(
                    held, CompleteRequest(**attempt_fence(held), outcome=Outcome.RELEASED, error=why)
                )
                raise
            if process is not None:
                return await self._delegate(process, held, context)
        return await self.attempt(claimed, context)

    async def _find_process(
        self, processes: VersionProcesses, held: HeldTask, code: WorkCode
    ) -> VersionProcess | None:
        """Return the process of code that cannot share this interpreter; None if it can, or is unavailable."""
        store = processes.store
        if store.can_share(code.sha256):
            return None
        self._heart.hold(held)  # Fetching code and starting a process may take a while.
        try:
            unpacked = await asyncio.to_thread(store.unpack, code)
            return None if unpacked.own_process is None else await processes.find(unpacked.root)
        except CodeUnavailable:
            return None  # The attempt fails for the same reason, and reports it.
        finally:
            self._heart.let_go(held)

    async def _delegate(self, process: VersionProcess, held: HeldTask, context: AttemptContext) -> str | Acked:
        """Have the process of the task's version run the attempt and report its outcome."""
        try:
            return await process.run(held.claimed, context)
        except ProcessDied as died:
            why = f"the process of its version died: {died}"
            return await self._settle(
                held, CompleteRequest(**attempt_fence(held), outcome=Outcome.RETRYABLE, error=why)
            )

    async def _claim(self, task_id: str, worker_id: str) -> Claimed | NotClaimed:
        try:
            return await self._api.claim(task_id, worker_id)
        except AWAY as error:
            raise Reschedule(
                ASK_AGAIN_S
            ) from error  # The wake-up waits for the dispatcher, without using up an attempt.
        except (Unauthenticated, Forbidden) as error:
            log.error("the dispatcher refuses this worker: %s; set QO_WORKER_TOKEN to the token it expects", error)
            raise Reschedule(REFUSED_S) from error  # Another worker, or this one with its new token.

    async def attempt(self, claimed: Claimed, context: AttemptContext) -> str | Acked:
        """Run a claimed task and report its outcome, which is returned as text."""
        held = HeldTask(claimed, CancelToken(), token=claimed.capability_token)
        if self._logs is not None and claimed.work.log is not None:
            held.log = self._logs.open(claimed.work.log, held.now())
        self._lineage.report_start(claimed.work, held.now())
        work = asyncio.create_task(self._run_traced(held))
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
            # The worker wants its slot back: stop the operator and release the task without using up an attempt. Do
            # the same if the lease of the wake-up is lost: the task has a lease of its own.
            why = context.cancel.why
            held.cancel.request(Why.SHUTDOWN if why in (None, Why.LOST) else why)
            work.cancel()
            await asyncio.wait({work})
            await self._finish_log(held)
            await self._settle(held, build_completion(held, work))
            raise
        else:
            context.free_slot()  # The next task need not wait until this one is reported.
            await self._finish_log(held)
            return await self._settle(held, build_completion(held, work))
        finally:
            if alarm is not None:
                alarm.cancel()
            self._heart.let_go(held)

    async def _finish_log(self, held: HeldTask) -> None:
        if self._logs is not None and held.log is not None:
            await self._logs.finish(held.log)

    async def _run_traced(self, held: HeldTask) -> Run:
        enter_log(held.log)  # In the context of this asyncio task, and of what it starts.
        work = held.claimed.work
        if self._tracer is None or not self._tracer.is_recording():
            return await self._run(held)
        about = {"qo.dag": work.dag, "qo.job": work.job, "qo.task_id": work.task_id, "qo.attempt": work.attempt}
        with self._tracer.start_span(f"{work.dag}.{work.job}", work.traceparent, about) as span:
            try:
                return await self._run(held)
            except Exception as error:
                span.set_error(text_of(error))
                raise

    async def _run(self, held: HeldTask) -> Run:
        data = self._open_data(held)
        try:
            run = self._prepare_run(held, await self._code(held.claimed.work), data)
            await self._executor.execute(run)
        finally:
            if data.credentials is not None:
                data.credentials.close()
        return run

    def _open_data(self, held: HeldTask) -> AttemptData:
        """Return the files of the attempt, with its rights. Raises CredentialsMissing."""
        if self._data is None:
            return AttemptData(DataAccess.FILES, self._storage)

        async def mint() -> CredentialsAnswer:
            return await self._api.credentials(held.token, CredentialsRequest(**attempt_fence(held)))

        def proof() -> dict[str, Any]:
            return {"capability": held.token, "fence": attempt_fence(held)}

        data = self._data.open(held.claimed, mint, held.now, proof)
        held.data_access = data.access
        return data

    async def _code(self, work: Work) -> Code:
        """Return the code of the attempt. Raises CodeUnavailable."""
        if work.code is None:
            return OwnCode()
        if self._codes is None:
            raise CodeUnavailable("this worker cannot run code of versions")
        if self._codes.is_ready(work):
            return self._codes.open(work)
        return await asyncio.to_thread(self._codes.open, work)

    def _prepare_run(self, held: HeldTask, code: Code, data: AttemptData) -> Run:
        loop = asyncio.get_running_loop()

        def wait(call: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(call, loop).result()

        async def emit(events: list[EventBody]) -> bool:
            request = EventsRequest(**attempt_fence(held), events=events)
            held.paused = (await self._api.events(held.token, request)).paused
            return not held.paused

        def more(details: WorkInput, after: str | None, part: InputPart | None = None) -> PiecesAnswer:
            return wait(self._api.inputs(held.token, details.position, after, part))

        def progress(value: Any) -> None:
            held.progress = value

        def standing(output: int, after: str | None, revision: int | None) -> StandingAnswer:
            return wait(self._api.standing(held.token, output, after, revision))

        def previous_output(output: int) -> KeptAnswer:
            answer = wait(
                self._api.fetch_kept_output(held.token, KeptRequest(**attempt_fence(held), output=output))
            )
            if data.credentials is not None:
                data.credentials.discard()  # What it keeps may lie elsewhere than what it reads.
            return answer

        held.run = Run(
            held.claimed.work,
            data.storage,
            cancel=held.cancel,
            progress=progress,
            emit=emit,
            wait=wait,
            more=more,
            standing=standing,
            previous_output=previous_output,
            segments=HeldSegments(self._api, held, loop),
            secrets_dir=self._secrets_dir,
            code=code,
            credentials=data.credentials,
        )
        return held.run

    async def _settle(self, held: HeldTask, completion: CompleteRequest | None) -> str | Acked:
        """Report the completion until the dispatcher answers. Heartbeats continue meanwhile, so the result stays
        valid."""
        if completion is None:
            return self._report_lost(held)
        held.settling = True
        completion = completion.model_copy(update={"data_access": held.data_access})
        while True:
            try:
                answer = await self._api.complete(held.token, completion)
            except NOT_OURS as lost:
                log.warning("task %s: its result was refused: %s", held.task_id, lost)
                return self._report_lost(held)
            except UsageError as error:
                if completion.outcome is not Outcome.SUCCESS:
                    if not (completion.checks or completion.rejected):
                        raise
                    # That the attempt failed matters more than the details of its data.
                    completion = completion.model_copy(update={"checks": [], "rejected": []})
                    continue
                # Its outputs are not acceptable, and would not be the next time.
                refused = CompleteRequest(**attempt_fence(held), outcome=Outcome.FATAL, error=text_of(error))
                completion = refused.model_copy(update={"data_access": held.data_access})
            except QoError as error:
                log.warning("task %s: the dispatcher has not accepted its result yet: %s", held.task_id, error)
                if held.lost and not isinstance(error, AWAY):
                    return self._report_lost(
                        held
                    )  # The dispatcher answers and the lease is lost: do not wait any longer.
                await asyncio.sleep(ASK_AGAIN_S)
            else:
                self._lineage.report_end(held.claimed.work, completion, answer.status, held.now())
                return _report_outcome(held.claimed.work, completion, answer)

    def _report_lost(self, held: HeldTask) -> str:
        self._lineage.report_end(held.claimed.work, None, "lost", held.now())
        return "lost"


def _report_outcome(work: Work, completion: CompleteRequest, answer: CompleteAnswer) -> str | Acked:
    """Return the outcome of an attempt as text, and log it if the attempt failed."""
    text = f"{completion.outcome}: {answer.status}"
    if completion.outcome not in (Outcome.RETRYABLE, Outcome.FATAL):
        return text
    then = f"failed for good, see qo run show {work.task_id}"
    if answer.status == Status.PENDING:
        at = "" if answer.retry_at is None else f" at {answer.retry_at:%Y-%m-%d %H:%M:%S} UTC"
        then = f"failed, and is tried again{at}"
    first = ((completion.error or "").strip().splitlines() or ["no error was given"])[0]
    log.warning("%s: attempt %d %s: %s", run_label(work), work.attempt, then, first)
    return Acked(text, failed=True)


def _parse_wake_up(input: Any) -> tuple[str, str | None]:
    """Return the task that a wake-up names, and the queue that has more; None from dispatchers that name no queue."""
    fields = cast("dict[str, Any]", input) if isinstance(input, dict) else {}
    task_id, queue = fields.get("task_id"), fields.get("queue")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= 36:
        raise Reject('a wake-up is {"task_id": "...", "queue": "..."}')
    return task_id, queue if isinstance(queue, str) and 0 < len(queue) <= 200 else None
