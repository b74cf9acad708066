"""The runtime ``container``: an image and a command of a job, run by a container engine of this machine.

The engine is any program with the command line of ``docker run`` and ``docker kill``. The attempt's token and
credentials are passed in a file, so that they are in no list of processes. /qo holds the request; a result that the
command leaves there is its reply. Docs: guides/functions.md.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from qo.api.contract.bundle import Invocation
from qo.api.contract.task import Outcome
from qo.core.redaction import redact
from qo.dispatcher.runtimes.local_functions import access_of
from qo.errors import QoError, Unavailable, UsageError
from qo.function import function_process
from qo.function.execution import time_limit_s
from qo.function.function_messages import Stop, Verdict, parse_reply
from qo.function.function_process import STDOUT_MAX, Exit
from qo.function.sandbox import Access

log = logging.getLogger(__name__)

NO_ENGINE = (
    "this dispatcher runs no containers: set engine of [runtimes.{runtime}] in its settings to a program such as "
    "docker or podman, restart it, then replay the task"
)
TRY_AGAIN = 75  # EX_TEMPFAIL: the command asks for another attempt.
ENGINE_FAILED = 125  # The engine itself failed, not what it ran.
KILL_S = 10.0
PIDS_MAX = 512
REQUEST, RESULT, DIRECTORY = "request.json", "result.json", "/qo"

MintVariables = Callable[[Invocation], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """What the runtime's settings decide about its containers."""

    image: str | None = None  # For jobs that name none.
    memory: str | None = None
    cpus: float | None = None
    network: bool = True
    offered: Mapping[str, str] = field(default_factory=dict[str, str])  # Variables that a job may request.


class Containers:
    """Runs each attempt as one container. ``mint`` returns variables with the attempt's credentials."""

    def __init__(
        self,
        engine: Sequence[str],
        limits: ContainerLimits,
        *,
        data_root: str = "",
        mint: MintVariables = lambda _: {},
    ) -> None:
        self._engine, self._limits = tuple(engine), limits
        self._data_root, self._mint = data_root, mint

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None:
        try:
            variables = self._variables(invocation)
            image, command = self._image(invocation), _command_of(invocation.work.config)
        except Unavailable as error:
            return Verdict(Outcome.RETRYABLE, error=str(error))
        except QoError as error:
            return Verdict(Outcome.FATAL, error=str(error))
        home = Path(tempfile.mkdtemp(prefix="qo-container-")).resolve()
        try:
            return self._run(invocation, variables, [image, *command], home, watch)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _run(
        self,
        invocation: Invocation,
        variables: Mapping[str, str],
        what: list[str],
        home: Path,
        watch: function_process.Watch,
    ) -> Verdict:
        name, work = f"qo-{invocation.task_id}-{invocation.attempt}", invocation.work
        exchange = home / "exchange"
        exchange.mkdir()
        exchange.chmod(0o777)  # The command may run as any user; nobody else can reach it, as home is private.
        (exchange / REQUEST).write_text(invocation.model_dump_json())
        environment = home / "environment"
        environment.write_text("".join(f"{each}={value}\n" for each, value in variables.items()))
        environment.chmod(0o600)
        access = access_of(work, self._data_root, network=self._limits.network)
        for each in access.write:
            each.mkdir(parents=True, exist_ok=True)
        argv = run_command(self._engine, name, what, environment, exchange, access, self._limits)
        try:
            ended = function_process.supervise(
                argv,
                _engine_environment(),
                home,
                Path(os.devnull),
                watch,
                time_limit_s(work.timeout_seconds),
                keep_stdout=False,
                interrupt=lambda: self._kill(name),
            )
        except OSError as error:
            return Verdict(Outcome.RETRYABLE, error=f"{self._engine[0]} cannot be started: {error.strerror}")
        return _judge(ended, exchange / RESULT, tuple(variables.values()))

    def _variables(self, invocation: Invocation) -> dict[str, str]:
        """Return the environment of the container. Raises UsageError, or what minting raises."""
        requested = cast("list[str]", invocation.work.config.get("env", []))
        missing = [name for name in requested if name not in self._limits.offered]
        if missing:
            raise UsageError(
                f"{invocation.work.job} requests the variable {missing[0]}, which env of "
                f"[runtimes.{invocation.work.runtime}] does not offer"
            )
        variables = {name: self._limits.offered[name] for name in requested} | {
            **self._mint(invocation),
            "QO_DISPATCHER_URL": invocation.dispatcher_url,
            "QO_TASK_TOKEN": invocation.capability_token,
            "QO_TASK_ID": invocation.task_id,
            "QO_ATTEMPT": str(invocation.attempt),
            "QO_LEASE_ID": invocation.lease_id,
            "QO_REQUEST": f"{DIRECTORY}/{REQUEST}",
            "QO_RESULT": f"{DIRECTORY}/{RESULT}",
        }
        for name, value in variables.items():
            if "\n" in value or "\0" in value:
                raise UsageError(
                    f"the variable {name} has several lines, which no container engine takes from a file"
                )
        return variables

    def _image(self, invocation: Invocation) -> str:
        image = invocation.work.config.get("image") or self._limits.image
        if image is None:
            raise UsageError(
                f"{invocation.work.job} names no image: write it in its config, or set image of "
                f"[runtimes.{invocation.work.runtime}]"
            )
        return image

    def _kill(self, name: str) -> None:
        """Ending the engine's client does not end the container."""
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [*self._engine, "kill", name],
                env=_engine_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=KILL_S,
            )


