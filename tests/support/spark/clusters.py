"""A standalone Spark cluster of processes on loopback, any of which can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qo.spark.engine import class_archive, java
from qo.spark.engine.connect_server import reachable, spark_home
from support.process_family import family_of
from support.servers.ports import free_ports
from support.spark import session
from support.spark.children import until

HERE = "127.0.0.1"
START_S = 180.0  # A machine with much else to do.
CORES = 2  # One for each worker.
# Executors that start quickly, for work that is small.
CONF = {
    **dict(session.SETTINGS.conf),
    "spark.executor.memory": "500m",
    "spark.executor.cores": "1",
    "spark.cores.max": str(CORES),
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Daemon:
    """A process of Spark's, and what it says."""

    def __init__(self, directory: Path, name: str, main: str, *arguments: str, memory: str = "256m") -> None:
        self._memory = memory
        self._directory, self._name, self._main, self._arguments = directory, name, main, arguments
        self._starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.log = directory / f"{name}.log"

    def start(self) -> None:
        found = java.find(session.SETTINGS, os.environ)
        flags = [
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            *class_archive.options(found, session.settings(lean=False)),
        ]
        environment = {
            **os.environ,
            "JAVA_HOME": str(found.home),
            "SPARK_LOCAL_IP": HERE,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": self._memory,
            "SPARK_DAEMON_JAVA_OPTS": " ".join(flags),
        }
        self._starts += 1
        self.log = self._directory / f"{self._name}-{self._starts}.log"
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [spark_home() / "bin" / "spark-class", self._main, *self._arguments],
                cwd=self._directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def said(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """In good order: a worker ends its executors before itself."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class Cluster:
    def __init__(self, directory: Path, workers: int = CORES) -> None:
        self._port = free_ports(1)[0]
        self.url = f"spark://{HERE}:{self._port}"
        place = ["--host", HERE, "--webui-port", "0", "--port"]
        self.master = Daemon(directory, "master", "org.apache.spark.deploy.master.Master", *place, str(self._port))
        self.workers = [
            Daemon(
                directory,
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *place,
                "0",
                *("--cores", "1", "--memory", "600m", "--work-dir", str(directory / f"work-{number}")),
                self.url,
            )
            for number in range(1, workers + 1)
        ]

    def start(self) -> None:
        self.start_master()
        self.start_workers()

    def start_master(self) -> None:
        self.master.start()
        until(lambda: reachable(HERE, self._port), START_S)

    def start_workers(self) -> None:
        for each in self.workers:
            each.start()
        for each in self.workers:
            until(lambda each=each: "Successfully registered with master" in each.said(), START_S)

    def kill_executors(self) -> list[int]:
        executors = self.executors()
        for each in executors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        return executors

    def executors(self) -> list[int]:
        """Their process ids. The shell that starts one becomes it."""
        workers = [each.process.pid for each in self.workers if each.process is not None]
        return [pid for worker in workers for pid in family_of(worker)[1:] if _is_executor(pid)]

    def stop(self) -> None:
        for each in [*self.workers, self.master]:
            each.stop()


def _is_executor(pid: int) -> bool:
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@contextmanager
def standalone_cluster(directory: Path, workers: int = CORES) -> Iterator[Cluster]:
    directory.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(directory, workers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class ConnectDaemon:
    """A Spark Connect server of nobody's, on a port that it has again when it is started again."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_ports(1)[0]
        self.url = f"sc://{HERE}:{self.port}"
        options = {
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.host": HERE,
            "spark.driver.bindAddress": HERE,
            "spark.connect.grpc.binding.address": HERE,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        arguments = [word for key, value in options.items() for word in ("--conf", f"{key}={value}")]
        self.daemon = Daemon(
            directory, "connect", "org.apache.spark.deploy.SparkSubmit", *arguments, "--class", server, memory="1g"
        )

    def start(self) -> None:
        self.daemon.start()
        until(lambda: reachable(HERE, self.port), START_S)


@contextmanager
def connect_server(directory: Path) -> Iterator[ConnectDaemon]:
    server = ConnectDaemon(directory)
    try:
        server.start()
        yield server
    finally:
        server.daemon.stop()
