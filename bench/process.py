"""Measured processes. Each prepares, says that it is ready, waits for the word, works, and prints one JSON answer.

So imports and connecting are not measured, and several processes can start at one moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent
READY = "ready"
ANSWER_WITHIN_S = 300.0

Go = Callable[[], None]
Work = Callable[[Mapping[str, Any], Go], Coroutine[Any, Any, Mapping[str, Any]]]


class Process:
    """``python -m module JOB`` in a process of its own, until it is closed."""

    def __init__(self, module: str, job: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(job)],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        # A process that hangs is killed, and then reads as one that broke.
        self._watchdog = threading.Timer(ANSWER_WITHIN_S, self._process.kill)
        self._watchdog.start()

    def ready(self) -> None:
        if self._line() != READY:
            raise self._broken()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        line = self._line()
        try:
            return json.loads(line)
        except ValueError:
            raise self._broken() from None

    def close(self) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _broken(self) -> RuntimeError:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return RuntimeError(f"{self._process.args} broke: {self._errors.read()[-4000:]}")


def run(module: str, job: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The answer of one process."""
    return run_all(module, [job], environment)[0]


def run_all(
    module: str, jobs: Sequence[Mapping[str, Any]], environment: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The answers of several processes that start to work together."""
    processes = [Process(module, job, environment) for job in jobs]
    try:
        for process in processes:
            process.ready()
        for process in processes:
            process.go()
        return [process.answer() for process in processes]
    finally:
        for process in processes:
            process.close()


class Stopwatch:
    """Times a ``with`` block: by the clock, and by what it cost this process in CPU, which a busy machine hardly
    changes."""

    def __enter__(self) -> Self:
        self._began, self._used = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu_seconds = time.perf_counter() - self._began, time.process_time() - self._used

    def answer(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}


def serve(work: Mapping[str, Work]) -> None:
    """The other end: do what the job on the command line says, once told to."""
    job = json.loads(sys.argv[1])

    def go() -> None:
        print(READY, flush=True)
        if not sys.stdin.readline():
            os._exit(1)  # Whoever wanted the answer is gone.

    print(json.dumps(asyncio.run(work[job["do"]](job, go))), flush=True)
    os._exit(0)  # Some libraries crash while the interpreter shuts down, after all is said.
