"""Runs the operators of the Spark runtime: one warm engine, a thread for each attempt.

    inputs -> operator -> files -> expectations -> (the runner completes)

Everything an attempt writes lies below its own prefix, so that whatever becomes of it, nothing is seen before the
dispatcher has accepted it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from qo.agent.operator_run import Run
from qo.agent.operators import Executor, ExecutorUnavailable, Threads, on_thread
from qo.api.contract.task import Work
from qo.config.settings import Settings
from qo.config.spark import OWN_SERVER
from qo.core.pipeline.expectation import describe_value, parse_expectations
from qo.errors import QoError
from qo.spark.engine.engine import Attempt, ClusterAway, Engine, Progress, open_engine
from qo.spark.engine.errors import SessionLost, explained, from_spark, full_text, short_text
from qo.spark.engine.supervisor import Supervisor
from qo.spark.io import reading, writing
from qo.spark.io.bucket import spark_settings
from qo.spark.io.files import Files, files_for, trouble
from qo.spark.io.writing import Written
from qo.spark.operators.calling import call, is_built_in
from qo.spark.operators.context import Context, Frames, Inputs
from qo.spark.operators.shipping import Shipper
from qo.spark.quality import quality
from qo.spark.stream import stream
from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.loop.cancel import Stopped, Why

log = logging.getLogger(__name__)

PROGRESS_S = 1.0
STOP_AGAIN_S = 0.25  # An operator that goes on after its jobs were ended starts new ones: end them, too.
STOP_S = 10.0  # Then its thread is left behind: what it still writes, nobody will read.
AGAIN_S = 2.0  # After an attempt was given back because the cluster was lost; the next one waits for it here.
LOOK_S = 0.1  # While it waits.
# So often a task is given back at no cost by a cluster that was lost under it. One that loses it each time may be what
# kills it, and would go on for ever.
FREE_LOSSES_MAX = 5
TASKS_MAX = 1_000  # Whose losses are remembered.


class SparkExecutor:
    def __init__(self, settings: Settings, engine: Engine | None = None) -> None:
        self._settings = settings
        self._engine = engine or open_engine(spark_settings(settings))
        self._shipper = Shipper() if is_far(settings) else None
        # Threads that stay: to begin one for each attempt, or each question, would also begin one in Java.
        self._attempts = Threads("qo-spark-attempt")
        self._losses: dict[str, int] = {}  # By task.
        self._on_ui: Callable[[str], None] | None = None
        self._supervisor = Supervisor(
            self._engine, settings.spark.lost_after_s, on_start=lambda: self._tell_ui(self._engine.ui())
        )
        self._supervisor.start()
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="qo-spark-progress")
        self._stopping = ThreadPoolExecutor(1, thread_name_prefix="qo-spark-stop")

    async def execute(self, run: Run) -> None:
        """Run to the end. Cancelled: its Spark jobs are ended before this returns, and those of others are not.

        Raises ExecutorUnavailable when the cluster was lost under it, or does not come.
        """
        attempt = Attempt(run.work.task_id, run.work.attempt)
        phases = Phases()
        missing: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._supervisor.attend(attempt, _resolver(missing))
        work = asyncio.create_task(on_thread(self._attempt, run, attempt, phases, begin=self._attempts.begin))
        telling: list[asyncio.Task[None]] = []

        def tell() -> None:
            telling.append(asyncio.create_task(self._tell(run, attempt, phases)))

        # Most are over before there is much to tell.
        slow = asyncio.get_running_loop().call_later(PROGRESS_S, tell)
        try:
            await asyncio.wait({work, missing}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._wind_down(attempt, work)
            if missing.done() and (not work.done() or _failed_otherwise(work)):
                raise self._given_back(attempt, missing.result(), lost=self._supervisor.away is not None)
            await work
            self._losses.pop(attempt.task_id, None)
            if "waiting" in phases.progress or (attempt.number > 1 and not phases.progress):
                run.progress(told("done", None))  # What was told last, perhaps of an earlier attempt, would stay.
        except asyncio.CancelledError:
            await self._wind_down(attempt, work)
            if run.cancel.why is Why.TIMEOUT and (reason := self._supervisor.missing) is not None:
                raise ExecutorUnavailable(AGAIN_S, reason) from None
            raise
        finally:
            self._supervisor.leave(attempt)
            slow.cancel()
            for each in telling:
                each.cancel()
            await asyncio.gather(*telling, return_exceptions=True)

    def warm(self, on_ui: Callable[[str], None] | None = None) -> None:
        """Begin to start the engine, so that the first task finds it ready. What fails, the first task will tell.

        ``on_ui``: is given the address of Spark's own interface, if there is one, on another thread.
        """
        self._on_ui = on_ui
        threading.Thread(target=self._start, name="qo-spark-warm", daemon=True).start()

    def _start(self) -> None:
        began = time.perf_counter()
        try:
            self._engine.start()
            ui = self._engine.ui()
        except ClusterAway as away:
            self._supervisor.mark_away(str(away))
            return
        except Exception as error:
            log.warning("Spark has not started: %s", error)
            return
        log.info("Spark is ready after %.1f s", time.perf_counter() - began)
        self._tell_ui(ui)

    def _tell_ui(self, ui: str | None) -> None:
        if ui is not None:
            log.info("Spark's UI is at %s", ui)
            if self._on_ui is not None:
                self._on_ui(ui)

    def close(self) -> None:
        self._supervisor.close()
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._stopping.shutdown(wait=False, cancel_futures=True)
        if self._shipper is not None:
            self._shipper.close()
        self._engine.close()

    async def _wind_down(self, attempt: Attempt, work: asyncio.Task[Any]) -> None:
        """Further cancellations change nothing: this ends by itself, and soon."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_S
        stopping: asyncio.Future[None] | None = None
        while not work.done() and loop.time() < deadline:
            if stopping is None or stopping.done():
                stopping = loop.run_in_executor(self._stopping, self._stop, attempt)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({work}, timeout=STOP_AGAIN_S)
        if not work.done():
            log.warning("%s goes on after its Spark jobs were ended: its thread is left behind", attempt.tag)
        work.add_done_callback(_forget)

    def _stop(self, attempt: Attempt) -> None:
        try:
            self._engine.stop(attempt)
        except Exception as error:
            log.warning("the Spark jobs of %s could not be ended: %s", attempt.tag, short_text(error))

    async def _tell(self, run: Run, attempt: Attempt, phases: Phases) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                known = await loop.run_in_executor(self._asking, self._engine.progress, attempt)
            except Exception as error:
                log.debug("no progress of %s: %s", attempt.tag, error)
            else:
                phases.progress = told(phases.now, known, self._supervisor.missing)
                run.progress(phases.progress)
            await asyncio.sleep(PROGRESS_S)

    def _attempt(self, run: Run, attempt: Attempt, phases: Phases) -> None:
        """On the attempt's own thread."""
        try:
            with contextlib.ExitStack() as later:
                with phases("start"):
                    spark = self._enter_session(run, attempt, later)
                files = files_for(self._settings, root_of(run))
                run.cancel.check()
                self._carry_out(run, spark, files, later, phases)
        except BaseException as error:
            meant = self._meant(error, run.work, attempt)
            if meant is error:
                raise
            raise meant from None

    def _enter_session(self, run: Run, attempt: Attempt, later: contextlib.ExitStack) -> SparkSession:
        """Waits for the cluster where that is away: so a worker without one holds as many tasks as it has slots, and
        does not claim and give back all there are. Raises ExecutorUnavailable when it takes too long."""
        lasting = not run.work.inputs  # Of sources only the ones that are always on have tasks.
        until = time.monotonic() + self._supervisor.hold_s
        while True:
            while (reason := self._supervisor.away) is not None:
                if time.monotonic() >= until:
                    raise ExecutorUnavailable(AGAIN_S, reason)
                run.cancel.wait(LOOK_S)
                run.cancel.check()
            try:
                return later.enter_context(self._engine.session(attempt, lasting=lasting))
            except ClusterAway as away:
                if not self._engine.has_cluster:
                    raise
                self._supervisor.mark_away(str(away))

    def _given_back(self, attempt: Attempt, reason: str, *, lost: bool) -> Exception:
        """What to raise for an attempt whose cluster was lost, or else has no executors for it."""
        if not lost:
            return ExecutorUnavailable(AGAIN_S, reason)
        times = self._losses[attempt.task_id] = self._losses.pop(attempt.task_id, 0) + 1
        if len(self._losses) > TASKS_MAX:
            del self._losses[next(iter(self._losses))]
        if times > FREE_LOSSES_MAX:
            return SessionLost(f"{reason}; {times} times in a row while this task ran, which may be the cause")
        return ExecutorUnavailable(AGAIN_S, reason)

    def _meant(self, error: BaseException, work: Work, attempt: Attempt) -> BaseException:
        if isinstance(error, Stopped | ExecutorUnavailable) or not isinstance(error, Exception):
            return error
        said_enough = isinstance(error, QoError | Reject | Reschedule | Retry)
        loss = None if said_enough else self._engine.loss(attempt)
        if loss is not None and loss.by_cluster:
            return self._given_back(attempt, f"the Spark session was lost: {loss.why}", lost=True)
        if loss is not None:
            why = loss.why or short_text(error)
            lost = SessionLost(f"the Spark session was lost, and the next attempt gets another: {why}")
            return lost.with_traceback(error.__traceback__)
        meant = self._explained(error, work)
        if isinstance(meant, SessionLost) and self._settings.spark.remote not in (None, OWN_SERVER):
            # By a server of somebody else's that was restarted in the meantime.
            return self._given_back(attempt, str(meant), lost=True)
        return meant

    def _explained(self, error: Exception, work: Work) -> BaseException:
        names = {each.dataset_id: each.name for each in work.inputs}
        of_input = reading.failure(error, names) if from_spark(error) and about_file_of(error, names) else None
        return explained(error) if of_input is None else of_input.with_traceback(error.__traceback__)

    def _carry_out(
        self, run: Run, spark: SparkSession, files: Files, later: contextlib.ExitStack, phases: Phases
    ) -> None:
        def opened(name: str) -> DataFrame:
            with phases("read"):
                return reading.frame(spark, run.input(name), files)

        inputs = Inputs(list(run.inputs), opened)
        context = Context(spark, run, inputs, run.config, files, self._settings, later)
        with phases("operator"):
            if self._shipper is not None and not is_built_in(run.work.operator):
                self._shipper.ship(spark, run.code, run.work.operator)
            frames = call(context)
        if stream.is_stream(frames):
            with phases("stream"):
                stream.run(context, frames)
            return
        try:
            written = write_all(context, frames, phases)
        except Exception as error:
            for diagnose in context.diagnoses:
                if (better := diagnose(error)) is not None:
                    raise better from None
            raise
        with phases("quality"):
            settle(context, written)
        run.result = result_of(written, context.said, phases)


