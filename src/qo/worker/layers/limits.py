"""Limits: how many run at a time, and how many start in a time.

A limit is a layer and may wrap several services, which then share it. It can be asked for its ``room`` before a task
is claimed. Waiting for it does not count towards the timeout.
"""

from __future__ import annotations

import asyncio
from collections import deque

from qo.queue.options import check_number
from qo.worker.handler import Rate
from qo.worker.layers.admission import AGAIN_AFTER_S
from qo.worker.layers.permits import Permits
from qo.worker.outcome import Outcome
from qo.worker.request import Overloaded, Request
from qo.worker.stack import Service

_ROUNDING = 1e-9


class ConcurrencyLimit:
    """A permit is given back when what lies inside has returned or raised."""

    def __init__(self, n: int) -> None:
        check_number("concurrency_limit", n, 1, 1_000_000)
        self._n = n
        self._permits = Permits(n)

    def room(self) -> int:
        """How many more could start now."""
        return self._permits.free

    def __call__(self, inner: Service) -> Service:
        permits = self._permits

        async def run(request: Request) -> Outcome:
            if not permits.take():
                await self._wait(request)
            try:
                return await inner(request)
            finally:
                permits.give()

        return run

    async def _wait(self, request: Request) -> None:
        if not request.patient:
            raise Overloaded(f"{self._n} run already", AGAIN_AFTER_S)
        with request.clock.stopped():
            await self._permits.wait()


class RateLimit:
    """A bucket that holds one token for each start and fills up evenly: after a pause, ``starts`` may come at once,
    and in any time ``t`` no more than ``starts + t * starts / per_s``.
    """

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._every_s = rate.per_s / rate.starts
        self._burst_s = self._every_s * (rate.starts - 1)  # How far ahead of an even pace a start may be.
        # When the next start would be due at an even pace; by the event loop's time. Before the first: long ago.
        self._due = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def room(self) -> int:
        """How many more could start now."""
        if self._waiting:
            return 0
        now = asyncio.get_running_loop().time()
        ahead = max(0.0, self._due - now) / self._every_s
        return max(0, int(self._rate.starts - ahead + _ROUNDING))

    def __call__(self, inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            now = asyncio.get_running_loop().time()
            if self._waiting or now < self._due - self._burst_s:
                await self._wait(request, now)
            else:
                self._take(now)
            return await inner(request)

        return run

    def _take(self, now: float) -> None:
        self._due = max(self._due, now) + self._every_s

    async def _wait(self, request: Request, now: float) -> None:
        if not request.patient:
            wait_s = self._due - self._burst_s - now + len(self._waiting) * self._every_s
            raise Overloaded(f"{self._rate.starts} starts in {self._rate.per_s:g} s, at most", max(0.0, wait_s))
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._timer is None:
            self._arm()
        with request.clock.stopped():
            # A token that comes in the moment of a cancellation is lost: one start less, never one more.
            await turn

    def _arm(self) -> None:
        at = self._due - self._burst_s
        self._timer = asyncio.get_running_loop().call_at(at, self._tick, at)

    def _tick(self, at: float) -> None:
        """Let in whoever has waited longest. A timer may ring a tick early, so the later of the two times counts."""
        self._timer = None
        now = max(at, asyncio.get_running_loop().time())
        while self._waiting and (self._waiting[0].done() or now >= self._due - self._burst_s):
            turn = self._waiting.popleft()
            if not turn.done():  # Otherwise it was cancelled.
                self._take(now)
                turn.set_result(None)
        if self._waiting:
            self._arm()


def concurrency_limit(n: int) -> ConcurrencyLimit:
    """Let at most ``n`` requests run at a time, the others in the order in which they came."""
    return ConcurrencyLimit(n)


def rate_limit(starts: int | Rate, per_s: float = 1.0) -> RateLimit:
    """Let at most so many requests start in so many seconds, in the order in which they came."""
    return RateLimit(starts if isinstance(starts, Rate) else Rate(starts, per_s))
