"""The engine with one warm Spark context in the worker itself, shared by all attempts.

Only this module calls Spark's JVM for what PySpark does not offer.
"""

# Spark's JVM, through py4j, has no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportMissingTypeStubs=false, reportOptionalCall=false

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from qo.agent.logs.capture import current_log, outside_logs
from qo.config.spark import SparkSettings
from qo.spark.engine import class_archive, driver_log, java, session
from qo.spark.engine.cluster_watch import Driver, Observation
from qo.spark.engine.endpoint import Reach, address_text, master_endpoints, probe_any
from qo.spark.engine.engine import Attempt, ClusterAway, Loss, Progress
from qo.spark.engine.jvm_exit import exit_reason
from qo.spark.engine.master import local_cores
from qo.spark.engine.progress import Job, Meter, job_of
from qo.spark.patches import private_state, table
from qo.spark.patches.active_session import session_of_thread
from qo.spark.patches.stop_guard import allow_stop

log = logging.getLogger(__name__)

CLOSE_S = 10.0
ABANDON_S = 3.0  # For a JVM whose cluster is gone: it may wait for an answer that never comes.
REACH_AGE_S = 5.0
DYNAMIC = "spark.dynamicAllocation.enabled"
# What a call to a JVM that has ended, or is about to, may raise.
JVM_ERRORS = (Py4JError, OSError, AttributeError, TypeError)


@dataclass(frozen=True, slots=True)
class _OpenSession:
    """The session of an attempt that is running."""

    session: SparkSession
    slot: int
    lasting: bool
    meter: Meter = field(default_factory=Meter)


