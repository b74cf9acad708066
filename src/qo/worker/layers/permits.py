"""Permits: so many at a time, given in the order in which they were asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class Permits:
    def __init__(self, count: int) -> None:
        self.free = count  # More than none only while nobody waits.
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take one now; False if all are out."""
        if self.free > 0:
            self.free -= 1
            return True
        return False

    async def wait(self) -> None:
        """Take one as soon as it is our turn."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # It had become ours in the same moment.
            else:
                with suppress(ValueError):  # Whoever gave one back may have passed it over already.
                    self._waiting.remove(turn)
            raise

    def give(self) -> None:
        """Give one back: to whoever has waited longest, so that no newcomer can be quicker."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1
