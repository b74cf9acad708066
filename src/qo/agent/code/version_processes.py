"""Starts a process for each version whose code cannot share an interpreter with others.

The worker claims; the process runs the attempt, sends its heartbeats and reports its outcome, as the worker would have
done. It ends when it has been idle for a while, and whenever the worker ends, because its standard input is then
closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import signal
import sys
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from qo.agent.code.bundle_cache import CodeStore
from qo.api.contract.task import Claimed
from qo.config.settings import Settings
from qo.worker.loop.cancel import CancelToken, Why
from qo.worker.loop.outcome import Acked

log = logging.getLogger(__name__)

IDLE_S = 300.0  # An idle process ends after so long.
GRACE_S = 15.0  # For a process to end after its input was closed.
LINE_MAX = 64 * 1024 * 1024  # A claim may name a hundred thousand files.


class ProcessDied(Exception):
    """The process ended, or was killed, before the attempt was completed."""


class SlotHolder(Protocol):
    """The context of an attempt in the worker."""

    @property
    def cancel(self) -> CancelToken: ...

    def free_slot(self) -> None: ...


class VersionProcesses:
    """The processes of a worker. Close it before the store."""

    def __init__(self, settings: Settings, executor: str, store: CodeStore, *, idle_s: float = IDLE_S) -> None:
        # The origins of settings cannot be pickled, and are not needed there.
        self._settings = b64encode(pickle.dumps(replace(settings, origins={}))).decode()
        self._executor = executor
        self._starting = asyncio.Lock()
        self.store = store
        self._idle_s = idle_s
        self._processes: dict[Path, VersionProcess] = {}

    async def find(self, root: Path) -> VersionProcess:
        """Return the process of the code below ``root``, started if there is none."""
        async with self._starting:
            process = self._processes.get(root)
            if process is None or process.ended:
                process = self._processes[root] = await self._start(root)
            process.keep()
            return process

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that are alive."""
        return [each.pid for each in self._processes.values() if not each.ended]

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._processes.values()))

    async def _start(self, root: Path) -> VersionProcess:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "qo.agent.code.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_MAX,
            start_new_session=True,  # Signals of a terminal are for the worker alone.
        )
        process = VersionProcess(child, self._idle_s)
        process.send({"root": str(root), "executor": self._executor, "settings": self._settings})
        log.info("the code in %s runs in a process of its own, %d", root, child.pid)
        return process


class VersionProcess:
    def __init__(self, child: asyncio.subprocess.Process, idle_s: float) -> None:
        self._child = child
        self._idle_s = idle_s
        self._waiting: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._slots: dict[str, SlotHolder] = {}
        self._listening = asyncio.create_task(self._listen())
        self._idle: asyncio.TimerHandle | None = None
        self._closing = False

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def ended(self) -> bool:
        return self._closing or self._listening.done()

    def send(self, message: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):  # It has died, which fails the waiting attempts.
            self._child.stdin.write(json.dumps(message).encode() + b"\n")

    def keep(self) -> None:
        """Cancel the idle timer: there is something to do."""
        if self._idle is not None:
            self._idle.cancel()

    async def run(self, claimed: Claimed, context: SlotHolder) -> str | Acked:
        """Have the process run an attempt and report its outcome. Raises ProcessDied."""
        key = f"{claimed.work.task_id}:{claimed.attempt}"
        end: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[key], self._slots[key] = end, context
        self.keep()
        if self._listening.done():
            self._fail_waiting()
        self.send({"run": key, "claimed": claimed.model_dump(mode="json")})
        try:
            try:
                await asyncio.wait({end})
            except asyncio.CancelledError:
                # The worker wants its slot back; the process releases the task.
                why = context.cancel.why
                self.send({"stop": key, "why": (Why.SHUTDOWN if why in (None, Why.LOST) else why).name})
                await asyncio.wait({end})
                raise
            reply = end.result()
            return Acked(reply["text"], failed=True) if reply["failed"] else str(reply["text"])
        finally:
            del self._waiting[key], self._slots[key]
            if not self._waiting:
                self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._close_input)

    async def close(self) -> None:
        self._close_input()
        # No asyncio.timeout: before Python 3.11.3 it raises CancelledError in a worker that was cancelled.
        await asyncio.wait({asyncio.create_task(self._child.wait())}, timeout=GRACE_S)
        if self._child.returncode is None:
            log.warning("the process %d of a version did not end in %g s and was killed", self.pid, GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # With all that it has started.
            await self._child.wait()
        await asyncio.gather(self._listening, return_exceptions=True)

    def _close_input(self) -> None:
        """Close the standard input, upon which the process ends."""
        self._closing = True
        if self._idle is not None:
            self._idle.cancel()
        if self._child.stdin is not None:
            self._child.stdin.close()

    async def _listen(self) -> None:
        assert self._child.stdout is not None
        try:
            async for line in self._child.stdout:
                self._receive(json.loads(line))
            await self._child.wait()
        finally:
            self._fail_waiting()

    def _receive(self, message: Mapping[str, Any]) -> None:
        key = message["of"]
        if message.get("freed"):
            self._slots[key].free_slot()
        elif key in self._waiting and not self._waiting[key].done():
            self._waiting[key].set_result(message)

    def _fail_waiting(self) -> None:
        code = self._child.returncode
        for each in self._waiting.values():
            if not each.done():
                each.set_exception(ProcessDied(f"it ended with {code}"))
