"""Runs the operators of the Spark runtime: one warm engine, a thread for each attempt.

    inputs -> operator -> files -> expectations -> (the agent completes)

An attempt writes below its own prefix only, so nothing of it is visible before the dispatcher has accepted it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from qo.agent.operator_run import Run
from qo.agent.operators import Executor, ExecutorUnavailable, Threads, on_thread
from qo.api.contract.task import Work
from qo.config.settings import Settings
from qo.config.spark import OWN_SERVER, BucketAccess
from qo.errors import QoError
from qo.spark.engine.engine import Attempt, ClusterAway, Engine, open_engine
from qo.spark.engine.error_translation import SessionLost, explain, from_spark, full_text, short_text
from qo.spark.engine.supervisor import Supervisor
from qo.spark.io import input_frames
from qo.spark.io.bucket import bucket_access, spark_settings
from qo.spark.io.files import Files, files_for, find_file_problem
from qo.spark.operators.calling import call, is_built_in
from qo.spark.operators.operator_context import Context, Inputs
from qo.spark.operators.shipping import Shipper
from qo.spark.outputs import check_expectations, result_of, write_outputs
from qo.spark.phases import Phases, progress_body
from qo.spark.stream import stream
from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.loop.cancel import Stopped, Why

log = logging.getLogger(__name__)

PROGRESS_S = 1.0
STOP_AGAIN_S = 0.25  # An operator that goes on after its jobs were ended may start new ones: end them, too.
STOP_S = 10.0  # Then its thread is left running; nobody will read what it still writes.
GIVE_BACK_S = 2.0  # The delay of an attempt that was given back because the cluster was lost.
WAIT_STEP_S = 0.1  # While an attempt waits for the cluster.
# How often a task is given back at no cost when the cluster is lost while it runs. A task that loses the cluster each
# time may be the cause, and would go on for ever.
FREE_LOSSES_MAX = 5
TASKS_MAX = 1_000  # Tasks whose losses are counted.


class SparkExecutor:
    def __init__(self, settings: Settings, engine: Engine | None = None) -> None:
        self._settings = settings
        self._engine = engine or open_engine(spark_settings(settings))
        self._shipper = Shipper() if runs_remotely(settings) else None
        # Threads are reused: each new one in Python also starts one in Java.
        self._attempts = Threads("qo-spark-attempt")
        self._losses: dict[str, int] = {}  # By task.
        self._on_ui: Callable[[str], None] | None = None
        self._supervisor = Supervisor(
            self._engine, settings.spark.lost_after_s, on_start=lambda: self._report_ui(self._engine.ui())
        )
        self._supervisor.start()
        self._progress_thread = ThreadPoolExecutor(1, thread_name_prefix="qo-spark-progress")
        self._stop_thread = ThreadPoolExecutor(1, thread_name_prefix="qo-spark-stop")

    @property
    def is_scoped(self) -> bool:
        """s3a keeps one file system, with one set of credentials, for all attempts of a session."""
        return bucket_access(self._settings) is BucketAccess.PYTHON

    async def execute(self, run: Run) -> None:
        """Run an attempt to its end. If cancelled, end its Spark jobs, and only those, before returning.

        Raises ExecutorUnavailable when the cluster was lost meanwhile, or does not come.
        """
        attempt = Attempt(run.work.task_id, run.work.attempt)
        phases = Phases()
        missing: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._supervisor.register(attempt, _resolver(missing))
        work = asyncio.create_task(on_thread(self._run_attempt, run, attempt, phases, begin=self._attempts.begin))
        reporting: list[asyncio.Task[None]] = []

        def start_reporting() -> None:
            reporting.append(asyncio.create_task(self._report_progress(run, attempt, phases)))

        # Most attempts end before the first report.
        timer = asyncio.get_running_loop().call_later(PROGRESS_S, start_reporting)
        try:
            await asyncio.wait({work, missing}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._wind_down(attempt, work)
            if missing.done() and (not work.done() or _failed_otherwise(work)):
                raise self._give_back_error(attempt, missing.result(), lost=self._supervisor.away is not None)
            await work
            self._losses.pop(attempt.task_id, None)
            if "waiting" in phases.progress or (attempt.number > 1 and not phases.progress):
                # The last report, perhaps of an earlier attempt, would stay otherwise.
                run.progress(progress_body("done", None))
        except asyncio.CancelledError:
            await self._wind_down(attempt, work)
            if run.cancel.why is Why.TIMEOUT and (reason := self._supervisor.missing) is not None:
                raise ExecutorUnavailable(GIVE_BACK_S, reason) from None
            raise
        finally:
            self._supervisor.unregister(attempt)
            timer.cancel()
            for each in reporting:
                each.cancel()
            await asyncio.gather(*reporting, return_exceptions=True)

    def warm(self, on_ui: Callable[[str], None] | None = None) -> None:
        """Start the engine in the background, so that the first task finds it ready. A failure is only logged: the
        first task will meet it again.

        ``on_ui`` is called with the address of Spark's own interface, if there is one, on another thread.
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
            log.warning("Spark has not started: %s; the first task tries again", error)
            return
        log.info("Spark is ready after %.1f s", time.perf_counter() - began)
        self._report_ui(ui)

    def _report_ui(self, ui: str | None) -> None:
        if ui is not None:
            log.info("Spark's UI is at %s", ui)
            if self._on_ui is not None:
                self._on_ui(ui)

    def close(self) -> None:
        self._supervisor.close()
        self._progress_thread.shutdown(wait=False, cancel_futures=True)
        self._stop_thread.shutdown(wait=False, cancel_futures=True)
        if self._shipper is not None:
            self._shipper.close()
        self._engine.close()

    async def _wind_down(self, attempt: Attempt, work: asyncio.Task[Any]) -> None:
        """End the attempt's Spark jobs until its thread ends, at most for ``STOP_S``. Ignores further cancellations."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_S
        stopping: asyncio.Future[None] | None = None
        while not work.done() and loop.time() < deadline:
            if stopping is None or stopping.done():
                stopping = loop.run_in_executor(self._stop_thread, self._stop, attempt)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({work}, timeout=STOP_AGAIN_S)
        if not work.done():
            log.warning("%s still runs after its Spark jobs were ended: its thread is abandoned", attempt.tag)
        work.add_done_callback(_discard_result)

    def _stop(self, attempt: Attempt) -> None:
        try:
            self._engine.stop(attempt)
        except Exception as error:
            log.warning("the Spark jobs of %s could not be ended: %s", attempt.tag, short_text(error))

    async def _report_progress(self, run: Run, attempt: Attempt, phases: Phases) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                progress = await loop.run_in_executor(self._progress_thread, self._engine.progress, attempt)
            except Exception as error:
                log.debug("no progress of %s: %s", attempt.tag, error)
            else:
                phases.progress = progress_body(phases.now, progress, self._supervisor.missing)
                run.progress(phases.progress)
            await asyncio.sleep(PROGRESS_S)

    def _run_attempt(self, run: Run, attempt: Attempt, phases: Phases) -> None:
        """Run an attempt on its own thread."""
        try:
            with contextlib.ExitStack() as later:
                with phases("start"):
                    spark = self._enter_session(run, attempt, later)
                files = files_for(self._settings, data_root(run), run.credentials)
                run.cancel.check()
                self._run_operator(run, spark, files, later, phases)
        except BaseException as error:
            translated = self._translate_error(error, run.work, attempt)
            if translated is error:
                raise
            raise translated from None

    def _enter_session(self, run: Run, attempt: Attempt, later: contextlib.ExitStack) -> SparkSession:
        """Open a session, and wait for the cluster while it is away. Raises ExecutorUnavailable after ``hold_s``.

        By waiting, a worker without a cluster holds as many tasks as it has slots, instead of claiming and giving back
        all there are.
        """
        lasting = not run.work.inputs  # A task without inputs is an always-on source.
        until = time.monotonic() + self._supervisor.hold_s
        while True:
            while (reason := self._supervisor.away) is not None:
                if time.monotonic() >= until:
                    raise ExecutorUnavailable(GIVE_BACK_S, reason)
                run.cancel.wait(WAIT_STEP_S)
                run.cancel.check()
            try:
                return later.enter_context(self._engine.session(attempt, lasting=lasting))
            except ClusterAway as away:
                if not self._engine.has_cluster:
                    raise
                self._supervisor.mark_away(str(away))

    def _give_back_error(self, attempt: Attempt, reason: str, *, lost: bool) -> Exception:
        """Return the error for an attempt whose cluster was lost, or has no executors for it."""
        if not lost:
            return ExecutorUnavailable(GIVE_BACK_S, reason)
        times = self._losses[attempt.task_id] = self._losses.pop(attempt.task_id, 0) + 1
        if len(self._losses) > TASKS_MAX:
            del self._losses[next(iter(self._losses))]
        if times > FREE_LOSSES_MAX:
            return SessionLost(f"{reason}; {times} times in a row while this task ran, which may be the cause")
        return ExecutorUnavailable(GIVE_BACK_S, reason)

    def _translate_error(self, error: BaseException, work: Work, attempt: Attempt) -> BaseException:
        if isinstance(error, Stopped | ExecutorUnavailable) or not isinstance(error, Exception):
            return error
        is_ours = isinstance(error, QoError | Reject | Reschedule | Retry)
        loss = None if is_ours else self._engine.loss(attempt)
        if loss is not None and loss.by_cluster:
            return self._give_back_error(attempt, f"the Spark session was lost: {loss.why}", lost=True)
        if loss is not None:
            why = loss.why or short_text(error)
            lost = SessionLost(f"the Spark session was lost, and the next attempt gets another: {why}")
            return lost.with_traceback(error.__traceback__)
        translated = self._explain(error, work)
        if isinstance(translated, SessionLost) and self._settings.spark.remote not in (None, OWN_SERVER):
            # Another server was restarted in the meantime.
            return self._give_back_error(attempt, str(translated), lost=True)
        return translated

    def _explain(self, error: Exception, work: Work) -> BaseException:
        names = {each.dataset_id: each.name for each in work.inputs}
        of_input = (
            input_frames.input_error(error, names)
            if from_spark(error) and is_about_file_of(error, names)
            else None
        )
        return explain(error) if of_input is None else of_input.with_traceback(error.__traceback__)

    def _run_operator(
        self, run: Run, spark: SparkSession, files: Files, later: contextlib.ExitStack, phases: Phases
    ) -> None:
        def open_input(name: str) -> DataFrame:
            with phases("read"):
                return input_frames.read_input(spark, run.input(name), files)

        inputs = Inputs(list(run.inputs), open_input)
        context = Context(spark, run, inputs, run.config, files, self._settings, later)
        with phases("operator"):
            if self._shipper is not None and not is_built_in(run.work.operator):
                self._shipper.ship(spark, run.code, run.work.operator)
            frames = call(context)
        try:
            if stream.is_stream(frames):
                with phases("stream"):
                    stream.run(context, frames)
                return
            written_outputs = write_outputs(context, frames, phases)
        except Exception as error:
            for diagnose in context.diagnoses:
                if (better := diagnose(error)) is not None:
                    raise better from None
            raise
        with phases("quality"):
            check_expectations(context, written_outputs)
        run.result = result_of(written_outputs, context.details, phases)


def open_executor(settings: Settings, on_ui: Callable[[str], None] | None) -> Executor:
    """Open the executor of a worker, and start its session, which takes seconds, before the first task comes."""
    executor = SparkExecutor(settings)
    executor.warm(on_ui)
    return executor


def is_about_file_of(error: BaseException, datasets: Iterable[str]) -> bool:
    """Whether a file of one of these datasets is at fault. Other files have no commit that could be made again."""
    problem = find_file_problem(full_text(error))
    return problem is not None and any(f"/{each}/" in problem.uri for each in datasets)


def runs_remotely(settings: Settings) -> bool:
    """Whether Python functions run in processes that do not see this one's directory."""
    return settings.spark.remote is not None or not settings.spark.master.startswith("local")


def data_root(run: Run) -> str:
    """Return a location of the task's data: the prefix of an output, else the location of an input."""
    if run.work.outputs:
        return run.work.outputs[0].prefix
    locations = (piece.location for each in run.inputs.values() for piece in each.pieces if piece.location)
    return next(locations, "file:/")


def _resolver(future: asyncio.Future[str]) -> Callable[[str], None]:
    """Return a function that sets the result from any thread, unless the future is done or its loop is closed."""
    loop = asyncio.get_running_loop()

    def resolve(value: str) -> None:
        if not future.done():
            future.set_result(value)

    def resolve_from_any_thread(value: str) -> None:
        with contextlib.suppress(RuntimeError):  # The loop was closed.
            loop.call_soon_threadsafe(resolve, value)

    return resolve_from_any_thread


def _failed_otherwise(work: asyncio.Task[Any]) -> bool:
    """Whether the attempt failed for another reason than a missing cluster."""
    error = work.exception()
    return error is not None and not isinstance(error, ExecutorUnavailable)


def _discard_result(work: asyncio.Task[Any]) -> None:
    if not work.cancelled():
        work.exception()  # Retrieved, or asyncio would log it.
