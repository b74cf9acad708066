"""What the measurements on S3 stand on: a real server, with or without a proxy before it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.process import ROOT

TESTS = str(ROOT / "tests")
if TESTS not in sys.path:
    sys.path.append(TESTS)  # Where the servers and proxies are that tests use too.

if TYPE_CHECKING:
    from support.servers.s3 import S3Server

Requests = Counter[str]


@contextmanager
def seaweed() -> Iterator[S3Server]:
    """A fresh SeaweedFS server, gone with its data after the block."""
    from support.servers.s3 import start_seaweed

    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        server = start_seaweed(Path(directory) / "seaweed")
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def delayed(server: S3Server, delay_s: float) -> Iterator[str]:
    """An endpoint at which every request to the server takes that much longer; the server's own for zero."""
    from support.servers.proxies import LatencyProxy

    if delay_s == 0:
        yield server.endpoint
        return
    host, port = _address(server)
    with LatencyProxy(host, port, delay_s) as proxy:
        yield proxy.endpoint


class Counted:
    """An endpoint that counts the requests it passes on to the server, by kind."""

    def __init__(self, server: S3Server) -> None:
        host, port = _address(server)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.counting", host, str(port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoint = f"http://127.0.0.1:{self._line()}"

    def take(self) -> Requests:
        """What was counted since the last time."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Counter(json.loads(self._line()))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def counted(server: S3Server) -> Iterator[Counted]:
    proxy = Counted(server)
    try:
        yield proxy
    finally:
        proxy.close()


def _address(server: S3Server) -> tuple[str, int]:
    parts = urlsplit(server.endpoint)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
