"""A JVM that PySpark starts has a deadline, and its settings are not arguments of its process.

PySpark waits until the JVM has written where it listens, or has failed. A JVM that finds the disk full does neither: it
lives on silently, and the worker would hang until somebody looks. PySpark also waits for a JVM that ended with exit
code 0. And it passes the settings as arguments, which every user of the machine can read.
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

LAUNCH_S = 300.0  # A busy machine takes a minute and more.


@contextlib.contextmanager
def guard_launch(within_s: float = LAUNCH_S) -> Generator[None]:
    """Within the block, kill a JVM that has not answered after ``within_s``, which PySpark raises as its failure.

    The settings of the JVM go into a file that only its owner can read; some are secret.
    """
    deadline = time.monotonic() + within_s
    is_launching = True

    class GuardedPopen(subprocess.Popen[bytes]):
        def __init__(self, command: Sequence[str], **kwargs: Any) -> None:
            super().__init__(properties.move_to_file(command, Path(directory)), **kwargs)

        def poll(self) -> int | None:
            code = super().poll()
            if not is_launching:
                return code
            if code is None and time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)  # ``kill`` would poll first.
                code = self.wait()
            if code is not None and self.stdin is not None:
                self.stdin.close()
            return -1 if code == 0 else code  # PySpark takes 0 for a JVM that still runs.

    module: Any = java_gateway  # PySpark offers no other access to its process before that has answered.
    original, module.Popen = module.Popen, GuardedPopen
    directory = ""
    try:
        with tempfile.TemporaryDirectory(prefix="qo-launch-") as directory:  # The JVM reads it within the block.
            yield
    finally:
        is_launching, module.Popen = False, original