def open_executor(settings: Settings, on_ui: Callable[[str], None] | None) -> Executor:
    """For workers: a session takes seconds, which pass while the first tasks are on their way."""
    executor = SparkExecutor(settings)
    executor.warm(on_ui)
    return executor


class Phases:
    """What an attempt is at, and how long each part of it took."""

    def __init__(self) -> None:
        self.now = "start"
        self.progress: dict[str, Any] = {}  # As it was told last.
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Generator[None]:
        """A phase within another is not counted in both."""
        before, self.now = self.now, name
        began = time.perf_counter()
        inside = sum(self.seconds.values())
        try:
            yield
        finally:
            own = time.perf_counter() - began - (sum(self.seconds.values()) - inside)
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            self.now = before


def write_all(context: Context, frames: Frames, phases: Phases) -> dict[int, Written]:
    """Write every frame to its output. Nothing is begun once the attempt was asked to stop."""
    run, wanted = context.run, parse_expectations(context.run.work.expectations)
    written: dict[int, Written] = {}
    for index, frame in frames.items():
        run.cancel.check()
        with phases("write"):
            output = next(each for each in run.outputs if each.given.index == index)
            measures = quality.measures([each for each in wanted if each.output == index], frame.schema, frame)
            written[index] = writing.write(context.spark, frame, output, context.files, measures, run.work)
    run.cancel.check()
    return written


