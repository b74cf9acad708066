"""One warm Spark session in the worker itself, shared by all attempts. Only this module speaks to Spark's JVM."""

# What PySpark does not offer, its JVM does; none of that has types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportMissingTypeStubs=false, reportOptionalCall=false

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.udf import UserDefinedFunction

from qo.config.spark import SparkSettings
from qo.errors import UsageError
from qo.spark.engine import archive, java, session
from qo.spark.engine.cluster_watch import Driver, Observation
from qo.spark.engine.endpoint import Reach, address_text, master_endpoints, probe_any
from qo.spark.engine.engine import Attempt, ClusterAway, Loss, Progress
from qo.spark.engine.launching import ending, launching
from qo.spark.engine.master import cores
from qo.spark.engine.progress import Job, Meter, job_of
from qo.spark.patches import gateway
from qo.spark.patches.active import active

log = logging.getLogger(__name__)

LEAVING_S = 10.0
ABANDONED_S = 3.0  # To leave, for a JVM whose cluster is gone: it may wait for an answer that never comes.
PROBED_S = 5.0
DYNAMIC = "spark.dynamicAllocation.enabled"
# What a call to a JVM that is gone, or just going, may raise.
GONE = (Py4JError, OSError, AttributeError, TypeError)


@dataclass(frozen=True, slots=True)
class _Open:
    """An attempt whose thread has a session."""

    session: SparkSession
    slot: int
    lasting: bool
    meter: Meter = field(default_factory=Meter)


