"""One session for many attempts: each has its own views and jobs, and is stopped alone."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from qo.errors import UsageError
from qo.spark.engine import class_archive, java
from qo.spark.engine.classic import ClassicEngine
from qo.spark.engine.engine import Attempt, Progress, open_engine
from support.cli.command import Qo
from support.spark import session
from support.spark.children import PARTS, SUMS, Child, Long, has_hardly_begun, until, worked_out

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture
def engine(spark: SparkSession) -> Iterator[ClassicEngine]:
    """On the session of all tests, which is not its own to end."""
    engine = ClassicEngine(session.SETTINGS)
    engine.start()
    yield engine
    engine.close()
    assert spark.range(3).count() == 3


def test_attempts_side_by_side_see_only_their_own(engine: ClassicEngine) -> None:
    both = threading.Barrier(2, timeout=60)

    def run(number: int) -> tuple[int, str | None, str | None]:
        with engine.session(Attempt("views", number)) as spark:
            spark.range(number).createOrReplaceTempView("mine")
            spark.conf.set("spark.sql.shuffle.partitions", number)
            both.wait()
            context = spark.sparkContext
            seen = spark.table("mine").count(), spark.conf.get("spark.sql.shuffle.partitions")
            both.wait()
            return *seen, context.getLocalProperty("spark.scheduler.pool")

    with ThreadPoolExecutor(2) as threads:
        (one, two) = threads.map(run, (1, 2))
        (three, four) = threads.map(run, (3, 4))
    assert [each[:2] for each in (one, two, three, four)] == [(1, "1"), (2, "2"), (3, "3"), (4, "4")]
    assert {one[2], two[2]} == {three[2], four[2]} == {"pool-0", "pool-1"}


def test_an_operator_that_asks_for_the_active_session_gets_its_own(engine: ClassicEngine) -> None:
    before = SparkSession.getActiveSession()
    both = threading.Barrier(2, timeout=60)

    def run(number: int) -> bool:
        with engine.session(Attempt("asking", number)) as spark:
            both.wait()
            spark.range(number).createOrReplaceTempView("mine")
            asked = SparkSession.getActiveSession()
            assert asked is not None
            assert asked.table("mine").count() == number
            both.wait()
            return asked is SparkSession.active() is spark

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, (1, 2))) == [True, True]
        assert threads.submit(SparkSession.getActiveSession).result() is None
    assert SparkSession.getActiveSession() is before


def test_an_operator_cannot_stop_the_session_of_all(engine: ClassicEngine) -> None:
    with engine.session(Attempt("stopper", 1)) as spark:
        with pytest.raises(UsageError, match="must not stop"):
            spark.stop()
        assert spark.range(3).count() == 3


def test_a_thread_is_left_as_it_was_found(engine: ClassicEngine) -> None:
    with engine.session(Attempt("left", 1)) as spark:
        spark.range(1).createOrReplaceTempView("left")
        context = spark.sparkContext
        context.setLocalProperty("an.operator.s", "own")
    assert not context.getJobTags()
    names = ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description", "an.operator.s")
    assert {context.getLocalProperty(name) for name in names} == {None}
    with engine.session(Attempt("left", 2)) as spark:
        assert not spark.catalog.tableExists("left")


def test_what_a_class_is_and_can_do_is_asked_once(
    engine: ClassicEngine, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembering: Any = SparkContext._gateway._gateway_client.send_command
    asked: list[str] = []

    def ask(command: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(command)
        return forward(command, *args, **kwargs)

    forward = remembering._send_command
    monkeypatch.setattr(remembering, "_send_command", ask)
    with engine.session(Attempt("asking", 1)):
        F.upper(F.lit("a"))
        asked.clear()
        F.upper(F.lit("b"))
    assert asked
    assert not [each for each in asked if each.startswith("r\n")]


def test_attempts_leave_nothing_behind_in_the_context(engine: ClassicEngine, spark: SparkSession) -> None:
    def run(number: int) -> None:
        attempt = Attempt("leaving", number)
        with engine.session(attempt) as session:
            session.range(1).count()
            engine.stop(Attempt("leaving", number + 100))

    def listeners() -> int:
        return spark.sparkContext._jsc.sc().listenerBus().listeners().size()

    run(1)
    before = listeners()
    for number in range(2, 6):
        run(number)
    assert listeners() == before


def test_what_an_attempt_has_cached_and_forgotten_goes_although_a_stream_goes_on(
    engine: ClassicEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_owns_context", True)
    with ThreadPoolExecutor(1) as other, engine.session(Attempt("stream", 1), lasting=True) as stream:

        def run() -> bool:
            with engine.session(Attempt("short", 1)) as session:
                forgotten = session.range(7).cache()
                forgotten.count()
                return forgotten.is_cached and cached()

        def cached() -> bool:
            return not stream._jsparkSession.sharedState().cacheManager().isEmpty()

        assert other.submit(run).result()
        assert not cached()
    monkeypatch.undo()


def test_a_stopped_attempt_ends_alone_and_begins_nothing_more(engine: ClassicEngine) -> None:
    stopped, other = Attempt("stopped", 1), Attempt("other", 1)
    first, second = Long(engine, stopped), Long(engine, other)
    engine.stop(stopped)
    engine.stop(stopped)
    assert "was stopped" in first.ended_by()
    assert second.thread.is_alive()
    with engine.session(stopped) as spark, pytest.raises(Exception, match="SPARK_JOB_CANCELLED"):
        spark.range(5).count()
    with engine.session(Attempt("stopped", 2)) as spark:
        assert spark.range(5).count() == 5
    assert second.thread.is_alive()
    assert has_hardly_begun(engine, other)  # What is small did not wait for what is large and came first.
    engine.stop(other)
    assert "was stopped" in second.ended_by()


def test_progress_counts_what_belongs_to_the_attempt(engine: ClassicEngine) -> None:
    attempt = Attempt("progress", 1)
    assert engine.progress(attempt) is None
    with engine.session(attempt) as spark:
        assert engine.progress(attempt) == Progress()
        spark.range(0, 100, numPartitions=5).foreach(print_nothing)
        done = Progress(stages_done=1, stages=1, tasks_done=5, tasks=5)
        assert until(lambda: engine.progress(attempt) == done)
    later = Attempt("progress", 2)
    running = Long(engine, later)
    told = engine.progress(later)
    assert told is not None
    assert (told.stages, told.stages_done, told.tasks) == (1, 0, PARTS)
    engine.stop(later)
    running.ended_by()


def print_nothing(row: object) -> None:
    pass


def test_what_spark_raises_is_raised_and_not_printed(engine: ClassicEngine) -> None:
    """PySpark would print it as well, with pages of Java."""
    open_engine(session.SETTINGS)
    heard = Heard()
    with engine.session(Attempt("raises", 1)) as spark:
        for name, wrong in {
            "SQLQueryContextLogger": lambda: spark.sql("SELECT nope").collect(),
            "DataFrameQueryContextLogger": lambda: spark.range(1).select(F.col("id") / 0).collect(),
        }.items():
            logger = PySparkLogger.getLogger(name)
            logger.addHandler(heard)
            try:
                with pytest.raises(PySparkException) as caught:
                    wrong()
            finally:
                logger.removeHandler(heard)
            assert caught.value.getQueryContext()  # Which makes PySpark print it.
    assert heard.said == []


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def test_the_doctor_sees_to_the_class_archive(spark: SparkSession, tmp_path: Path) -> None:
    """If there was none, a session has begun to make it: who wants it now waits for that."""
    made = Qo(tmp_path).json("doctor", "--fix")["spark"]["class archive"]
    assert Path(made).stat().st_size > 1e6


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_java_without_an_archive_of_its_own_classes_gets_one(tmp_path: Path) -> None:
    """As it comes from PyPI."""
    whole = java.find(session.SETTINGS, os.environ).home
    home, environ = tmp_path / "java", os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    shutil.copytree(whole / "bin", home / "bin")  # What starts and what runs know where they lie themselves.
    shutil.copytree(whole / "lib", home / "lib", ignore=shutil.ignore_patterns("classes*.jsa", "src.zip"))
    (home / "conf").symlink_to(whole / "conf")
    settings = session.settings(java_home=str(home))
    bare = java.find(settings, environ)
    class_archive.build(bare, settings, environ)
    made = class_archive.archive_of(bare, settings, environ)
    assert made is not None
    assert min(each.stat().st_size for each in (made.path, made.base)) > 1e6
    assert f"-XX:SharedArchiveFile={made.path}" in class_archive.options(bare, settings, environ)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_archive_that_is_needed_now_does_not_wait_for_a_process_that_gets_nowhere(tmp_path: Path) -> None:
    """One with the lowest priority on a busy machine, say: this one holds the lock until the end."""
    environ = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    found = java.find(session.SETTINGS, environ)
    wanted = class_archive.archive_of(found, session.SETTINGS, environ)
    assert wanted is not None
    with class_archive.locked(wanted, wait_s=0) as acquired:
        assert acquired
        class_archive.build(found, session.SETTINGS, environ)
    assert wanted.path.stat().st_size > 1e6


@pytest.mark.long
def test_an_archive_that_is_broken_is_done_without(spark: SparkSession, tmp_path: Path) -> None:
    Qo(tmp_path).ok("doctor", "--fix")  # There is a whole one.
    real = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    with Child(tmp_path, "archived", XDG_CACHE_HOME=str(tmp_path / "cache"), REAL_CACHE=real) as child:
        expected = worked_out(spark)
        assert child.next() == expected
        assert child.next() == expected
        assert child.next() in (True, None)  # This time the archive was whole, and was used.
        assert child.process.wait(60) == 0


@pytest.mark.long
def test_a_session_whose_jvm_is_killed_is_made_anew(spark: SparkSession, tmp_path: Path) -> None:
    with Child(tmp_path, "classic") as child:
        assert child.next()  # The attempt that was at work learned of it.
        why, again = child.next()
        assert "killed with SIGKILL" in why
        assert again is None
        assert child.next() == worked_out(spark)
        assert [said[:20] for said in child.next()] == ["an operator must not"] * 3  # To stop it for all.
        assert child.next() is False
        assert child.next() == [False, False]  # No JVM is left.
        assert child.process.wait(60) == 0


@pytest.mark.long
def test_a_session_whose_cluster_was_lost_is_given_up_and_another_made(tmp_path: Path) -> None:
    with Child(tmp_path, "abandoned") as child:
        assert child.next() == [1, 1, "alive"]  # An executor, and a job for it.
        assert child.next() == [True, False, None]
        assert child.next() is True  # Nobody in it is to blame.
        assert child.next() == SUMS
        assert child.process.wait(60) == 0
