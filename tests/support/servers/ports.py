"""Ports on loopback that nobody else takes before a test's server listens there.

The system gives the ports of its own range to every connection that is opened, so one that is free now may be taken in
a moment. Ours lie below that range, in blocks: each process of a test run holds one, by a lock that ends with it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import socket
import tempfile
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import IO

FIRST, LAST, BLOCK = 20_000, 32_000, 200


class Block:
    """The ports of this process, handed out in turn, so that one which was just used rests the longest."""

    def __init__(self, first: int, lock: IO[str]) -> None:
        self._lock = lock  # Held until the process ends.
        self._turn = cycle(range(first, first + BLOCK))

    def take(self) -> int:
        for _ in range(BLOCK):
            port = next(self._turn)
            if _is_free(port):
                return port
        raise RuntimeError("all ports of this process are in use")


def free_ports(count: int) -> list[int]:
    """Different ones, on which nobody listens."""
    return [_block().take() for _ in range(count)]


@cache
def _block() -> Block:
    directory = Path(tempfile.gettempdir()) / f"qo-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    for first in range(FIRST, LAST, BLOCK):
        lock = (directory / str(first)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        atexit.register(lock.close)
        return Block(first, lock)
    raise RuntimeError(f"all blocks of ports are held: see {directory}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
