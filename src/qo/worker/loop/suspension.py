"""How long the machine has slept: leases run out meanwhile, and neither timers nor ``time.monotonic`` notice.

Only Linux can measure it. On other systems a worker learns of a lost lease from its next renewal.
"""

from __future__ import annotations

import time

_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_STEP_S = 0.25  # The two clocks are read one after the other: a smaller difference is not sleep.
_known_s = 0.0


def boot_time() -> float:
    """Return a time in seconds that goes on while the machine sleeps; the same for all its processes."""
    return time.clock_gettime(_CLOCK)


def slept_s() -> float:
    """Return how long the machine has slept in all. Two calls differ only if it slept between them."""
    global _known_s
    measured_s = boot_time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    if measured_s > _known_s + _STEP_S:
        _known_s = measured_s
    return _known_s
