"""Engines in processes of their own: there can be one Spark session in a process, and some of these lose theirs.

    python -m support.spark.children NAME [ARGUMENT...]

Each prints what it saw, one JSON value to a line, which ``Child`` reads.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from qo.errors import LeaseLost, UsageError
from qo.spark.engine import class_archive, java
from qo.spark.engine.engine import Attempt, Engine, open_engine
from support.spark import session

FIRST = Attempt("first", 1)
PARTS = 400  # Of a long job, each half a second: who comes beside it does not wait long for its turn.


def shout(word: str) -> str:
    """Found by its name where it is called, so this module must be importable there."""
    return word.upper() + "!"


def slow(number: int) -> int:
    time.sleep(0.05)
    return number


def sums(sales: DataFrame, shops: DataFrame) -> DataFrame:
    """What an operator may look like."""
    city = F.udf(shout, "string", useArrow=False)("city").alias("city")
    return sales.join(shops, "shop").groupBy(city).agg(F.sum("amount").alias("amount"))


SUMS = [["OSLO!", 16], ["ROME!", 7]]  # What they are.


def worked_out(spark: SparkSession) -> list[list[Any]]:
    sales = spark.createDataFrame([(1, 10), (1, 5), (2, 7), (3, 1)], "shop int, amount int")
    shops = spark.createDataFrame([(1, "oslo"), (2, "rome"), (3, "oslo")], "shop int, city string")
    return sorted([row.city, row.amount] for row in sums(sales, shops).collect())


class Child:
    """One of the functions below, in a process of its own."""

    def __init__(self, directory: Path, name: str, *arguments: str, **environment: str) -> None:
        self._said = directory / f"{name}.err"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.spark.children", name, *arguments],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
            )

    def next(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._said.read_text()[-3000:]
        return json.loads(line)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def tell(value: Any) -> None:
    print(json.dumps(value), flush=True)


def until(true: Callable[[], Any], within_s: float = 60.0) -> Any:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if value := true():
            return value
        time.sleep(0.02)
    raise TimeoutError


class Long:
    """A long job of an attempt, on a thread of its own."""

    def __init__(self, engine: Engine, attempt: Attempt) -> None:
        self._engine, self._attempt = engine, attempt
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        until(lambda: (told := engine.progress(attempt)) is not None and told.active > 0)

    def _run(self) -> None:
        try:
            with self._engine.session(self._attempt) as spark:
                numbers = spark.range(0, 10 * PARTS, numPartitions=PARTS)
                numbers.select(F.udf(slow, "long", useArrow=False)("id")).collect()
        except BaseException as error:
            self.error = error

    def ended_by(self) -> str:
        self.thread.join(60)
        return "nothing" if self.error is None else f"{type(self.error).__name__}: {self.error}"


def has_hardly_begun(engine: Engine, attempt: Attempt) -> bool:
    told = engine.progress(attempt)
    return told is not None and told.tasks_done < told.tasks / 2


def refusals(*calls: Callable[[], None]) -> list[str]:
    """What each of these says instead of doing it."""
    said: list[str] = []
    for call in calls:
        try:
            call()
        except UsageError as error:
            said.append(str(error))
    return said


def classic() -> None:
    """A session whose JVM is killed, and then one that an operator stops."""
    engine = open_engine(session.SETTINGS)
    long = Long(engine, FIRST)
    victim = _jvm()
    os.kill(victim, signal.SIGKILL)
    tell(long.ended_by() != "nothing")
    until(lambda: not engine.alive())
    engine.start()
    loss = engine.loss(FIRST)  # It is told of its own session, though there is another now.
    tell([loss is not None and loss.why, engine.loss(FIRST)])
    with engine.session(Attempt("first", 2)) as spark:
        tell(worked_out(spark))
        last = _jvm()
        tell(refusals(spark.stop, spark.sparkContext.stop, SparkSession.builder.getOrCreate().stop))
        SparkContext.stop(spark.sparkContext)  # Nothing keeps anybody from that.
    tell(engine.alive())
    engine.close()
    tell([runs(victim), runs(last)])


def archived() -> None:
    """A session with an archive that is broken, and in its place one with an archive that is not."""
    real = java.cache_directory({**os.environ, "XDG_CACHE_HOME": os.environ["REAL_CACHE"]}) / "spark"
    found = class_archive.archive_of(java.find(session.SETTINGS, os.environ), session.SETTINGS, os.environ)
    assert found is not None
    found.path.parent.mkdir(parents=True)
    found.path.write_bytes(b"no archive" * 1000)
    engine = open_engine(session.SETTINGS)
    engine.start()
    with engine.session(FIRST) as spark:
        tell(worked_out(spark))
    os.kill(_jvm(), signal.SIGKILL)
    until(lambda: not engine.alive())
    found.path.unlink()
    shutil.copyfile(real / found.path.name, found.path)
    engine.start()
    with engine.session(Attempt("first", 2)) as spark:
        tell(worked_out(spark))
        maps = Path(f"/proc/{_jvm()}/maps")
        tell(str(found.path) in maps.read_text() if maps.exists() else None)
    engine.close()


def _jvm() -> int:
    from pyspark import SparkContext

    return SparkContext._gateway.proc.pid  # type: ignore[union-attr]


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def connect() -> None:
    """A server of its own: shut out, stopped, and at the end left to die with this process."""
    engine = open_engine(session.settings(remote="local"))
    with engine.session(FIRST) as spark:
        tell(worked_out(spark))
    stale = Long(engine, Attempt("second", 1))
    with engine.session(Attempt("second", 2)) as spark:
        tell(stale.ended_by())
        tell(spark.range(3).count())
    try:
        with engine.session(Attempt("second", 1)):
            tell("let in")
    except LeaseLost as refused:
        tell(str(refused))
    stopped, other = Long(engine, Attempt("third", 1)), Long(engine, Attempt("fourth", 1))
    engine.stop(Attempt("third", 1))
    engine.stop(Attempt("third", 1))
    tell(stopped.ended_by())
    with engine.session(Attempt("small", 1)) as spark:
        tell(spark.range(5).count())
    tell(other.thread.is_alive() and has_hardly_begun(engine, Attempt("fourth", 1)))
    tell(_server_of(engine))
    time.sleep(600)  # Until it is killed.


def connect_again() -> None:
    """A server of its own that is killed while an attempt is at work."""
    engine = open_engine(session.settings(remote="local"))
    at_work = Long(engine, FIRST)
    os.kill(_server_of(engine), signal.SIGKILL)
    until(lambda: not engine.alive())
    with engine.session(Attempt("first", 2)) as spark:
        tell(spark.range(4).count())
    tell(at_work.ended_by() != "nothing")  # It has asked for the dead one meanwhile, until it gave up.
    engine.close()


def abandoned() -> None:
    """A session on a cluster that is given up while an attempt is at work, and made anew."""
    conf = (
        *session.SETTINGS.conf,
        ("spark.driver.host", "127.0.0.1"),
        ("spark.driver.bindAddress", "127.0.0.1"),
        ("spark.executor.memory", "512m"),
        ("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
    )
    engine = open_engine(session.settings(master="local-cluster[1,1,512]", conf=conf))
    at_work = Long(engine, FIRST)
    seen = engine.observe()
    assert seen is not None
    tell([seen.executors, seen.waiting, seen.driver])
    jvm = _jvm()
    engine.abandon()
    tell([at_work.ended_by() != "nothing", runs(jvm), engine.observe()])
    loss = engine.loss(FIRST)
    tell(loss is not None and loss.by_cluster)
    with engine.session(Attempt("first", 2)) as spark:
        tell(worked_out(spark))
    engine.close()


def _server_of(engine: Any) -> int:
    keeper = engine._server._process.pid
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    (server,) = [
        int(pid) for pid in children if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    ]
    return server


def standalone(master: str) -> None:
    conf = (
        *session.SETTINGS.conf,
        ("spark.executor.memory", "512m"),
        ("spark.executor.cores", "1"),
        ("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
        ("spark.scheduler.minRegisteredResourcesRatio", "1.0"),
        ("spark.cores.max", "2"),
    )
    engine = open_engine(session.settings(master=master, conf=conf))
    with engine.session(FIRST) as spark:
        tell(worked_out(spark))
        places = spark.range(0, 8, numPartitions=8).select(
            F.udf(lambda _: os.getcwd(), "string")("id").alias("at")
        )
        tell(places.distinct().count())
    long = Long(engine, Attempt("second", 1))
    engine.stop(Attempt("second", 1))
    tell(long.ended_by())
    engine.close()


if __name__ == "__main__":
    from support.spark import children  # By its own name: what is pickled from here must be found elsewhere.

    getattr(children, sys.argv[1])(*sys.argv[2:])
