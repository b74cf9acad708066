"""Several worker processes from one command: started alike, restarted when they die, ended together.

Python runs one thread at a time, so one worker uses little more than one core for handlers that do not leave Python.
Each process is a whole worker with an id, a connection and a status page of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from qo.config.settings import BY_KEY, Settings
from qo.errors import ConfigError, Forbidden, NotFound, QoError
from qo.worker.lifeline import Lifeline, RestartDelays
from qo.worker.observe.stats import Stats, plain_counts, sum_counts
from qo.worker.shutdown import handled_signals

log = logging.getLogger(__name__)

# How a worker ends that would end in the same way again: its settings, its app or its rights are wrong.
FINAL = {each.exit_code for each in (ConfigError, NotFound, Forbidden)}


def list_commands(arguments: Sequence[str], flags: Mapping[str, Any], settings: Settings) -> list[list[str]]:
    """Return the command line of each worker: the same, with one process, and with an id and ports of its own."""
    shared = [text for key, value in flags.items() if value is not None for text in _option(key, value)]
    return [[*arguments, *shared, *_own_options(settings, place)] for place in range(settings.worker.workers)]


def _own_options(settings: Settings, place: int) -> list[str]:
    worker = settings.worker
    own: dict[str, Any] = {"worker.workers": 1, "worker.http": _shift_port(worker.http, place)}
    if worker.id is not None:
        own["worker.id"] = f"{worker.id}-{place + 1}"
    if worker.push_address is not None:
        own["worker.push_address"] = _shift_port(worker.push_address, place)
    return [text for key, value in own.items() for text in _option(key, value)]


def _option(key: str, value: Any) -> list[str]:
    flag = BY_KEY[key].flag
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, str(value)]


def _shift_port(address: str, by: int) -> str:
    """Return the address with a port that is higher by so many; port 0, for any free one, stays."""
    host, colon, port = address.rpartition(":")
    return f"{host}:{int(port) + by}" if colon and int(port) else address


async def run_processes(commands: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Run a worker by each command until all have ended. Return the sum of their counters.

    Stop signals go on to all of them. If one cannot run, all are ended, and its exit code is raised.
    """
    lifeline = Lifeline()
    workers = [_WorkerProcess(command, lifeline) for command in commands]
    loop, numbers = asyncio.get_running_loop(), handled_signals()
    for number in numbers:
        loop.add_signal_handler(number, lambda number=number: [each.end(number) for each in workers])
    try:
        await asyncio.gather(*(_run_or_end_all(each, workers) for each in workers))
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        lifeline.close()
    for each in workers:
        if each.code:
            raise _EndedBadly(each.code)
    return sum_counts([plain_counts(Stats()), *(each.counts for each in workers)])


class _EndedBadly(QoError):
    """A worker has ended with an error, which it has printed itself."""

    def __init__(self, code: int) -> None:
        super().__init__("a worker process has ended with an error, which is printed above")
        self.exit_code = code  # type: ignore[misc]


async def _run_or_end_all(worker: _WorkerProcess, workers: Sequence[_WorkerProcess]) -> None:
    await worker.run()
    if worker.code:  # What is wrong is wrong for all of them.
        for each in workers:
            each.end(signal.SIGTERM)


class _WorkerProcess:
    """A worker's process, and those that replace it after a crash."""

    def __init__(self, command: Sequence[str], lifeline: Lifeline) -> None:
        self._command = command
        self._lifeline = lifeline
        self._process: asyncio.subprocess.Process | None = None
        self._ending = asyncio.Event()
        self.counts: dict[str, Any] = {}
        self.code = 0

    def end(self, number: int) -> None:
        """Pass a signal on; restart no more."""
        self._ending.set()
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def run(self) -> None:
        """Run until the worker has ended of its own accord, or by a signal that was passed on."""
        delays = RestartDelays()
        while True:
            began = time.monotonic()
            code = await self._run_once()
            if code == 0 or self._ending.is_set() or code in FINAL:
                self.code = max(code, 0)
                return
            rest_s = delays.next_s(time.monotonic() - began)
            log.warning("a worker process has ended with %d; another is started in %g s", code, rest_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._ending.wait()
            if self._ending.is_set():
                return

    async def _run_once(self) -> int:
        reading, writing = os.pipe()
        inherited = (self._lifeline.reading, writing)
        links = ["--lifeline", str(inherited[0]), "--report", str(inherited[1])]
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "qo",
                *self._command,
                *links,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl+C must reach only this process, which passes it on.
            )
        finally:
            os.close(writing)
        if self._ending.is_set():
            self.end(signal.SIGTERM)
        with os.fdopen(reading, "rb") as report:
            code = await self._process.wait()
            with suppress(ValueError):  # It was killed before it could report.
                self.counts = sum_counts([self.counts, json.loads(report.read())])
        return code
