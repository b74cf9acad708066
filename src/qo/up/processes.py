"""The processes of an installation: started, watched, started again when they die, and gone when we are.

Each is given the reading end of one pipe. We alone hold the other end and never write to it, so that all of them learn
of our end, also of a kill that leaves us no time to tell them.
"""

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

log = logging.getLogger(__name__)

BACKOFF_S = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)  # Before the first, second, … start after a death.
HEALTHY_S = 60.0  # Who has lived so long begins with the shortest rest again.
GRACE_S = 12.0  # To end after being asked to.
USAGE = ConfigError.exit_code
ERRORS: Mapping[int, type[QoError]] = {  # What a process ended with, by its exit code.
    each.exit_code: each
    for each in (ConfigError, NotFound, Refused, StoreError, Unproven, CorruptRecord, Forbidden)
}


class Lifeline:
    """A pipe whose writing end closes with this process."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()

    def close(self) -> None:
        os.close(self.reading)
        os.close(self._writing)


class Child:
    """One process by its role, and its successors."""

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
        self.said: dict[str, Any] = {}  # What it told last.
        self.log_path = logs / f"{role.replace(':', '-')}.log"
        self._lifeline, self._environ = lifeline, environ
        self._process: asyncio.subprocess.Process | None = None
        self._spoke = asyncio.Event()
        self._stopping = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it, and again whenever it dies, until ``stop``."""
        self._keeping = asyncio.create_task(self._keep(), name=f"qo-{self.role}")

    @property
    def started(self) -> bool:
        return self._keeping is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def first_words(self, within_s: float) -> dict[str, Any]:
        """What it tells first. Raises its own error if that is one, Unavailable if it says nothing."""
        try:
            async with asyncio.timeout(within_s):
                await self._spoke.wait()
        except TimeoutError:
            raise Unavailable(f"the {self.role} does not start: see {self.log_path}") from None
        self.check()
        if (code := self.said.get("code")) is not None:
            raise ERRORS.get(code, QoError)(self.said["error"])
        return self.said

    def check(self) -> None:
        """Raises what the process itself says is wrong, where no restart would mend it."""
        if self.said.get("code") == USAGE:
            raise ConfigError(str(self.said["error"]))
        kept = self._keeping
        if kept is not None and kept.done() and not kept.cancelled() and (error := kept.exception()) is not None:
            raise error

    async def stop(self) -> None:
        """Ask it to end; after a while, end it."""
        self._stopping.set()
        if self._keeping is None:
            return
        self.signal(signal.SIGTERM)
        _, left = await asyncio.wait({self._keeping}, timeout=GRACE_S)
        if left:
            log.warning("%s did not end in %g s and was killed", self.role, GRACE_S)
            self.kill()
            await asyncio.wait(left)

    def kill(self) -> None:
        """End it at once, for good, and whatever it has started."""
        self._stopping.set()
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(self._process.pid, number)  # It leads a session: what it has started goes with it.
                else:
                    self._process.send_signal(number)

    async def _keep(self) -> None:
        try:
            await self._revive()
        finally:
            self._spoke.set()  # Nothing more is to be heard of it.

    async def _revive(self) -> None:
        streak = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._live()
            if self._stopping.is_set() or code == USAGE:
                return
            streak = 0 if time.monotonic() - began > HEALTHY_S else streak
            rest_s = BACKOFF_S[min(streak, len(BACKOFF_S) - 1)]
            streak, self.deaths = streak + 1, self.deaths + 1
            log.warning("%s ended with %s; it is started again in %g s", self.role, code, rest_s)
            await rest(self._stopping, rest_s)

    async def _live(self) -> int:
        """One process, from start to end; its exit code."""
        with private.open_log(self.log_path) as out:
            self._process = await self._spawn(out)
            if self._stopping.is_set():
                self.signal(signal.SIGTERM)
            assert self._process.stdout is not None
            async for line in self._process.stdout:
                self._hear(line)
            code = await self._process.wait()
        if not self._spoke.is_set() and code == USAGE:
            self.said = {"error": f"the {self.role} cannot start: see {self.log_path}", "code": code}
        return code

    def _hear(self, line: bytes) -> None:
        with suppress(ValueError):
            if isinstance(said := json.loads(line), dict):
                self.said = cast("dict[str, Any]", said)
                self._spoke.set()

    async def _spawn(self, log_file: IO[bytes]) -> asyncio.subprocess.Process:
        arguments = [self.role, str(self._lifeline.reading), json.dumps(self.options)]
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # Modules are looked for where PYTHONPATH says, in its order, and nowhere else first.
                "-m",
                "qo.up.part",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
                env=self._environ,
                pass_fds=(self._lifeline.reading,),
                start_new_session=True,  # Ctrl+C is for us: we end the others in their order.
            )
        except OSError as error:
            raise QoError(f"the {self.role} cannot be started: {error}") from error


async def rest(stop: asyncio.Event, seconds: float) -> None:
    """So long, or until the event is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
