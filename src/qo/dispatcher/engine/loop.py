"""The loop runner: it calls a tick again at once while there may be more to do, else after a rest or when nudged.

A tick that fails is logged and retried with growing delays. Only ``stop`` ends a loop.
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
FAILURES_MAX = 3  # Consecutive failures from which on a loop is in trouble.
TICK_S_MAX = 60.0  # A loop whose tick takes longer is in trouble, too.

Tick = Callable[[], int] | Callable[[], Awaitable[int]]  # Returns how much it did.


@dataclass(slots=True)
class Health:
    """The health of a loop. Times are of the process's monotonic clock."""

    ticks: int = 0
    processed: int = 0  # The sum of what all ticks returned.
    failures: int = 0
    failing: int = 0  # Consecutive failures up to now.
    error: str | None = None  # Of the last tick, if it failed.
    began_at: float | None = None  # Of the current tick.
    ended_at: float | None = None  # Of the last tick.
    took_s: float = 0.0  # The last tick.


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
        """``batch``: how much a tick does at most; one that did less has left nothing. ``on_work`` is called after each
        tick that did something. A tick that is no coroutine function runs on a thread of ``executor``."""
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
        """End the rest: there may be something to do. Call it from the event loop's thread."""
        self._nudged.set()

    def stop(self) -> None:
        """End the loop after the current tick."""
        self._stopped.set()
        self._nudged.set()

    async def run(self) -> None:
        while not self._stopped.is_set():
            self._nudged.clear()  # Before the tick: a nudge during the tick may be for something that it did not see.
            did = await self._once()
            if did is None:
                # Do not let nudges shorten the delay: what is down must not be overloaded.
                await _until(self._stopped, delay_s(BACKOFF, self.health.failing - 1, self._ambient.unit()))
                continue
            if did > 0:
                self._on_work()
            if did < self._batch and not self._stopped.is_set():
                await _until(self._nudged, self._rest_s)

    async def once(self) -> int:
        """Run one tick here and now. Errors are raised to the caller."""
        did = self.tick()
        return await did if inspect.isawaitable(did) else did

    @property
    def trouble(self) -> str | None:
        """What is wrong with the loop, for people; None if it works."""
        health = self.health
        if health.failing >= FAILURES_MAX:
            return f"{self.name} has failed {health.failing} times in a row: the log says why"
        if health.began_at is not None and (busy_s := self._ambient.monotonic() - health.began_at) > TICK_S_MAX:
            return f"a tick of {self.name} has been running for {busy_s:.0f} s"
        return None

    @property
    def idle_s(self) -> float | None:
        """How long ago the last tick ended; None before the first has ended."""
        ended_at = self.health.ended_at
        return None if ended_at is None else self._ambient.monotonic() - ended_at

    async def _once(self) -> int | None:
        """Run a tick and record its health. Return how much it did; None if it failed."""
        health = self.health
        began_at = health.began_at = self._ambient.monotonic()
        try:
            did = await self._call()
        except Exception as error:
            health.failures += 1
            health.failing += 1
            health.error = f"{type(error).__name__}: {error}"
            self._log_failure(error)
            return None
        else:
            if health.failing >= FAILURES_MAX:
                log.info("%s works again after %d failures", self.name, health.failing)
            health.failing, health.error = 0, None
            health.processed += did
            return did
        finally:
            health.ticks += 1
            health.began_at, health.ended_at = None, self._ambient.monotonic()
            health.took_s = health.ended_at - began_at

    def _log_failure(self, error: Exception) -> None:
        """Log the traceback only of the first failure in a row, and not if a service is unavailable: all loops would
        log the same."""
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
            f"the tick of {self.name} must be a coroutine function or return how much it did"
        )
        return did


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
