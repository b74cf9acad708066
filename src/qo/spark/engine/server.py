"""A Spark Connect server as a child of the worker: on loopback, behind a token, and never longer than the worker."""

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
from qo.spark.engine import archive, java, properties, session
from qo.spark.engine.jvm_exit import exit_reason

STARTS_MAX = 3  # Between finding a free port and using it, somebody else may take it.
READY_S = 120.0
LEAVING_S = 15.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

# The shell ends the server when its own standard input ends, which also happens when the worker is killed with -9.
# What the server leaves on the disk goes with it.
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

# Without pools of their own, which clients cannot choose, jobs would wait for those that came first.
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
        """Start it, or another after it died. Raises Unavailable with what it said if it does not come up."""
        if self.alive():
            return
        self.close()
        found = java.find(self._settings, os.environ)
        archive.build_in_background(found, self._settings)
        for attempt in range(1, STARTS_MAX + 1):
            said = self._launch(found)
            if said is None:
                return
            self.close()
            if "Address already in use" not in said or attempt == STARTS_MAX:
                raise Unavailable(f"the Spark Connect server did not start: {said}")

    def _launch(self, found: java.Java) -> str | None:
        """None: it listens. Else the last lines of what it said."""
        self._directory = Path(tempfile.mkdtemp(prefix="qo-connect-"))
        (self._directory / "pools.xml").write_text(POOLS)
        self._port = _free_port()
        token = secrets.token_urlsafe(24)
        # The client sends a token without TLS to this name only.
        self.address = f"sc://localhost:{self._port}/;token={token}"
        environment = {
            **os.environ,
            **session.environment(self._settings, found),
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,  # Not as an argument, which every user could see.
            "SPARK_CONNECT_MODE": "0",
            "SPARK_LOCAL_DIRS": str(self._directory),
        }
        for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
            environment.pop(name, None)  # These are for clients.
        with (self._directory / "log").open("w+b") as said:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", KEEPER, "qo-connect", str(self._directory), *self._command(found)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                env=environment,
                start_new_session=True,  # A key pressed in the worker's terminal is not meant for it.
            )
            return None if self._listens() else _tail(said)

    def _command(self, found: java.Java) -> list[str]:
        directory = self._directory
        assert directory is not None
        told = {
            **session.conf(self._settings, found),
            "spark.connect.grpc.binding.address": session.LOOPBACK,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.scheduler.allocation.file": f"file:{directory}/pools.xml",
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
        }
        submit = str(spark_home() / "bin" / "spark-submit")
        return [submit, *properties.arguments(directory, told), "--class", SERVER]

    def _listens(self) -> bool:
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
                process.wait(LEAVING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def spark_home() -> Path:
    """The Spark that PySpark would use."""
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


def _tail(said: IO[bytes]) -> str:
    said.flush()
    said.seek(0)
    lines = said.read().decode(errors="replace").splitlines()
    wrong = [line for line in lines if "Exception" in line or "Error" in line]
    return "; ".join((wrong or lines)[-3:]) or "it said nothing"
