"""A Spark Connect server as a child of the worker: on loopback, behind a token, ended with the worker."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from qo.config.spark import SparkSettings
from qo.errors import Unavailable, UsageError
from qo.spark.engine import class_archive, java, properties, session
from qo.spark.engine.jvm_exit import exit_reason

STARTS_MAX = 3  # Between finding a free port and using it, somebody else may take it.
READY_S = 120.0
CLOSE_S = 15.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

# The shell ends the server when its own standard input ends, which also happens when the worker is killed with -9.
# It then deletes the server's directory.
KEEPER = """
directory=$1
shift
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
( read -r _ <&3; kill $server; sleep 5; kill -9 $server ) 2>/dev/null &
watch=$!
wait $server
code=$?
kill $watch 2>/dev/null
rm -rf "$directory"
exit $code
"""

# Clients cannot choose a pool. In the default one, jobs would wait for those that came first.
POOLS = """<?xml version="1.0"?>
<allocations><pool name="default"><schedulingMode>FAIR</schedulingMode></pool></allocations>
"""


class ConnectServer:
    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self.address = ""  # For clients; it holds the token.
        self._port = 0

    def start(self) -> None:
        """Start the server, or another after it died. Raises Unavailable with its last lines if it does not come up."""
        if self.alive():
            return
        self.close()
        home = java.find(self._settings, os.environ)
        class_archive.build_in_background(home, self._settings)
        for attempt in range(1, STARTS_MAX + 1):
            failure = self._launch(home)
            if failure is None:
                return
            self.close()
            if "Address already in use" not in failure or attempt == STARTS_MAX:
                raise Unavailable(f"the Spark Connect server did not start: {failure}")

    def _launch(self, home: java.Java) -> str | None:
        """Start a process. Return None once it listens, else the last lines of its log."""
        self._directory = Path(tempfile.mkdtemp(prefix="qo-connect-"))
        (self._directory / "pools.xml").write_text(POOLS)
        self._port = _free_port()
        token = secrets.token_urlsafe(24)
        # The client sends a token without TLS to this name only.
        self.address = f"sc://localhost:{self._port}/;token={token}"
        environment = {
            **os.environ,
            **session.environment(self._settings, home),
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,  # Not as an argument, which every user could see.
            "SPARK_CONNECT_MODE": "0",
            "SPARK_LOCAL_DIRS": str(self._directory),
        }
        for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
            environment.pop(name, None)  # These are for clients.
        with (self._directory / "log").open("w+b") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", KEEPER, "qo-connect", str(self._directory), *self._command(home)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Keeps Ctrl-C in the worker's terminal from ending it.
            )
            return None if self._wait_until_listening() else _tail(output)

    def _command(self, home: java.Java) -> list[str]:
        directory = self._directory
        assert directory is not None
        conf = {
            **session.conf(self._settings, home),
            "spark.connect.grpc.binding.address": session.LOOPBACK,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.scheduler.allocation.file": f"file:{directory}/pools.xml",
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
        }
        submit = str(spark_home() / "bin" / "spark-submit")
        return [submit, *properties.arguments(directory, conf), "--class", SERVER]

    def _wait_until_listening(self) -> bool:
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self._process is not None and self._process.poll() is None:
            if reachable(session.LOOPBACK, self._port):
                return True
            time.sleep(0.1)
        return False

    def alive(self) -> bool:
        return (
            self._process is not None and self._process.poll() is None and reachable(session.LOOPBACK, self._port)
        )

    def exit_reason(self) -> str | None:
        return exit_reason(self._process)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def spark_home() -> Path:
    """Return the directory of the Spark that PySpark uses."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise UsageError(
            "Spark is not installed: install qo with its extra, from a checkout, pip install '.[spark]'"
        )
    return Path(package.origin).parent


def reachable(host: str, port: int, within_s: float = 2.0) -> bool:
    try:
        with socket.create_connection((host, port), within_s):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((session.LOOPBACK, 0))
        return probe.getsockname()[1]


def _tail(output: IO[bytes]) -> str:
    output.flush()
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()
    errors = [line for line in lines if "Exception" in line or "Error" in line]
    return "; ".join((errors or lines)[-3:]) or "it wrote nothing to its log"
