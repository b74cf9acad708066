"""Waiting for Spark's JVM, though not for ever; and what it died of.

PySpark waits until the JVM has written where it listens, or has failed. One that found the disk full does neither: it
lives on without a word, and the worker would be of no use until somebody looks. One that ended in peace is waited for,
too.
"""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from pyspark import java_gateway

from qo.spark.engine import properties

ENDED_WITHIN_S = 1.0  # Its connections are cut a moment before it is gone.
OUT_OF_MEMORY = 3  # The exit code of ExitOnOutOfMemoryError.
LAUNCHED_WITHIN_S = 300.0  # A machine with much else to do takes a minute and more.


@contextlib.contextmanager
def launching(within_s: float = LAUNCHED_WITHIN_S) -> Generator[None]:
    """In the block a JVM that says nothing for so long is ended, which PySpark raises as its failure. Its settings are
    no arguments of it: some are secret."""
    until = time.monotonic() + within_s
    waiting = True

    class Launched(subprocess.Popen[bytes]):
        def __init__(self, command: Sequence[str], **kwargs: Any) -> None:
            super().__init__(properties.moved(command, Path(told)), **kwargs)

        def poll(self) -> int | None:
            code = super().poll()
            if not waiting:
                return code
            if code is None and time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)  # ``kill`` would poll first.
                code = self.wait()
            if code is not None and self.stdin is not None:
                self.stdin.close()
            return -1 if code == 0 else code  # PySpark takes 0 for a JVM that is still there.

    names: Any = java_gateway  # It offers no other way to its process before that has answered.
    before, names.Popen = names.Popen, Launched
    told = ""
    try:
        with tempfile.TemporaryDirectory(prefix="qo-launch-") as told:  # By the end the JVM has read it.
            yield
    finally:
        waiting, names.Popen = False, before


def ending(process: subprocess.Popen[bytes] | None) -> str | None:
    """What a JVM died of; None: that is not known."""
    if process is None:
        return None
    try:
        return meaning(process.wait(ENDED_WITHIN_S))
    except subprocess.TimeoutExpired:
        return None


def meaning(code: int) -> str | None:
    """What an exit code of a JVM tells people."""
    if code == OUT_OF_MEMORY:
        return "its JVM ran out of memory: give it more with spark.driver_memory, or its tasks less at a time"
    if code == -signal.SIGKILL:
        return "its JVM was killed with SIGKILL, as systems do that are short of memory"
    return f"its JVM was ended by {signal.Signals(-code).name}" if code < 0 else None
