"""Measuring how late the worker's event loop runs, once a second, and doing what is due that often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from qo.worker.loop.clock import now
from qo.worker.observe.stats import Stats

log = logging.getLogger(__name__)

EVERY_S = 1.0
LAG_WARNED_S = 5.0


class LoopLag:
    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self.last_beat = now()  # When the loop last turned; read by other threads.

    async def run(self, tick: Callable[[], None]) -> None:
        """Measure and call ``tick``, until cancelled."""
        while True:
            due = now() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.last_beat = now()
            self._stats.loop_lag_s = lag_s = max(0.0, self.last_beat - due)
            if lag_s > LAG_WARNED_S:
                log.warning("the event loop stood still for %.1f s: does an async handler block?", lag_s)
            try:
                tick()
            except Exception:
                log.exception("unexpected, but the worker goes on")
