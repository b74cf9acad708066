"""Permits: a semaphore that serves waiters strictly in order."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class Permits:
    def __init__(self, count: int) -> None:
        self.free = count  # More than 0 only while nothing waits.
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a permit now; False if none is free."""
        if self.free > 0:
            self.free -= 1
            return True
        return False

    async def wait(self) -> None:
        """Wait for a permit, and take it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # It was granted in the same moment.
            else:
                with suppress(ValueError):  # ``give`` may have removed it already.
                    self._waiting.remove(turn)
            raise

    def give(self) -> None:
        """Return a permit: the longest waiter gets it, so that no newcomer can overtake it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1
