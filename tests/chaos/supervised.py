"""A ``qo`` process that is started again whenever it has ended, as a supervisor does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from support.cli.command import Qo
from support.process_family import family_of, pause, resume
from support.servers.s3 import LAUNCH

AGAIN_AFTER_S = 0.5


class Supervised:
    def __init__(self, name: str, command: Qo, args: Sequence[str], directory: Path) -> None:
        self.name = name
        self.starts = 0
        self.exits: list[int] = []  # Codes of those that ended by themselves.
        self.said = directory / f"{name}.log"
        self._command, self._args = command, args
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self._killed = False
            with self.said.open("ab") as log:
                log.write(f"--- start {self.starts + 1} at {time.monotonic():.1f}\n".encode())
                log.flush()
                self._process = await asyncio.create_subprocess_exec(
                    # It ends when we end, however that may be.
                    *(sys.executable, "-c", LAUNCH, *self._command.command(*self._args)),
                    cwd=self._command.cwd,
                    env=self._command.environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self.starts += 1
            code = await self._process.wait()
            if not self._killed:
                self.exits.append(code)
            await asyncio.sleep(AGAIN_AFTER_S)

    @property
    def failed(self) -> BaseException | None:
        """Why it is not started any more."""
        return self._running.exception() if self._running.done() and not self._running.cancelled() else None

    def kill(self) -> None:
        self._killed = True
        self._signal(signal.SIGKILL, [self.pid])

    def pause(self) -> list[int]:
        """It stands still with all its children, as a machine does; who they are."""
        family = family_of(self.pid) if self.pid else []
        return pause(*family)

    def resume(self, family: Sequence[int]) -> None:
        resume(*family)

    async def stop(self) -> None:
        """For good, with its children."""
        family = family_of(self.pid) if self.pid else []
        self._running.cancel()
        await asyncio.wait({self._running})
        resume(*family)
        self._signal(signal.SIGKILL, family)
        if self._process is not None:
            await self._process.wait()

    @property
    def pid(self) -> int:
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else 0

    @staticmethod
    def _signal(number: int, pids: Sequence[int]) -> None:
        for each in pids:
            if each:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, number)


def orphans(variable: str) -> list[int]:
    """Processes with this in their environment whose parents are gone: a JVM should end with its worker."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == 1 and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
