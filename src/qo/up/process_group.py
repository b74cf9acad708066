"""The child processes of an installation: start them, restart them when they die, and end them with this process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from qo.errors import (
    ConfigError,
    CorruptRecord,
    Forbidden,
    NotFound,
    QoError,
    Refused,
    StoreError,
    Unavailable,
    Unproven,
)
from qo.store import private
from qo.up.child_main import WORKER
from qo.worker.lifeline import Lifeline, RestartDelays

log = logging.getLogger(__name__)

GRACE_S = 12.0  # How long a process may take to end after SIGTERM.
USAGE = ConfigError.exit_code
ERRORS: Mapping[int, type[QoError]] = {  # The errors of processes, by their exit code.
    each.exit_code: each
    for each in (ConfigError, NotFound, Refused, StoreError, Unproven, CorruptRecord, Forbidden)
}


class ChildProcess:
    """A process with a role, and the processes that replace it after a crash."""

    def __init__(
        self,
        role: str,
        options: Mapping[str, Any],
        *,
        lifeline: Lifeline,
        environ: Mapping[str, str],
        logs: Path,
    ) -> None:
        self.role = role
        self.options = dict(options)
        self.deaths = 0
        self.has_retired = False  # It ended of its own accord, because there was nothing to do.
        self.last_message: dict[str, Any] = {}  # What the process sent last.
        self.log_path = logs / f"{role.replace(':', '-')}.log"
        self._lifeline, self._environ = lifeline, environ
        self._process: asyncio.subprocess.Process | None = None
        self._message_received = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the process, and restart it whenever it dies, until ``stop``."""
        self.has_retired = False
        self._supervisor = asyncio.create_task(self._supervise(), name=f"qo-{self.role}")

    @property
    def started(self) -> bool:
        return self._supervisor is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def first_message(self, within_s: float) -> dict[str, Any]:
        """Return the first message of the process. Raises its error if it sent one, Unavailable if it sends nothing."""
        try:
            async with asyncio.timeout(within_s):
                await self._message_received.wait()
        except TimeoutError:
            raise Unavailable(f"the {self.role} does not start: see {self.log_path}") from None
        self.check()
        if (code := self.last_message.get("code")) is not None:
            raise ERRORS.get(code, QoError)(self.last_message["error"])
        return self.last_message

    def check(self) -> None:
        """Raise the error that the process has reported, if a restart would not help."""
        if self.last_message.get("code") == USAGE:
            raise ConfigError(str(self.last_message["error"]))
        supervisor = self._supervisor
        if (
            supervisor is not None
            and supervisor.done()
            and not supervisor.cancelled()
            and (error := supervisor.exception()) is not None
        ):
            raise error

    async def stop(self) -> None:
        """Send SIGTERM; after a grace period, kill the process."""
        self._stop_requested.set()
        if self._supervisor is None:
            return
        self.signal(signal.SIGTERM)
        _, unfinished = await asyncio.wait({self._supervisor}, timeout=GRACE_S)
        if unfinished:
            log.warning("%s did not end in %g s and was killed", self.role, GRACE_S)
            self.kill()
            await asyncio.wait(unfinished)

    def kill(self) -> None:
        """Kill the process and its children, and do not restart it."""
        self._stop_requested.set()
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(self._process.pid, number)  # It leads a session, so its children end with it.
                else:
                    self._process.send_signal(number)

    async def _supervise(self) -> None:
        try:
            await self._restart_until_stopped()
        finally:
            self._message_received.set()  # No more messages will come.

    async def _restart_until_stopped(self) -> None:
        delays = RestartDelays()
        while not self._stop_requested.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stop_requested.is_set() or code == USAGE:
                return
            if code == 0 and self.role.startswith(WORKER):
                self.has_retired = True
                return
            rest_s = delays.next_s(time.monotonic() - began)
            self.deaths += 1
            log.warning("%s ended with %s; it is restarted in %g s", self.role, code, rest_s)
            await wait_or_stop(self._stop_requested, rest_s)

    async def _run_once(self) -> int:
        """Run one process from start to end, and return its exit code."""
        with private.open_log(self.log_path) as out:
            self._process = await self._spawn(out)
            if self._stop_requested.is_set():
                self.signal(signal.SIGTERM)
            assert self._process.stdout is not None
            async for line in self._process.stdout:
                self._receive(line)
            code = await self._process.wait()
        if not self._message_received.is_set() and code == USAGE:
            self.last_message = {"error": f"the {self.role} cannot start: see {self.log_path}", "code": code}
        return code

    def _receive(self, line: bytes) -> None:
        with suppress(ValueError):
            if isinstance(message := json.loads(line), dict):
                self.last_message = cast("dict[str, Any]", message)
                self._message_received.set()

    async def _spawn(self, log_file: IO[bytes]) -> asyncio.subprocess.Process:
        arguments = [self.role, str(self._lifeline.reading), json.dumps(self.options)]
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # Import modules from PYTHONPATH first, not from the current directory.
                "-m",
                "qo.up.child_main",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
                env=self._environ,
                pass_fds=(self._lifeline.reading,),
                start_new_session=True,  # Ctrl+C must reach only this process, which ends the others in order.
            )
        except OSError as error:
            raise QoError(f"the {self.role} cannot be started: {error}") from error


async def wait_or_stop(stop: asyncio.Event, seconds: float) -> None:
    """Wait for the time, or until the event is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