class ClassicEngine:
    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._spark: SparkSession | None = None
        # Objects in the JVM. Each step of the path to one is a call, so they are looked up once per JVM.
        self._scala: Any = None
        self._sessions: Any = None
        self._properties: Any = None
        self._thread_context: Any = None
        self._endpoints = master_endpoints(settings.master)
        self._scales_to_zero = False
        self._starts = 0
        self._last_reach = -REACH_AGE_S, Reach.UNKNOWN  # When the master was probed last, and the answer.
        self._owns_context = False  # A context that existed before this engine is not its to end.
        self._open: dict[Attempt, _OpenSession] = {}
        # Attempts whose session ended with an earlier JVM, and why. They may ask when another JVM runs already.
        self._lost: dict[Attempt, Loss] = {}
        self._lock = threading.RLock()

    def start(self) -> None:
        with self._lock:
            if self.alive():
                return
            if self._spark is not None:
                log.warning("the Spark session has ended: starting another")
                self._discard(self._spark, self._current_loss() if self._open else Loss(None))
                self._spark = None
            if self._endpoints and self.reach() is not Reach.OPEN:
                # Spark itself would try for a minute.
                raise ClusterAway(f"the Spark master at {address_text(self._endpoints)} does not answer")
            self._owns_context = SparkContext._active_spark_context is None
            self._spark = self._start_session()
            if self._owns_context:
                self._forbid_stop(self._spark)
                # All sessions share the context, also those that an operator makes.
                self._forbid_stop(self._spark.sparkContext)
            table.LOOKUP_CACHE.apply_if_enabled(self._settings, SparkContext._gateway._gateway_client)
            table.SCALAR_CONVERTER.apply_if_enabled(self._settings)
            table.ACTIVE_SESSION.apply_if_enabled(self._settings)
            self._scala, self._sessions = self._spark.sparkContext._jsc.sc(), _session_class(self._spark)
            self._properties = self._spark._jvm.java.util.Properties
            self._thread_context = self._spark._jvm.org.apache.logging.log4j.ThreadContext
            self._starts += 1
            self._scales_to_zero = self._scala.getConf().getBoolean(DYNAMIC, False)

    def _start_session(self) -> SparkSession:
        home = java.find(self._settings, os.environ)
        os.environ.update(session.environment(self._settings, home))
        builder = SparkSession.builder
        conf = driver_log.with_driver_log(session.conf(self._settings, home), _log_directory())
        for key, value in conf.items():
            builder = builder.config(key, value)
        class_archive.build_in_background(home, self._settings)
        launch = table.LAUNCH.apply() if table.LAUNCH.is_enabled(self._settings) else contextlib.nullcontext()
        with _restored_sigint(), launch, outside_logs():  # The JVM outlives the attempt that happens to start it.
            return builder.getOrCreate()

    def _forbid_stop(self, target: SparkSession | SparkContext) -> None:
        table.STOP_GUARD.apply_if_enabled(self._settings, target)

    @contextlib.contextmanager
    def session(self, attempt: Attempt, *, lasting: bool = False) -> Generator[SparkSession]:
        self.start()
        entry = self._enter(attempt, lasting)
        try:
            with session_of_thread(entry.session):
                yield entry.session
        finally:
            with contextlib.suppress(*JVM_ERRORS):
                self._leave(attempt, entry)

    def _enter(self, attempt: Attempt, lasting: bool) -> _OpenSession:
        """Open a session with its own settings, temporary views and functions; its jobs carry the attempt's tag."""
        with self._lock:
            if self._spark is None:
                raise ClusterAway("the Spark session was closed")
            slots = {each.slot for each in self._open.values()}
            slot = next(number for number in range(len(slots) + 1) if number not in slots)
            entry = self._open[attempt] = _OpenSession(self._new_session(attempt), slot, lasting)
        context = entry.session.sparkContext
        # Spark never removes a pool: one for each task would fill the memory.
        context.setLocalProperty("spark.scheduler.pool", f"pool-{slot}")
        # The group also cancels jobs that have not begun yet; the tag also reaches those of a stream.
        context.setJobGroup(attempt.tag, attempt.tag, interruptOnCancel=True)
        context.addJobTag(attempt.tag)
        self._sessions.setActiveSession(entry.session._jsparkSession)
        if (attempt_log := current_log()) is not None and self._owns_context:
            context.setLocalProperty(driver_log.KEY, attempt.tag)  # For its tasks; this one for its own thread.
            self._thread_context.put(driver_log.KEY, attempt.tag)
            attempt_log.follow(driver_log.DriverLines(_log_directory(), attempt.tag))
        return entry

    def _new_session(self, attempt: Attempt) -> SparkSession:
        assert self._spark is not None
        try:
            new = self._spark.newSession()
            self._forbid_stop(new)
            return new
        except JVM_ERRORS:
            if not self.alive():
                self._lost[attempt] = self._current_loss()
            raise

    def _leave(self, attempt: Attempt, entry: _OpenSession) -> None:
        # Clear pool, group and tags, and whatever else an operator has set.
        self._scala.setLocalProperties(self._properties())
        self._sessions.clearActiveSession()
        with self._lock:
            if self._open.get(attempt) is entry:
                del self._open[attempt]
            if self._owns_context and all(each.lasting for each in self._open.values()):
                # Frames that operators cached and did not release are visible to all sessions: clear them while no
                # attempt can be using them. The lock keeps new ones out; streams, which never leave, cache nothing.
                entry.session.catalog.clearCache()

    def stop(self, attempt: Attempt) -> None:
        # The attempt itself stops its stream. Asking a session for its streams would add a listener to the context
        # each time, which it never removes.
        if self._spark is None:
            return
        with contextlib.suppress(*JVM_ERRORS):
            self._scala.cancelJobGroupAndFutureJobs(attempt.tag, f"{attempt.tag} was stopped")
            self._scala.cancelJobsWithTag(attempt.tag, f"{attempt.tag} was stopped")

    def progress(self, attempt: Attempt) -> Progress | None:
        entry = self._open.get(attempt)
        if entry is None:
            return None
        context = entry.session.sparkContext
        tracker = context.statusTracker()

        def ask(number: int) -> Job | None:
            info = tracker.getJobInfo(number)
            if info is None:
                return None
            return job_of(info, {stage: tracker.getStageInfo(stage) for stage in info.stageIds})

        try:
            job_ids = list(self._scala.statusTracker().getJobIdsForTag(attempt.tag))
            return entry.meter.read(job_ids, ask)
        except JVM_ERRORS:
            return None

    def alive(self) -> bool:
        if self._spark is None:
            return False
        try:
            process = _process()
            return (process is None or process.poll() is None) and not self._scala.isStopped()
        except JVM_ERRORS:
            return False

    def ui(self) -> str | None:
        return None if self._spark is None else self._spark.sparkContext.uiWebUrl

    def loss(self, attempt: Attempt) -> Loss | None:
        if attempt in self._lost:
            return self._lost.pop(attempt)
        if self.alive():
            return None
        self._open.pop(attempt, None)  # It could not leave, and learns of its loss now.
        return self._current_loss()

    def _current_loss(self) -> Loss:
        """Return why the session that is no longer alive has ended."""
        with contextlib.suppress(*JVM_ERRORS):
            # Nothing in this process may stop it: the cluster has removed the application.
            if self.has_cluster and self._scala.isStopped():
                return Loss("the cluster has ended its application", by_cluster=True)
        return Loss(exit_reason(_process()))

    @property
    def has_cluster(self) -> bool:
        return local_cores(self._settings.master) is None

    @property
    def cluster_name(self) -> str:
        return self._settings.master

    @property
    def scales_to_zero(self) -> bool:
        return self._scales_to_zero

    def observe(self) -> Observation | None:
        if self._spark is None:
            return None
        process, number = _process(), self._starts
        try:
            if process is not None and process.poll() is not None:
                return Observation(time.monotonic(), driver=Driver.DEAD, session=number)
            if self._scala.isStopped():
                return Observation(time.monotonic(), driver=Driver.STOPPED, session=number)
            jobs = len(self._scala.statusTracker().getActiveJobIds())
            executors = self._scala.getExecutorIds().size()
        except JVM_ERRORS:
            return None  # The JVM is ending or being replaced: the next observation will tell.
        endpoint = self._recent_reach(REACH_AGE_S if executors or not jobs else 0.0)
        return Observation(time.monotonic(), endpoint, executors, jobs, session=number)

    def _recent_reach(self, age_s: float) -> Reach:
        """Return how the master was reached within the last ``age_s``.

        A master logs every connection, so it is probed often only while something is missing.
        """
        now = time.monotonic()
        if now - self._last_reach[0] > age_s:
            self._last_reach = now, self.reach()
        return self._last_reach[1]

    def reach(self) -> Reach:
        return probe_any(self._endpoints)

    def abandon(self) -> None:
        with self._lock:
            spark = self._spark
            if spark is None or not self._owns_context:
                return
            loss = Loss("its cluster was lost", by_cluster=True) if self.alive() else self._current_loss()
            self._discard(spark, loss, within_s=ABANDON_S)
            self._spark = None

    def close(self) -> None:
        with self._lock:
            spark, self._spark = self._spark, None
            if spark is None or not self._owns_context:
                return
            allow_stop(spark.sparkContext)
            _stop_within(spark, CLOSE_S)
            self._discard(spark, Loss("it was closed"))
            shutil.rmtree(session.scratch(), ignore_errors=True)

    def _discard(self, spark: SparkSession, loss: Loss, *, within_s: float = CLOSE_S) -> None:
        """End the JVM, whatever state it is in, and make PySpark forget it."""
        self._lost |= dict.fromkeys(list(self._open), loss)
        self._open.clear()
        self._scala = self._sessions = self._properties = self._thread_context = None
        context, gateway, process = spark.sparkContext, SparkContext._gateway, _process()
        allow_stop(context)
        private_state.detach_context(context)
        with contextlib.suppress(*JVM_ERRORS):
            context.stop()
        if process is not None:
            _end_process(process, within_s)
        with contextlib.suppress(*JVM_ERRORS):
            gateway.shutdown()
        private_state.forget_jvm()


def _session_class(spark: SparkSession) -> Any:
    """Return Spark's own class, which sets the active session of a thread that PySpark did not start."""
    return spark._jvm.org.apache.spark.sql.classic.SparkSession


def _log_directory() -> Path:
    return session.scratch() / "logs"


def _process() -> subprocess.Popen[bytes] | None:
    return getattr(SparkContext._gateway, "proc", None)


def _stop_within(spark: SparkSession, seconds: float) -> None:
    """Stop the context in good order, or give up: stopping hangs while the cluster does not answer."""

    def stop() -> None:
        with contextlib.suppress(*JVM_ERRORS):
            SparkSession.stop(spark)

    stopping = threading.Thread(target=stop, name="qo-spark-leave", daemon=True)
    stopping.start()
    stopping.join(seconds)


def _end_process(process: subprocess.Popen[bytes], within_s: float) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # The JVM ends when its standard input does.
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _restored_sigint() -> Generator[None]:
    """Undo that PySpark replaces the handler of SIGINT, which is the worker's."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if main and before is not None:
            signal.signal(signal.SIGINT, before)
