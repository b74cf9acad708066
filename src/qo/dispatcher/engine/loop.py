"""The runner of ticks: again at once while there may be more to do, else after a rest or when nudged.

A tick that fails is logged and tried again later, a little longer each time. Nothing ends a loop but ``stop``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from qo.ambient import SYSTEM, Ambient
from qo.core.retry import delay_s
from qo.core.task import RetryPolicy
from qo.errors import Unavailable

log = logging.getLogger(__name__)

BACKOFF = RetryPolicy(initial_interval_ms=100, max_interval_ms=10_000, multiplier=2.0, jitter_percent=0.25)
FAILURES_MAX = 3  # In a row; a loop that fails more often is in trouble.
TICK_S_MAX = 60.0  # A tick that takes longer is in trouble, too.

Tick = Callable[[], int] | Callable[[], Awaitable[int]]  # Says how much it did.


@dataclass(slots=True)
class Health:
    """How a loop fares. Times are of the process's own steady clock."""

    ticks: int = 0
    done: int = 0  # What all ticks said they did, together.
    failures: int = 0
    failing: int = 0  # Failures in a row, now.
    error: str | None = None  # Of the last tick, if it failed.
    began_at: float | None = None  # Of the tick under way.
    ended_at: float | None = None  # Of the last one.
    took_s: float = 0.0  # The last one.


class Loop:
    def __init__(
        self,
        name: str,
        tick: Tick,
        *,
        rest_s: float,
        batch: int = 1,
        on_work: Callable[[], None] = lambda: None,
        executor: Executor | None = None,
        ambient: Ambient = SYSTEM,
    ) -> None:
        """``batch``: how much a tick does at once; one that did less has left nothing. ``on_work`` is called after each
        that did something. A plain tick runs on a thread of ``executor``."""
        self.name = name
        self.tick = tick
        self.health = Health()
        self._rest_s = rest_s
        self._batch = batch
        self._on_work = on_work
        self._executor = executor
        self._ambient = ambient
        self._nudged = asyncio.Event()
        self._stopped = asyncio.Event()

    def nudge(self) -> None:
        """Do not rest: there may be something to do. From the loop's own thread."""
        self._nudged.set()

    def stop(self) -> None:
        """End after the tick that is under way."""
        self._stopped.set()
        self._nudged.set()

    async def run(self) -> None:
        while not self._stopped.is_set():
            self._nudged.clear()  # Before the tick: who nudges during it may speak of what it did not see.
            did = await self._once()
            if did is None:
                # A nudge must not wear out what is down.
                await _until(self._stopped, delay_s(BACKOFF, self.health.failing - 1, self._ambient.unit()))
                continue
            if did > 0:
                self._on_work()
            if did < self._batch and not self._stopped.is_set():
                await _until(self._nudged, self._rest_s)

    async def once(self) -> int:
        """One tick here and now; its error is the caller's."""
        did = self.tick()
        return await did if inspect.isawaitable(did) else did

    @property
    def trouble(self) -> str | None:
        """What a person should know of; None: it does its work."""
        health = self.health
        if health.failing >= FAILURES_MAX:
            return f"{self.name} has failed {health.failing} times in a row: the log says why"
        if health.began_at is not None and (busy_s := self._ambient.monotonic() - health.began_at) > TICK_S_MAX:
            return f"{self.name} has not come back for {busy_s:.0f} s"
        return None

    @property
    def idle_s(self) -> float | None:
        """How long ago its last tick ended; None before the first has."""
        ended_at = self.health.ended_at
        return None if ended_at is None else self._ambient.monotonic() - ended_at

    async def _once(self) -> int | None:
        """How much it did; None if it failed."""
        health = self.health
        began_at = health.began_at = self._ambient.monotonic()
        try:
            did = await self._call()
        except Exception as error:
            health.failures += 1
            health.failing += 1
            health.error = f"{type(error).__name__}: {error}"
            self._tell(error)
            return None
        else:
            if health.failing >= FAILURES_MAX:
                log.info("%s works again after %d failures", self.name, health.failing)
            health.failing, health.error = 0, None
            health.done += did
            return did
        finally:
            health.ticks += 1
            health.began_at, health.ended_at = None, self._ambient.monotonic()
            health.took_s = health.ended_at - began_at

    def _tell(self, error: Exception) -> None:
        """A trace is of use once, and not where something is away: all loops would show the same of it."""
        if self.health.failing == 1 and not isinstance(error, Unavailable):
            log.error("%s failed: %s", self.name, self.health.error, exc_info=error)
        else:
            notes: list[str] = getattr(error, "__notes__", [])
            log.error("%s failed: %s", self.name, "; ".join([self.health.error or "", *notes]))

    async def _call(self) -> int:
        if inspect.iscoroutinefunction(self.tick):
            return await self.tick()
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._plain)

    def _plain(self) -> int:
        did = self.tick()
        assert isinstance(did, int), (
            f"the tick of {self.name} must be a coroutine function, or say how much it did"
        )
        return did


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
