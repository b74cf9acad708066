"""A process that is supervised to its end: its output is bounded, and nothing that it started outlives it."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from qo.function.function_messages import Stop

STDOUT_MAX = 1024 * 1024
STDERR_MAX = 4096
POLL_S = 0.1
MARKER = "QO_RUN"

Watch = Callable[[], Stop | None]


@dataclass(frozen=True, slots=True)
class Exit:
    code: int
    stdout: bytes
    stderr: str
    stopped: Stop | None = None
    violation: str | None = None  # The rule that it broke, and was killed for.


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    stdin: Path,
    watch: Watch,
    limit_s: float,
    *,
    keep_stdout: bool = True,
    interrupt: Callable[[], None] = lambda: None,
) -> Exit:
    """Run a command to its end. ``watch`` is called often, returns why to stop, and may block a little.

    ``keep_stdout``: its standard output is its answer; otherwise it is a log, whose end is kept with the standard
    error. ``interrupt`` is called when it is killed, for what runs elsewhere on its behalf.
    """
    marker = secrets.token_urlsafe(24)  # In the environment of the process and its children, and nowhere else.
    with stdin.open("rb") as input_file:  # Not a pipe: a function that does not read it must not block us.
        process = subprocess.Popen(
            command,
            stdin=input_file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if keep_stdout else subprocess.STDOUT,
            cwd=directory,
            env={**environment, MARKER: marker},
            start_new_session=True,
        )
    output = _Output(process)
    stopped = violation = None
    ended = False
    try:
        stopped, violation = _await_end(process, output, watch, limit_s)
        ended = stopped is None and violation is None
    finally:
        if not ended:
            interrupt()
        # The leader has not been reaped yet, so its process group id is still valid.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _kill_strays(marker)
        process.wait()
        output.close()
    return Exit(process.returncode, bytes(output.stdout), output.stderr_text(), stopped, violation)


def _await_end(
    process: subprocess.Popen[bytes], output: _Output, watch: Watch, limit_s: float
) -> tuple[Stop | None, str | None]:
    deadline = time.monotonic() + limit_s
    while True:
        exited = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        output.read(0.0 if exited else POLL_S)
        if len(output.stdout) > STDOUT_MAX:
            return None, f"it wrote more than {STDOUT_MAX} bytes to its standard output"
        if exited:
            return None, None
        if time.monotonic() >= deadline:
            return None, f"it had not ended after {limit_s:g} seconds"
        if (stop := watch()) is not None:
            return stop, None


class _Output:
    """The output of a process: its standard output up to the limit, and the end of its standard error."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.stdout, self._stderr = bytearray(), bytearray()
        self._selector = selectors.DefaultSelector()
        self._streams: list[IO[bytes]] = [process.stdout]
        buffers = [self._stderr]
        if process.stderr is not None:
            self._streams, buffers = [process.stdout, process.stderr], [self.stdout, self._stderr]
        for stream, buffer in zip(self._streams, buffers, strict=True):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, buffer)

    def read(self, wait_s: float) -> None:
        """Read what is available, or what arrives first within the time."""
        if not self._selector.get_map():
            time.sleep(wait_s)  # It has closed both streams, and still runs.
            return
        while (ready := self._selector.select(wait_s)) and len(self.stdout) <= STDOUT_MAX:
            for key, _ in ready:
                chunk = os.read(key.fd, 65_536)
                key.data.extend(chunk)
                if not chunk:
                    self._selector.unregister(key.fileobj)
            del self._stderr[:-STDERR_MAX]
            if not self._selector.get_map():
                return
            wait_s = 0.0

    def stderr_text(self) -> str:
        return self._stderr.decode("utf-8", "replace").strip()

    def close(self) -> None:
        self._selector.close()
        for stream in self._streams:
            stream.close()


def _kill_strays(marker: str) -> None:
    """Kill children that left the process group: they still have the marker. Only Linux shows it."""
    needle = f"{MARKER}={marker}".encode()
    for _ in range(10):  # One of them may have started another meanwhile.
        strays = [pid for pid in _processes() if needle in _environ(pid).split(b"\0")]
        for pid in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not strays:
            return
        time.sleep(0.01)


def _processes() -> list[int]:
    with suppress(FileNotFoundError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def _environ(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""
