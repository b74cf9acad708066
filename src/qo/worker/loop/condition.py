"""Waiting for something to change."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes everyone who waits. Who looks, and then waits without an await in between, misses nothing."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def heard(self) -> asyncio.Future[None]:
        """Done at the next ring."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future
