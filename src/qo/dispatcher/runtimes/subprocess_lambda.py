"""A function as a process of this machine: a private directory, a cleared environment, a limit on time and output.

This is no sandbox. The process runs as the dispatcher's user and can read what that user can, including an admin's
token; so nothing runs like this unless the operator has set ``dispatcher.lambda_local``. It is only protected from what
it would get by accident:

    environment    PATH, HOME and TMPDIR, three QO_ variables, and what the operator offers and the bundle requests
    input          the invocation, as JSON on standard input
    output         exactly one JSON object on standard output, 1 MiB at most
    end            its process group and its stray children are killed, and its directory is deleted
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from qo.api.contract.bundle import FunctionReply, Invocation
from qo.api.contract.task import Outcome
from qo.core.pipeline.bundle import Manifest
from qo.dispatcher.bundles.archive import unpack
from qo.errors import UsageError
from qo.store.secret_files import generate_secret

STDOUT_MAX = 1024 * 1024
STDERR_MAX = 4096
TIMEOUT_S = 30.0  # If the work names none.
POLL_S = 0.1
PATH = "/usr/local/bin:/usr/bin:/bin"

# -I and -S: ignore the environment and the packages of the user and of this installation; a bundle brings its own.
_PYTHON = ("-I", "-S", "-B", "-X", "utf8", "-c")
_BOOT = (
    "import runpy, sys; root, entry = sys.argv[1:3]; sys.path.insert(0, root); sys.argv = [entry]; "
    "runpy.run_path(entry, run_name='__main__')"
)


class Stop(StrEnum):
    """Why a process is stopped before it ends by itself."""

    CANCELLED = "cancelled"  # On request.
    LOST = "lost"  # The attempt lost its lease: report nothing.
    RELEASED = "released"  # The dispatcher stops: another may run the task.


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a function; ``stopped`` if we stopped it."""

    outcome: Outcome
    reply: FunctionReply | None = None
    error: str | None = None
    stopped: Stop | None = None


@dataclass(frozen=True, slots=True)
class _Exit:
    code: int
    stdout: bytes
    stderr: str
    stopped: Stop | None = None
    violation: str | None = None  # The rule that it broke, and was killed for.


def run(
    invocation: Invocation,
    body: bytes,
    *,
    offered: Mapping[str, str],
    watch: Callable[[], Stop | None],
    timeout_s: float | None = None,
) -> Verdict:
    """Run the entrypoint once, to its end. ``watch`` is called often, returns why to stop, and may block a little."""
    home = Path(tempfile.mkdtemp(prefix="qo-function-"))
    try:
        try:
            manifest = unpack(body, invocation.bundle_sha256, home / "code")
            command = _command(manifest, invocation.entrypoint, home / "code")
        except UsageError as error:
            return Verdict(Outcome.FATAL, error=str(error))
        (home / "work").mkdir(mode=0o700)
        marker = generate_secret("")  # In the environment of the process and its children, and nowhere else.
        environment = _environment(invocation, manifest, offered, home / "work", marker)
        limit_s = timeout_s or invocation.work.timeout_seconds or TIMEOUT_S
        ended = _supervise(command, environment, home, invocation, watch, limit_s, marker)
        return _verdict(ended, invocation.capability_token)
    finally:
        _remove(home)


def _command(manifest: Manifest, entrypoint: str, code: Path) -> list[str]:
    if manifest.file(entrypoint) is None:
        raise UsageError(f"the entrypoint {entrypoint!r} is not one of the bundle's files")
    if manifest.runtime == "python":
        return [sys.executable, *_PYTHON, _BOOT, str(code), str(code / entrypoint)]
    node = shutil.which("node", path=PATH)
    if node is None:
        raise UsageError("the bundle needs node, which is not installed where the dispatcher runs")
    return [node, str(code / entrypoint)]


def _environment(
    invocation: Invocation, manifest: Manifest, offered: Mapping[str, str], work: Path, marker: str
) -> dict[str, str]:
    requested = {name: offered[name] for name in manifest.env_allowlist if name in offered}
    return requested | {
        "PATH": PATH,
        "HOME": str(work),
        "TMPDIR": str(work),
        "QO_DISPATCHER_URL": invocation.dispatcher_url,
        "QO_TASK_TOKEN": invocation.capability_token,
        "QO_RUN": marker,
    }


def _supervise(
    command: list[str],
    environment: dict[str, str],
    home: Path,
    invocation: Invocation,
    watch: Callable[[], Stop | None],
    limit_s: float,
    marker: str,
) -> _Exit:
    input_file = home / "invocation.json"
    input_file.write_text(invocation.model_dump_json())
    with input_file.open("rb") as stdin:  # Not a pipe: a function that does not read it must not block us.
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=home / "work",
            env=environment,
            start_new_session=True,
        )
    input_file.unlink()
    output = _Output(process)
    try:
        stopped, violation = _await_end(process, output, watch, limit_s)
    finally:
        # The leader has not been reaped yet, so its process group id is still valid.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _kill_strays(marker)
        process.wait()
        output.close()
    return _Exit(process.returncode, bytes(output.stdout), output.stderr_text(), stopped, violation)


def _await_end(
    process: subprocess.Popen[bytes], output: _Output, watch: Callable[[], Stop | None], limit_s: float
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
        assert process.stderr is not None
        self.stdout, self._stderr = bytearray(), bytearray()
        self._selector = selectors.DefaultSelector()
        self._streams: list[IO[bytes]] = [process.stdout, process.stderr]
        for stream, buffer in zip(self._streams, (self.stdout, self._stderr), strict=True):
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


def _verdict(ended: _Exit, token: str) -> Verdict:
    if ended.stopped is Stop.RELEASED:
        return Verdict(Outcome.RELEASED, stopped=ended.stopped)
    if ended.stopped is not None:
        return Verdict(Outcome.CANCELLED, stopped=ended.stopped)
    if ended.violation is not None:
        return Verdict(Outcome.FATAL, error=_describe(f"the function was killed: {ended.violation}", ended, token))
    if ended.code != 0:
        how = f"with status {ended.code}" if ended.code > 0 else f"by signal {-ended.code}"
        return Verdict(Outcome.FATAL, error=_describe(f"the function ended {how}", ended, token))
    try:
        reply = FunctionReply.model_validate_json(ended.stdout)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "it"
        message = f"the function's output is not one JSON object of the right form: {field}: {first['msg']}"
        return Verdict(Outcome.FATAL, error=_describe(message, ended, token))
    return Verdict(reply.outcome, reply, reply.error)


def _describe(message: str, ended: _Exit, token: str) -> str:
    """Append the end of its standard error, without its token."""
    return f"{message}\n{ended.stderr}".strip().replace(token, "…") if ended.stderr else message


def _kill_strays(marker: str) -> None:
    """Kill children that left the process group: they still have the marker. Only Linux shows it."""
    needle = f"QO_RUN={marker}".encode()
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


def _remove(home: Path) -> None:
    """Delete the directory, even if the function removed permissions in it."""
    for directory, below, _ in os.walk(home):
        for name in below:
            path = Path(directory) / name
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(home, ignore_errors=True)
