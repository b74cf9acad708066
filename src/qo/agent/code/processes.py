"""A process for each version whose code cannot run beside others in one interpreter.

The worker claims; the process runs the attempt from its first heartbeat to its settled end, with the same code that the
worker would have used, and says when that is done. It lives as long as there is something for it to do, and a while
longer; it ends with the worker, however that ends, because nobody holds the other end of its standard input any more.
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

IDLE_S = 300.0  # Then a process that has nothing to do ends.
GRACE_S = 15.0  # To end after its input was closed.
LINE_MAX = 64 * 1024 * 1024  # A claim may name a hundred thousand files.


class ProcessDied(Exception):
    """It ended, or was killed, before the attempt was settled."""


class SlotHolder(Protocol):
    """The worker's side of an attempt."""

    @property
    def cancel(self) -> CancelToken: ...

    def free_slot(self) -> None: ...


class VersionProcesses:
    """``close`` it before the store."""

    def __init__(self, settings: Settings, executor: str, store: CodeStore, *, idle_s: float = IDLE_S) -> None:
        # Where settings came from is of no use there, and cannot be pickled.
        self._settings = b64encode(pickle.dumps(replace(settings, origins={}))).decode()
        self._executor = executor
        self._starting = asyncio.Lock()
        self.store = store
        self._idle_s = idle_s
        self._processes: dict[Path, VersionProcess] = {}

    async def find(self, root: Path) -> VersionProcess:
        """The process of the code below ``root``, started if there is none."""
        async with self._starting:
            process = self._processes.get(root)
            if process is None or process.ended:
                process = self._processes[root] = await self._start(root)
            process.keep()
            return process

    @property
    def pids(self) -> list[int]:
        """Of those that are alive."""
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
            start_new_session=True,  # Signals of a terminal are for the worker, which passes on what it wants.
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
        with contextlib.suppress(OSError, RuntimeError):  # It is gone, and whoever waits learns that.
            self._child.stdin.write(json.dumps(message).encode() + b"\n")

    def keep(self) -> None:
        """There is something for it to do: it does not end for want of that."""
        if self._idle is not None:
            self._idle.cancel()

    async def run(self, claimed: Claimed, context: SlotHolder) -> str | Acked:
        """Have it run an attempt to its settled end. Raises ProcessDied."""
        key = f"{claimed.work.task_id}:{claimed.attempt}"
        end: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[key], self._slots[key] = end, context
        self.keep()
        if self._listening.done():
            self._give_up()
        self.send({"run": key, "claimed": claimed.model_dump(mode="json")})
        try:
            try:
                await asyncio.wait({end})
            except asyncio.CancelledError:
                # The worker wants its slot back; the attempt is given back by who runs it.
                why = context.cancel.why
                self.send({"stop": key, "why": (Why.SHUTDOWN if why in (None, Why.LOST) else why).name})
                await asyncio.wait({end})
                raise
            said = end.result()
            return Acked(said["text"], failed=True) if said["failed"] else str(said["text"])
        finally:
            del self._waiting[key], self._slots[key]
            if not self._waiting:
                self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._leave)

    async def close(self) -> None:
        self._leave()
        # No asyncio.timeout: before Python 3.11.3 it raises CancelledError in a worker that was cancelled.
        await asyncio.wait({asyncio.create_task(self._child.wait())}, timeout=GRACE_S)
        if self._child.returncode is None:
            log.warning("the process %d of a version did not end in %g s and was killed", self.pid, GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # What it has started goes with it.
            await self._child.wait()
        await asyncio.gather(self._listening, return_exceptions=True)

    def _leave(self) -> None:
        """Let it end."""
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
            self._give_up()

    def _receive(self, message: Mapping[str, Any]) -> None:
        key = message["of"]
        if message.get("freed"):
            self._slots[key].free_slot()
        elif key in self._waiting and not self._waiting[key].done():
            self._waiting[key].set_result(message)

    def _give_up(self) -> None:
        code = self._child.returncode
        for each in self._waiting.values():
            if not each.done():
                each.set_exception(ProcessDied(f"it ended with {code}"))