class ClassicEngine:
    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._spark: SparkSession | None = None
        # Of its JVM: each step on the way to them is a question to it, so the way is taken once.
        self._scala: Any = None
        self._sessions: Any = None
        self._properties: Any = None
        self._endpoints = master_endpoints(settings.master)
        self._scales_to_zero = False
        self._started_times = 0
        self._probed = -PROBED_S, Reach.UNKNOWN  # When the master was asked last.
        self._ours = False  # A session that was there before us is not ours to end.
        self._open: dict[Attempt, _Open] = {}
        # Whose session went with an earlier JVM, and what that died of: they learn it when another is there already.
        self._lost: dict[Attempt, Loss] = {}
        self._lock = threading.RLock()

    def start(self) -> None:
        with self._lock:
            if self.alive():
                return
            if self._spark is not None:
                log.warning("the Spark session is gone: starting another")
                self._discard(self._spark, self._current_loss() if self._open else Loss(None))
                self._spark = None
            if self._endpoints and self.reach() is not Reach.OPEN:
                # Spark would try for a minute before it says so.
                raise ClusterAway(f"the Spark master at {address_text(self._endpoints)} does not answer")
            self._ours = SparkContext._active_spark_context is None
            self._spark = self._started()
            if self._ours:
                _guard(self._spark)
                # All sessions share it, and so do those that somebody else makes of it.
                self._spark.sparkContext.stop = _refuse
            gateway.shorten(SparkContext._gateway._gateway_client)
            self._scala, self._sessions = self._spark.sparkContext._jsc.sc(), _classic(self._spark)
            self._properties = self._spark._jvm.java.util.Properties
            self._started_times += 1
            self._scales_to_zero = self._scala.getConf().getBoolean(DYNAMIC, False)

    def _started(self) -> SparkSession:
        found = java.find(self._settings, os.environ)
        os.environ.update(session.environment(self._settings, found))
        builder = SparkSession.builder
        for key, value in session.conf(self._settings, found).items():
            builder = builder.config(key, value)
        archive.build_beside(found, self._settings)
        with _signals_kept(), launching():
            return builder.getOrCreate()

    @contextlib.contextmanager
    def session(self, attempt: Attempt, *, lasting: bool = False) -> Generator[SparkSession]:
        self.start()
        opened = self._enter(attempt, lasting)
        try:
            with active(opened.session):
                yield opened.session
        finally:
            with contextlib.suppress(*GONE):
                self._leave(attempt, opened)

    def _enter(self, attempt: Attempt, lasting: bool) -> _Open:
        """Settings, temporary views and functions of its own; jobs that are known by the attempt's tag."""
        with self._lock:
            if self._spark is None:
                raise ClusterAway("the Spark session was closed")
            taken = {each.slot for each in self._open.values()}
            slot = next(number for number in range(len(taken) + 1) if number not in taken)
            opened = self._open[attempt] = _Open(self._made(attempt), slot, lasting)
        context = opened.session.sparkContext
        # Pools are never taken down: one for each task would fill the memory.
        context.setLocalProperty("spark.scheduler.pool", f"pool-{slot}")
        # By the group, jobs can be ended that have not begun yet; the tag also reaches those of a stream.
        context.setJobGroup(attempt.tag, attempt.tag, interruptOnCancel=True)
        context.addJobTag(attempt.tag)
        self._sessions.setActiveSession(opened.session._jsparkSession)
        return opened

    def _made(self, attempt: Attempt) -> SparkSession:
        assert self._spark is not None
        try:
            return _guard(self._spark.newSession())
        except GONE:
            if not self.alive():
                self._lost[attempt] = self._current_loss()
            raise

    def _leave(self, attempt: Attempt, opened: _Open) -> None:
        # Pool, group and tags, and whatever an operator has set beside them.
        self._scala.setLocalProperties(self._properties())
        self._sessions.clearActiveSession()
        with self._lock:
            if self._open.get(attempt) is opened:
                del self._open[attempt]
            if self._ours and all(each.lasting for each in self._open.values()):
                # What operators have cached and not let go is known to all sessions: it goes when nobody can be using
                # it. Nobody enters meanwhile; streams, which never leave, keep nothing that way.
                opened.session.catalog.clearCache()

    def stop(self, attempt: Attempt) -> None:
        # A stream is stopped by who has begun it. To ask a session for its streams would give each a listener that the
        # context keeps for good.
        if self._spark is None:
            return
        with contextlib.suppress(*GONE):
            self._scala.cancelJobGroupAndFutureJobs(attempt.tag, f"{attempt.tag} was stopped")
            self._scala.cancelJobsWithTag(attempt.tag, f"{attempt.tag} was stopped")

    def progress(self, attempt: Attempt) -> Progress | None:
        opened = self._open.get(attempt)
        if opened is None:
            return None
        context = opened.session.sparkContext
        tracker = context.statusTracker()

        def ask(number: int) -> Job | None:
            info = tracker.getJobInfo(number)
            if info is None:
                return None
            return job_of(info, {stage: tracker.getStageInfo(stage) for stage in info.stageIds})

        try:
            known = list(self._scala.statusTracker().getJobIdsForTag(attempt.tag))
            return opened.meter.read(known, ask)
        except GONE:
            return None

    def alive(self) -> bool:
        if self._spark is None:
            return False
        try:
            process = _process()
            return (process is None or process.poll() is None) and not self._scala.isStopped()
        except GONE:
            return False

    def ui(self) -> str | None:
        return None if self._spark is None else self._spark.sparkContext.uiWebUrl

    def loss(self, attempt: Attempt) -> Loss | None:
        if attempt in self._lost:
            return self._lost.pop(attempt)
        if self.alive():
            return None
        self._open.pop(attempt, None)  # It could not leave, and has heard of it.
        return self._current_loss()

    def _current_loss(self) -> Loss:
        """Of the session that is not alive any more."""
        with contextlib.suppress(*GONE):
            # Nobody in this process may stop it: on a cluster, that is what becomes of a removed application.
            if self.has_cluster and self._scala.isStopped():
                return Loss("the cluster has ended its application", by_cluster=True)
        return Loss(ending(_process()))

    @property
    def has_cluster(self) -> bool:
        return cores(self._settings.master) is None

    @property
    def cluster_name(self) -> str:
        return self._settings.master

    @property
    def scales_to_zero(self) -> bool:
        return self._scales_to_zero

    def observe(self) -> Observation | None:
        if self._spark is None:
            return None
        process, number = _process(), self._started_times
        try:
            if process is not None and process.poll() is not None:
                return Observation(time.monotonic(), driver=Driver.DEAD, session=number)
            if self._scala.isStopped():
                return Observation(time.monotonic(), driver=Driver.STOPPED, session=number)
            jobs = len(self._scala.statusTracker().getActiveJobIds())
            executors = self._scala.getExecutorIds().size()
        except GONE:
            return None  # It is just going, or being replaced: the next look will tell.
        endpoint = self._recent_reach(PROBED_S if executors or not jobs else 0.0)
        return Observation(time.monotonic(), endpoint, executors, jobs, session=number)

    def _recent_reach(self, age_s: float) -> Reach:
        """A master writes a line in its log for each connection: it is asked often only when something is missing."""
        now = time.monotonic()
        if now - self._probed[0] > age_s:
            self._probed = now, self.reach()
        return self._probed[1]

    def reach(self) -> Reach:
        return probe_any(self._endpoints)

    def abandon(self) -> None:
        with self._lock:
            spark = self._spark
            if spark is None or not self._ours:
                return
            loss = Loss("its cluster was lost", by_cluster=True) if self.alive() else self._current_loss()
            self._discard(spark, loss, within_s=ABANDONED_S)
            self._spark = None

    def close(self) -> None:
        with self._lock:
            spark, self._spark = self._spark, None
            if spark is None or not self._ours:
                return
            _unguard(spark)
            _stop_within(spark, LEAVING_S)
            self._discard(spark, Loss("it was closed"))
            shutil.rmtree(session.scratch(), ignore_errors=True)

    def _discard(self, spark: SparkSession, loss: Loss, *, within_s: float = LEAVING_S) -> None:
        """End the JVM, whatever state it is in, and make PySpark forget it."""
        self._lost |= dict.fromkeys(list(self._open), loss)
        self._open.clear()
        self._scala = self._sessions = self._properties = None
        _unguard(spark)
        context, gateway, process = spark.sparkContext, SparkContext._gateway, _process()
        context._jsc = None  # Nothing in there is to be spoken to any more.
        with contextlib.suppress(*GONE):
            context.stop()
        if process is not None:
            _ended(process, within_s)
        with contextlib.suppress(*GONE):
            gateway.shutdown()
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        for each in gc.get_objects():
            # Functions of operators' modules keep what they were in the JVM that is gone.
            if isinstance(each, UserDefinedFunction):
                each._judf_placeholder = None


