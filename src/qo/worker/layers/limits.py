"""Limits: how many handlers run at a time, and how many start per time.

A limit is a layer and may wrap several services, which then share it. Its ``room`` is checked before a task is claimed.
Waiting for it does not count towards the timeout.
"""

from __future__ import annotations

import asyncio
from collections import deque

from qo.queue.options import check_number
from qo.worker.api.handler import Rate
from qo.worker.api.request import Overloaded, Request
from qo.worker.layers.admission import AGAIN_AFTER_S
from qo.worker.layers.permits import Permits
from qo.worker.layers.stack import Service
from qo.worker.loop.outcome import Outcome


class ConcurrencyLimit:
    """Lets at most ``n`` requests run at a time. A permit is returned when the service inside has ended."""

    def __init__(self, n: int) -> None:
        check_number("concurrency_limit", n, 1, 1_000_000)
        self._n = n
        self._permits = Permits(n)

    def room(self) -> int:
        """Return how many more could start now."""
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
        if not request.may_wait:
            raise Overloaded(f"{self._n} run already", AGAIN_AFTER_S)
        with request.clock.pause():
            await self._permits.wait()


class RateLimit:
    """Lets no more than ``starts`` requests begin within any period of ``per_s`` seconds."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._recent: deque[float] = deque(
            maxlen=rate.starts
        )  # When the last ones began, by the event loop's time.
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def room(self) -> int:
        """Return how many more could start now."""
        if self._waiting:
            return 0
        self._drop_old_starts(asyncio.get_running_loop().time())
        return self._rate.starts - len(self._recent)

    def __call__(self, inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            now = asyncio.get_running_loop().time()
            self._drop_old_starts(now)
            if self._waiting or len(self._recent) == self._rate.starts:
                await self._wait(request, now)
            else:
                self._recent.append(now)
            return await inner(request)

        return run

    def _drop_old_starts(self, now: float) -> None:
        """Forget the starts that no longer count."""
        while self._recent and self._recent[0] + self._rate.per_s <= now:
            self._recent.popleft()

    async def _wait(self, request: Request, now: float) -> None:
        if not request.may_wait:
            rounds, place = divmod(len(self._waiting), self._rate.starts)
            first = self._recent[place] if place < len(self._recent) else now
            wait_s = first + (rounds + 1) * self._rate.per_s - now
            raise Overloaded(f"{self._rate.starts} starts in {self._rate.per_s:g} s, at most", max(0.0, wait_s))
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._timer is None:
            self._arm()
        with request.clock.pause():
            # A turn that comes together with a cancellation is lost: one start less, never one more.
            await turn

    def _arm(self) -> None:
        at = self._recent[0] + self._rate.per_s
        self._timer = asyncio.get_running_loop().call_at(at, self._on_timer, at)

    def _on_timer(self, at: float) -> None:
        """Start the requests that have waited longest. A timer may fire early, so the later of the two times counts."""
        self._timer = None
        now = max(at, asyncio.get_running_loop().time())
        self._drop_old_starts(now)
        while self._waiting and (self._waiting[0].done() or len(self._recent) < self._rate.starts):
            turn = self._waiting.popleft()
            if not turn.done():  # Otherwise it was cancelled.
                self._recent.append(now)
                turn.set_result(None)
        if self._waiting:
            self._arm()


def concurrency_limit(n: int) -> ConcurrencyLimit:
    """Let at most ``n`` requests run at a time, the others in the order in which they came."""
    return ConcurrencyLimit(n)


def rate_limit(starts: int | Rate, per_s: float = 1.0) -> RateLimit:
    """Let at most so many requests start in so many seconds, in the order in which they came."""
    return RateLimit(starts if isinstance(starts, Rate) else Rate(starts, per_s))
