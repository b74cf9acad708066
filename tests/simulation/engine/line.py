"""One process's way to the store, on which everything happens that happens on a network, and to its process.

Requests are numbered. What befalls the n-th was drawn for it: nothing before changes it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from qo.ambient import Ambient
from qo.core import storetime
from qo.errors import Unavailable
from qo.store.faulty import Fault, FaultPlan, Faulty
from qo.store.port import ObjectStore
from qo.testing import virtual
from simulation.engine.faults import Faults
from simulation.engine.machines import PROCESS, machines

T = TypeVar("T")

NOTHING = FaultPlan()
TIME_ASKED_MAX = 3  # As often as a client of a real store asks.


@dataclass(frozen=True, slots=True)
class Perils:
    """How likely each is, at one request."""

    plan: FaultPlan = NOTHING
    crash: float = 0.0
    pause: float = 0.0
    pause_s: tuple[float, float] = (0.1, 60.0)
    outages_s: tuple[tuple[float, float], ...] = ()  # By the loop's time.
    learns_time: bool = False  # From whole seconds in replies, as on S3; or it knows the store's clock exactly.


class Line(Faulty):
    def __init__(self, name: str, truth: ObjectStore, perils: Perils, faults: Faults) -> None:
        super().__init__(truth, perils.plan, Ambient.seeded(0, virtual.monotonic))
        self.name = name
        self._home = PROCESS.get()  # Whose line it is: nobody else may use it.
        self._perils = perils
        self._faults = faults
        self._chance = faults.stream(f"line {name}")
        self._requests = 0
        self._cut: asyncio.Event | None = None
        self._offset: storetime.Offset | None = None
        self._asked_at = -math.inf
        self._told = datetime.min.replace(tzinfo=UTC)

    def cut(self) -> None:
        """From now on requests hang, wherever they are just then."""
        self._cut = asyncio.Event()

    def mend(self) -> None:
        if self._cut is not None:
            self._cut.set()
            self._cut = None

    async def now(self) -> datetime:
        if not self._perils.learns_time:
            return await self.store.now()
        for _ in range(TIME_ASKED_MAX):
            if self._offset is not None:
                at = virtual.monotonic()
                if self._offset.is_usable(at, asked_at=self._asked_at):
                    break
                self._asked_at = at
            await self._run_with_fault("time", self.store.now)
        if self._offset is None:
            raise Unavailable("the time is not known")
        moment = datetime.fromtimestamp(self._offset.store_time(virtual.monotonic()), UTC)
        self._told = storetime.steady(self._told, moment)
        return self._told

    async def _run_with_fault(
        self, what: str, act: Callable[[], Awaitable[T]], possible: Sequence[Fault] = tuple(Fault)[:2]
    ) -> T:
        self._requests += 1
        number, sent = f"{self.name}.{self._requests}", virtual.monotonic()
        if PROCESS.get() != self._home:
            machines().refuse(f"{sent:.3f}: request {number} of {self._home!r} was sent by {PROCESS.get()!r}")
        # As many draws for each request, whatever comes of them: so those of the next stay as they are.
        draw, perils = self._chance.random, self._perils
        slow, which, fate, when, long = draw(), draw(), draw(), draw(), draw()
        is_stopped = fate < perils.crash + perils.pause
        least_s, most_s = self.plan.latency_s
        pause_s = (least_s + slow * (most_s - least_s)) / 2
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        await self._passes()
        self._faults.trace.say(f"{sent:.3f} {number} {what}")
        if is_stopped and when < 0.5:
            await self._stopped(number, fate, long)
        fault = self._befalls(number, which, possible)
        if fault in (Fault.OUTAGE, Fault.REFUSED, Fault.CONFLICT):
            raise self._error(fault, what)
        result = await act()
        second = math.floor((await self.store.now()).timestamp()) if perils.learns_time else None
        if is_stopped and when >= 0.5:
            await self._stopped(number, fate, long)
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        await self._passes()
        if fault is not None:
            raise self._error(fault, what)
        if second is not None:
            received = virtual.monotonic()
            self._offset = storetime.observe(self._offset, sent_at=sent, received_at=received, second=second)
        return result

    def _befalls(self, number: str, which: float, possible: Sequence[Fault]) -> Fault | None:
        for n, (start, end) in enumerate(self._perils.outages_s):
            if start <= virtual.monotonic() < end and self._faults.strikes(f"{self.name}.o{n}", "outage"):
                return Fault.OUTAGE
        if self._away:
            return Fault.OUTAGE
        plan = self.plan
        if which >= plan.refused + plan.lost_reply + plan.conflict + plan.own_412:
            return None
        for fault in possible:
            which -= self.plan.chance(fault)
            if which < 0:
                return fault if self._faults.strikes(number, fault.value) else None
        return None

    async def _stopped(self, number: str, fate: float, long: float) -> None:
        """The process dies here, or stands still for a while. Who has none is never stopped."""
        perils, process = self._perils, PROCESS.get()
        if not process:
            return
        if fate < perils.crash:
            if self._faults.strikes(f"{number}x", "crash"):
                machines().kill(process)
                await self._stand_still()
        elif self._faults.strikes(f"{number}z", "pause"):
            least_s, most_s = perils.pause_s
            machines().pause(process, least_s + long**3 * (most_s - least_s))  # Mostly short.
            await self._stand_still()

    async def _stand_still(self) -> None:
        """Until the process goes on. One that was killed, also while it was paused, goes on only to be buried."""
        await asyncio.sleep(0)
        await self._passes()

    async def _passes(self) -> None:
        while self._cut is not None:
            await self._cut.wait()
        if machines().over and PROCESS.get():
            raise Unavailable("this process is gone")