def settle(context: Context, written: Mapping[int, Written]) -> None:
    """Raises QualityFailed where an expectation of severity fail was not met."""
    run, wanted = context.run, parse_expectations(context.run.work.expectations)
    if not wanted:
        return
    run.checks = quality.settle(context.spark, run, wanted, written, context.inputs, context.files)
    failed = [each for each in run.checks if not each.passed and each.severity == "fail"]
    if failed:
        said = "; ".join(
            f"{each.name}: found {describe_value(each.observed)}, expected {describe_value(each.expected)}"
            for each in failed[:5]
        )
        more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
        run.reject(f"{len(failed)} of {len(run.checks)} expectations failed: {said}{more}")


def result_of(written: Mapping[int, Written], said: Mapping[str, Any], phases: Phases) -> dict[str, Any]:
    """Something small for people to see."""
    outputs = {
        str(index): {"rows": each.rows, "bytes": each.bytes, "files": len(each.files)}
        for index, each in sorted(written.items())
    }
    seconds = {name: round(took, 3) for name, took in phases.seconds.items()}
    return {"outputs": outputs, "seconds": seconds, **said}


def told(phase: str, known: Progress | None, missing: str | None = None) -> dict[str, Any]:
    """Progress as heartbeats carry it. ``missing``: why nothing can be run now."""
    waits = {} if missing is None else {"waiting": missing}
    if known is None:
        return {"phase": phase, **waits}
    return {
        "phase": phase,
        "stages": {"done": known.stages_done, "total": known.stages},
        "tasks": {"done": known.tasks_done, "total": known.tasks, "active": known.active},
        **waits,
    }


