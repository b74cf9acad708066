"""One run of a bundle: unpacked into a private directory, started in a sandbox, supervised, and its reply read.

environment    PATH, HOME and TMPDIR, three QO_ variables, and what the operator offers and the bundle requests
input          the request, as JSON on standard input
output         exactly one JSON object on standard output, 1 MiB at most
end            whatever it started is killed, and its directory is deleted
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from qo.core.pipeline.bundle import Manifest
from qo.core.pipeline.states import Outcome
from qo.core.redaction import redact
from qo.errors import UsageError
from qo.function import function_process
from qo.function.archive import unpack
from qo.function.function_messages import Request, Stop, Verdict, parse_reply
from qo.function.function_process import Exit, Watch
from qo.function.lent_files import prepare_outputs, return_outputs, show_code
from qo.function.sandbox import SETUP_FAILED, Access, PlainProcess, Sandbox, interpreter

TIMEOUT_S = 30.0  # If the work names none.
PATH = "/usr/local/bin:/usr/bin:/bin"
# A function is stopped a little before its attempt times out, while its end can still be reported.
MARGIN_S, MARGIN_PART = 2.0, 0.1

# -I and -S: ignore the environment and the packages of the user and of this installation; a bundle brings its own.
_PYTHON = ("-I", "-S", "-B", "-X", "utf8", "-c")
_BOOT = (
    "import runpy, sys; root, entry, memory = sys.argv[1:4]; sys.path.insert(0, root); sys.argv = [entry]\n"
    "if int(memory):\n"
    "    import resource; resource.setrlimit(resource.RLIMIT_AS, (int(memory),) * 2)\n"
    "runpy.run_path(entry, run_name='__main__')"
)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the operator decides about a run, and the bundle cannot."""

    sandbox: Sandbox = field(default_factory=PlainProcess)
    access: Access = field(default_factory=Access)
    offered: Mapping[str, str] = field(default_factory=dict[str, str])  # Variables that a bundle may request.
    memory_bytes: int = 0  # Of each of its processes; 0: unlimited.
    timeout_s: float | None = None  # None: that of the work.


def run(request: Request, document: bytes, body: bytes, conditions: Conditions, watch: Watch) -> Verdict:
    """Run the entrypoint of a bundle once, to its end. ``document`` is the request as it was sent."""
    home = Path(tempfile.mkdtemp(prefix="qo-function-")).resolve()
    sandbox = conditions.sandbox
    try:
        try:
            manifest = unpack(body, request.bundle_sha256, home / "code")
            command = _command(manifest, request.entrypoint, sandbox.code_path(home / "code"), conditions)
        except UsageError as error:
            return Verdict(Outcome.FATAL, error=str(error))
        (home / "work").mkdir(mode=0o700)
        (home / "request.json").write_bytes(document)
        if sandbox.confines:
            show_code(home / "code")
            prepare_outputs(conditions.access.write)
        ended = function_process.supervise(
            sandbox.wrap(command, home, conditions.access),
            _environment(request, manifest, conditions.offered, sandbox.work_path(home)),
            home / "work",
            home / "request.json",
            watch,
            conditions.timeout_s or time_limit_s(request.work.timeout_seconds),
        )
        if sandbox.confines:
            try:
                return_outputs(conditions.access.write)
            except UsageError as error:
                return Verdict(Outcome.FATAL, error=str(error))
        secrets = (request.capability_token, *_requested(manifest, conditions.offered).values())
        return _judge(ended, sandbox, secrets)
    finally:
        _remove(home)


def time_limit_s(timeout_s: float | None) -> float:
    """Return how long a function may take if its attempt may take so long."""
    timeout_s = timeout_s or TIMEOUT_S
    return timeout_s - min(MARGIN_S, timeout_s * MARGIN_PART)


def _command(manifest: Manifest, entrypoint: str, code: Path, conditions: Conditions) -> list[str]:
    if manifest.file(entrypoint) is None:
        raise UsageError(f"the entrypoint {entrypoint!r} is not one of the bundle's files")
    if manifest.runtime == "python":
        _check_python(manifest)
        return [interpreter(), *_PYTHON, _BOOT, str(code), str(code / entrypoint), str(conditions.memory_bytes)]
    node = shutil.which("node", path=PATH)
    if node is None:
        raise UsageError("the bundle needs node, which is not installed where functions run")
    return [node, str(code / entrypoint)]


def _check_python(manifest: Manifest) -> None:
    """Raises UsageError for compiled modules of another Python, which would fail with an unclear ImportError."""
    here = ".".join(platform.python_version_tuple()[:2])
    compiled = next((each.path for each in manifest.files if each.path.endswith(".so")), None)
    if compiled is not None and manifest.python not in (None, here):
        raise UsageError(
            f"the bundle was built with Python {manifest.python}, functions run with {here} here, and {compiled} is "
            f"compiled: build it again with Python {here}"
        )


def _requested(manifest: Manifest, offered: Mapping[str, str]) -> dict[str, str]:
    return {name: offered[name] for name in manifest.env_allowlist if name in offered}


def _environment(request: Request, manifest: Manifest, offered: Mapping[str, str], work: Path) -> dict[str, str]:
    return _requested(manifest, offered) | {
        "PATH": PATH,
        "HOME": str(work),
        "TMPDIR": str(work),
        "QO_DISPATCHER_URL": request.dispatcher_url,
        "QO_TASK_TOKEN": request.capability_token,
    }


def _judge(ended: Exit, sandbox: Sandbox, secrets: tuple[str, ...]) -> Verdict:
    if ended.stopped is Stop.RELEASED:
        return Verdict(Outcome.RELEASED, stopped=ended.stopped)
    if ended.stopped is not None:
        return Verdict(Outcome.CANCELLED, stopped=ended.stopped)
    if ended.violation is not None:
        return _failure(f"the function was killed: {ended.violation}", ended, secrets)
    if sandbox.confines and ended.code == SETUP_FAILED and ended.stderr.startswith("the sandbox"):
        return Verdict(Outcome.RETRYABLE, error=ended.stderr)  # It worked when it was tried.
    if ended.code != 0:
        return _failure(f"the function ended {_describe_status(ended.code, sandbox)}", ended, secrets)
    try:
        reply = parse_reply(ended.stdout)
    except UsageError as error:
        return _failure(str(error), ended, secrets)
    return Verdict(Outcome(reply.outcome), reply, None if reply.error is None else redact(reply.error, secrets))


def _describe_status(code: int, sandbox: Sandbox) -> str:
    if code < 0:
        return f"by signal {-code}"
    if code > 128 and sandbox.confines:  # How a sandbox passes on a signal.
        return f"by signal {code - 128}"
    return f"with status {code}"


def _failure(message: str, ended: Exit, secrets: tuple[str, ...]) -> Verdict:
    """Return a fatal end with the end of its standard error, without what is secret."""
    return Verdict(Outcome.FATAL, error=redact(f"{message}\n{ended.stderr}".strip(), secrets))


def _remove(home: Path) -> None:
    """Delete the directory, even if the function removed permissions in it."""
    for directory, below, _ in os.walk(home):
        for name in below:
            path = Path(directory) / name
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(home, ignore_errors=True)
