"""A clock that stands still until it is moved."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from qo.testing import virtual
from qo.worker.loop.clock import running_loop

# How much sooner than in production a worker comes back to what it has put off because the store failed.
HASTE = 50


class StillClock:
    """In virtual time it goes with the loop's; elsewhere only ``advance`` and ``reach`` move it."""

    def __init__(self) -> None:
        self._moved = timedelta()
        self._latest = virtual.STARTED_AT

    def now(self) -> datetime:
        loop = running_loop()
        passed = timedelta(seconds=loop.time() if isinstance(loop, virtual.VirtualLoop) else 0.0)
        self._latest = max(self._latest, virtual.STARTED_AT + self._moved + passed)
        return self._latest

    def advance(self, seconds: float) -> None:
        self._moved += timedelta(seconds=seconds)

    def reach(self, moment: datetime) -> None:
        """Let it be that late, if it is not yet."""
        self._moved += max(timedelta(), moment - self.now())


def hasty() -> float:
    """Seconds for those who measure a rest: for ``Ambient``."""
    loop = running_loop()
    return loop.time() if isinstance(loop, virtual.VirtualLoop) else HASTE * time.monotonic()
