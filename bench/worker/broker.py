"""A Redis server for the queues that need one: Debian's, on loopback, gone with its data after use."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.exceptions import ConnectionError as NotThere

START_WITHIN_S = 10.0
INSTALL_WITHIN_S = 300.0
HOW_TO_GET = "apt-get install redis-server, or any redis-server on the PATH"


class NoRedis(Exception):
    """There is no server here, and no way to get one."""


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a fresh server, without the number of a database at its end.

    It writes nothing to disk, which is its fastest setting. Raises NoRedis.
    """
    command = _found() or _installed()
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        port = _free_port()
        options = {
            "--bind": "127.0.0.1",
            "--port": str(port),
            "--dir": directory,
            "--save": "",
            "--appendonly": "no",
        }
        process = subprocess.Popen(
            [command, *(word for option in options.items() for word in option)], stdout=subprocess.DEVNULL
        )
        try:
            url = f"redis://127.0.0.1:{port}"
            _answers(url, process)
            yield url
        finally:
            process.kill()
            process.wait()


def version() -> str:
    said = subprocess.run([_found() or "redis-server", "--version"], capture_output=True, text=True, check=True)
    return next(word[2:] for word in said.stdout.split() if word.startswith("v="))


def _found() -> str | None:
    return shutil.which("redis-server")


def _installed() -> str:
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise NoRedis(HOW_TO_GET)
    # Installed only: where services are started on installing, another port keeps us out of their way.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "redis-server"]):
        done = subprocess.run(
            ["apt-get", *words], env=environment, capture_output=True, check=False, timeout=INSTALL_WITHIN_S
        )
        if done.returncode != 0:
            raise NoRedis(HOW_TO_GET)
    if (command := _found()) is None:
        raise NoRedis(HOW_TO_GET)
    return command


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    with Redis.from_url(url) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                client.ping()
                return
            except NotThere:
                time.sleep(0.02)
    raise RuntimeError(f"redis-server did not answer on {url} within {START_WITHIN_S:g} s")