def run_command(
    engine: Sequence[str],
    name: str,
    what: Sequence[str],
    environment: Path,
    exchange: Path,
    access: Access,
    limits: ContainerLimits,
) -> list[str]:
    """Return the command line that runs a container. Nothing secret is in it."""
    argv = [*engine, "run", "--rm", "--name", name, "--env-file", str(environment)]
    argv += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", str(PIDS_MAX)]
    if not limits.network:
        argv += ["--network", "none"]
    if limits.memory is not None:
        argv += ["--memory", str(memory_bytes(limits.memory))]
    if limits.cpus is not None:
        argv += ["--cpus", f"{limits.cpus:g}"]
    argv += ["--volume", f"{exchange}:{DIRECTORY}"]
    for each in access.read:
        argv += ["--volume", f"{each}:{each}:ro"]
    for each in access.write:
        argv += ["--volume", f"{each}:{each}"]
    return [*argv, *what]


def memory_bytes(text: str) -> int:
    """Return the bytes of an amount as settings write it, such as 512Mi or 4G."""
    number = text.rstrip("KMGTi")
    unit = text[len(number) :]
    base = 1024 if unit.endswith("i") else 1000
    return int(number) * base ** ("KMGT".index(unit[0]) + 1 if unit else 0)


def _command_of(config: Mapping[str, Any]) -> list[str]:
    return [str(each) for each in config.get("command", [])]


def _engine_environment() -> dict[str, str]:
    """Return what the engine's client needs of our environment: where its server is, and its own files."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "XDG_RUNTIME_DIR") or name.startswith(("DOCKER_", "CONTAINER"))
    }


def _judge(ended: Exit, result: Path, secrets: tuple[str, ...]) -> Verdict:
    if ended.stopped is Stop.RELEASED:
        return Verdict(Outcome.RELEASED, stopped=ended.stopped)
    if ended.stopped is not None:
        return Verdict(Outcome.CANCELLED, stopped=ended.stopped)
    if ended.violation is not None:
        return _failure(Outcome.FATAL, f"the container was killed: {ended.violation}", ended, secrets)
    if ended.code in (ENGINE_FAILED, TRY_AGAIN):
        return _failure(Outcome.RETRYABLE, f"the container ended with status {ended.code}", ended, secrets)
    if ended.code != 0:
        how = f"with status {ended.code}" if ended.code > 0 else f"by signal {-ended.code}"
        return _failure(Outcome.FATAL, f"the container ended {how}", ended, secrets)
    try:
        reply = parse_reply(_read_result(result))
    except UsageError as error:
        return _failure(Outcome.FATAL, str(error), ended, secrets)
    return Verdict(Outcome(reply.outcome), reply, None if reply.error is None else redact(reply.error, secrets))


def _read_result(path: Path) -> bytes:
    """Return the result; without one, the empty reply. Raises UsageError for a link, or a result that is too long."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b"{}"
    except OSError as error:
        raise UsageError(f"the container's {path.name} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(STDOUT_MAX + 1)
    if len(content) > STDOUT_MAX:
        raise UsageError(f"the container's {path.name} has more than {STDOUT_MAX} bytes")
    return content


def _failure(outcome: Outcome, message: str, ended: Exit, secrets: tuple[str, ...]) -> Verdict:
    return Verdict(outcome, error=redact(f"{message}\n{ended.stderr}".strip(), secrets))
