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

from qo.config.settings import Settings
from qo.core.flow.expectation import in_words, parsed
from qo.dispatcher.contract.task import Work
from qo.errors import QoError
from qo.runner.operators import Executor, Threads, on_thread
from qo.runner.run import Run
from qo.spark import quality, reading, stream, writing
from qo.spark.bucket import spark_settings
from qo.spark.engine import Attempt, Engine, Progress, open_engine
from qo.spark.errors import SessionLost, explained, from_spark, full_text, short_text
from qo.spark.files import Files, files_for, trouble
from qo.spark.operators.calling import BUILT_IN, call
from qo.spark.operators.context import Context, Frames, Inputs
from qo.spark.operators.shipping import Shipper
from qo.spark.writing import Written
from qo.worker.cancel import Stopped
from qo.worker.signals import Reject, Reschedule, Retry

log = logging.getLogger(__name__)

PROGRESS_S = 1.0
STOP_AGAIN_S = 0.25  # An operator that goes on after its jobs were ended starts new ones: end them, too.
STOP_S = 10.0  # Then its thread is left behind: what it still writes, nobody will read.


class SparkExecutor:
    def __init__(self, settings: Settings, engine: Engine | None = None) -> None:
        self._settings = settings
        self._engine = engine or open_engine(spark_settings(settings))
        self._shipper = Shipper() if is_far(settings) else None
        # Threads that stay: to begin one for each attempt, or each question, would also begin one in Java.
        self._attempts = Threads("qo-spark-attempt")
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="qo-spark-progress")
        self._stopping = ThreadPoolExecutor(1, thread_name_prefix="qo-spark-stop")

    async def execute(self, run: Run) -> None:
        """Run to the end. Cancelled: its Spark jobs are ended before this returns, and those of others are not."""
        attempt = Attempt(run.work.task_id, run.work.attempt)
        phases = Phases()
        work = asyncio.create_task(on_thread(self._attempt, run, attempt, phases, begin=self._attempts.begin))
        telling: list[asyncio.Task[None]] = []

        def tell() -> None:
            telling.append(asyncio.create_task(self._tell(run, attempt, phases)))

        # Most are over before there is much to tell.
        slow = asyncio.get_running_loop().call_later(PROGRESS_S, tell)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await self._wind_down(attempt, work)
            raise
        finally:
            slow.cancel()
            for each in telling:
                each.cancel()
            await asyncio.gather(*telling, return_exceptions=True)

    def warm(self, on_ui: Callable[[str], None] | None = None) -> None:
        """Begin to start the engine, so that the first task finds it ready. What fails, the first task will tell.

        ``on_ui``: is given the address of Spark's own interface, if there is one, on another thread.
        """
        threading.Thread(target=self._start, args=(on_ui,), name="qo-spark-warm", daemon=True).start()

    def _start(self, on_ui: Callable[[str], None] | None) -> None:
        began = time.perf_counter()
        try:
            self._engine.start()
            ui = self._engine.ui()
        except Exception as error:
            log.warning("Spark has not started: %s", error)
            return
        log.info("Spark is ready after %.1f s", time.perf_counter() - began)
        if ui is not None:
            log.info("Spark's UI is at %s", ui)
            if on_ui is not None:
                on_ui(ui)

    def close(self) -> None:
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
                run.progress(told(phases.now, known))
            await asyncio.sleep(PROGRESS_S)

    def _attempt(self, run: Run, attempt: Attempt, phases: Phases) -> None:
        """On the attempt's own thread."""
        try:
            with contextlib.ExitStack() as later:
                with phases("start"):
                    lasting = not run.work.inputs  # Of sources only the ones that are always on have tasks.
                    spark = later.enter_context(self._engine.session(attempt, lasting=lasting))
                files = files_for(self._settings, root_of(run))
                run.cancel.check()
                self._carry_out(run, spark, files, later, phases)
        except BaseException as error:
            meant = self._meant(error, run.work, attempt)
            if meant is error:
                raise
            raise meant from None

    def _meant(self, error: BaseException, work: Work, attempt: Attempt) -> BaseException:
        said_enough = isinstance(error, QoError | Stopped | Reject | Reschedule | Retry)
        loss = None if said_enough or not isinstance(error, Exception) else self._engine.loss(attempt)
        if loss is not None:
            why = loss.why or short_text(error)
            lost = SessionLost(f"the Spark session was lost, and the next attempt gets another: {why}")
            return lost.with_traceback(error.__traceback__)
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
            if self._shipper is not None and run.work.operator not in BUILT_IN:
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
    run, wanted = context.run, parsed(context.run.work.expectations)
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
    run, wanted = context.run, parsed(context.run.work.expectations)
    if not wanted:
        return
    run.checks = quality.settle(context.spark, run, wanted, written, context.inputs, context.files)
    failed = [each for each in run.checks if not each.passed and each.severity == "fail"]
    if failed:
        said = "; ".join(
            f"{each.name}: found {in_words(each.observed)}, expected {in_words(each.expected)}"
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


def told(phase: str, known: Progress | None) -> dict[str, Any]:
    """Progress as heartbeats carry it."""
    if known is None:
        return {"phase": phase}
    return {
        "phase": phase,
        "stages": {"done": known.stages_done, "total": known.stages},
        "tasks": {"done": known.tasks_done, "total": known.tasks, "active": known.active},
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


def _forget(work: asyncio.Task[Any]) -> None:
    if not work.cancelled():
        work.exception()  # Nobody else will ask for it.