def _guard(spark: SparkSession) -> SparkSession:
    """Scripts stop their session at the end. An operator that does would end the tasks of all others, too."""
    spark.stop = _refuse
    return spark


def _refuse() -> None:
    raise UsageError("an operator must not stop the Spark session: the worker's other tasks run in it")


def _unguard(spark: SparkSession) -> None:
    vars(spark.sparkContext).pop("stop", None)


def _classic(spark: SparkSession) -> Any:
    """Spark's own class. A thread that PySpark did not make has no active session until it is told."""
    return spark._jvm.org.apache.spark.sql.classic.SparkSession


def _process() -> subprocess.Popen[bytes] | None:
    return getattr(SparkContext._gateway, "proc", None)


def _stop_within(spark: SparkSession, seconds: float) -> None:
    """Stop it in good order, if that goes: it does not come to an end while its cluster does not answer."""

    def stop() -> None:
        with contextlib.suppress(*GONE):
            SparkSession.stop(spark)

    stopping = threading.Thread(target=stop, name="qo-spark-leave", daemon=True)
    stopping.start()
    stopping.join(seconds)


def _ended(process: subprocess.Popen[bytes], within_s: float) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # It ends when nobody can speak to it any more.
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _signals_kept() -> Generator[None]:
    """PySpark takes the interrupt of the main thread to itself; it is the worker's."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if main and before is not None:
            signal.signal(signal.SIGINT, before)
