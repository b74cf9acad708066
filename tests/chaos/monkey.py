"""Brings the faults about, each at its time."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from chaos.ground import Ground
from chaos.plan import Fault


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that happened. Both times are of the clock that all processes share."""

    fault: Fault
    began: float
    over: float  # When what was hit could go on, or could be started again.


class Monkey:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(
            asyncio.Lock
        )  # One fault at a time for each target.
        self.injected: list[Injected] = []

    async def run(self, faults: Sequence[Fault]) -> None:
        """Until the last fault is over."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, started + fault.at_s - time.monotonic()))
                group.create_task(self._inject(fault))

    async def _inject(self, fault: Fault) -> None:
        async with self._busy[fault.target]:
            began = time.monotonic()
            match fault.kind:
                case "kill" | "pause":
                    await self._process(fault)
                case "restart":
                    await self._server(fault)
                case "drop" | "slow" | "cut":
                    link = self._ground.links[fault.target]
                    link.turn(fault.kind)
                    await asyncio.sleep(fault.lasts_s)
                    link.turn("fair")
                case "full":
                    disk = self._ground.disks[fault.target]
                    await asyncio.to_thread(disk.fill)
                    await asyncio.sleep(fault.lasts_s)
                    disk.clear()
                case "lock":
                    lock = self._ground.locks[fault.target]
                    await asyncio.to_thread(lock.take)
                    await asyncio.sleep(fault.lasts_s)
                    lock.release()
                case _:
                    assert_never(fault.kind)
            self.injected.append(Injected(fault, began, time.monotonic()))

    async def _process(self, fault: Fault) -> None:
        process = self._ground.processes[fault.target]
        if fault.kind == "kill":
            process.kill()
            return
        family = process.pause()
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            process.resume(family)

    async def _server(self, fault: Fault) -> None:
        server = self._ground.servers[fault.target]
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(fault.lasts_s)
        await asyncio.to_thread(server.start)  # On a thread that lives on: a server ends with who started it.
