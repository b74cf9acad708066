"""The same work on a cluster: a master and two workers as processes of their own, on loopback."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparks
from qo.spark import archive, java
from qo.spark.server import spark_home
from sites import Site, embedded
from spark_children import Child, until, worked_out
from spark_versions import run_versions

__all__ = ["embedded"]

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]

HERE = "127.0.0.1"


@contextmanager
def daemon(directory: Path, name: str, *arguments: str) -> Iterator[Path]:
    """A master or a worker, and what it says."""
    found = java.find(sparks.SETTINGS, os.environ)
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *archive.options(found, sparks.settings(lean=False))]
    environment = {
        **os.environ,
        "JAVA_HOME": str(found.home),
        "SPARK_LOCAL_IP": HERE,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": " ".join(flags),
    }
    kind = f"org.apache.spark.deploy.{name.partition('-')[0].lower()}.{name.partition('-')[0]}"
    place = ["--host", HERE, "--port", "0", "--webui-port", "0"]
    said = directory / f"{name}.log"
    with said.open("wb") as file:
        process = subprocess.Popen(
            [spark_home() / "bin" / "spark-class", kind, *place, *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield said
    finally:
        process.terminate()  # A worker ends its executors before itself.
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        said = stack.enter_context(daemon(tmp_path, "Master"))
        url = until(lambda: re.search(rf"Starting Spark master at (spark://{HERE}:\d+)", said.read_text()))[1]
        for number in (1, 2):
            work = ["--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / f"work-{number}")]
            stack.enter_context(daemon(tmp_path, f"Worker-{number}", *work, url))
        until(lambda: said.read_text().count("Registering worker") == 2)
        yield url


def test_a_cluster_does_the_same(spark: SparkSession, master: str, tmp_path: Path) -> None:
    with Child(tmp_path, "standalone", master) as child:
        assert child.next() == worked_out(spark)
        assert child.next() == 2  # Both workers had a part in it.
        assert "was stopped" in child.next()
        assert child.process.wait(60) == 0


async def test_executors_of_a_cluster_run_the_code_of_the_tasks_version(embedded: Site, master: str) -> None:
    conf = {**dict(sparks.SETTINGS.conf), "spark.executor.memory": "500m", "spark.cores.max": "2"}
    settings = ",".join(f"{key}={value}" for key, value in conf.items())
    await run_versions(embedded, QO_SPARK_MASTER=master, QO_SPARK_CONF=settings)
