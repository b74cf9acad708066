"""A process that is asked one thing after another, so that a warm Spark session serves many measurements.

    asker                                       process
    {"do": "work", "tasks": 200}\\n      ->
                                        <-      {"seconds": 21.3}\\n

Both ends are here. The process may run in an environment that has neither qo nor anything that qo needs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent.parent
ANSWER_WITHIN_S = 400.0


class Partner:
    """``python -m module``, until the end of the context; then it and all that it has started are gone."""

    def __init__(
        self, module: str, environment: Mapping[str, str] | None = None, *, python: str = sys.executable
    ) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process.
        self._process = subprocess.Popen(
            [python, "-m", module],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._process.communicate()
        self._log.close()

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Raises RuntimeError with what the process said, if it fails, ends or takes far too long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(ANSWER_WITHIN_S, self._kill)
        watchdog.start()
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps({"do": do, **what}) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        answer = json.loads(line) if line else {"error": self._complaints()}
        if "error" in answer:
            raise RuntimeError(f"{self._process.args} broke at {do}: {answer['error']}")
        return answer

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _complaints(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:]


def serve(**work: Callable[..., Mapping[str, Any] | None]) -> None:
    """The other end: answer until nobody asks any more. What libraries print is not part of the talk."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = work[request.pop("do")](**request) or {}
        except Exception:
            answer = {"error": traceback.format_exc()[-4000:]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)  # Some libraries crash while the interpreter shuts down, after all is said.
