"""A clock that stands still until a test moves it."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from qo.testing import virtual
from qo.worker.loop.clock import running_loop

# How much faster than in production a worker retries what it has deferred because the store failed.
HASTE = 50


class StillClock:
    """A clock that follows the time of a virtual loop; in other loops only ``advance`` and ``reach`` move it."""

    def __init__(self) -> None:
        self._offset = timedelta()
        self._latest = virtual.STARTED_AT

    def now(self) -> datetime:
        loop = running_loop()
        elapsed = timedelta(seconds=loop.time() if isinstance(loop, virtual.VirtualLoop) else 0.0)
        self._latest = max(self._latest, virtual.STARTED_AT + self._offset + elapsed)
        return self._latest

    def advance(self, seconds: float) -> None:
        self._offset += timedelta(seconds=seconds)

    def reach(self, moment: datetime) -> None:
        """Move the clock to that moment, unless it is later already."""
        self._offset += max(timedelta(), moment - self.now())


def hasty_monotonic() -> float:
    """Return seconds that pass HASTE times as fast, outside virtual time: the monotonic clock of ``Ambient``."""
    loop = running_loop()
    return loop.time() if isinstance(loop, virtual.VirtualLoop) else HASTE * time.monotonic()