def about_file_of(error: BaseException, datasets: Iterable[str]) -> bool:
    """Whether a file of one of these is at fault. Others have no commit that could be made again."""
    found = trouble(full_text(error))
    return found is not None and any(f"/{each}/" in found.uri for each in datasets)


def is_far(settings: Settings) -> bool:
    """Whether Python functions run in processes that do not see this one's directory."""
    return settings.spark.remote is not None or not settings.spark.master.startswith("local")


def root_of(run: Run) -> str:
    """Where the data of a task lies, by the prefix of its outputs; one without outputs only reads."""
    if run.work.outputs:
        return run.work.outputs[0].prefix
    located = (piece.location for each in run.inputs.values() for piece in each.pieces if piece.location)
    return next(located, "file:/")


def _resolver(future: asyncio.Future[str]) -> Callable[[str], None]:
    """Sets its result, from any thread, unless it has one or nobody waits for it any more."""
    loop = asyncio.get_running_loop()

    def resolve(value: str) -> None:
        if not future.done():
            future.set_result(value)

    def resolve_from_any_thread(value: str) -> None:
        with contextlib.suppress(RuntimeError):  # The loop was closed.
            loop.call_soon_threadsafe(resolve, value)

    return resolve_from_any_thread


def _failed_otherwise(work: asyncio.Task[Any]) -> bool:
    """Failed for any reason but that the cluster is missing, which it then has found out by itself."""
    error = work.exception()
    return error is not None and not isinstance(error, ExecutorUnavailable)


def _forget(work: asyncio.Task[Any]) -> None:
    if not work.cancelled():
        work.exception()  # Nobody else will ask for it.
