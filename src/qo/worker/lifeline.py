"""Child processes end with their parent, however that ends, and are restarted at a pace when they die.

Each child has the reading end of a pipe. Only the parent holds the writing end, and never writes to it: when the
parent ends, even by SIGKILL, the pipe closes, and the children end, too.
"""

from __future__ import annotations

import os
import signal
import threading
import time

BACKOFF_S = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)  # Before the first, second, … restart.
HEALTHY_S = 60.0  # A process that has run this long restarts with the shortest delay again.


class Lifeline:
    """The parent's side."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()

    def close(self) -> None:
        os.close(self.reading)
        os.close(self._writing)


def end_with_parent(lifeline: int, kill_after_s: float | None = None) -> None:
    """Send this process SIGTERM when its parent has ended and, if that takes longer than given, SIGKILL."""

    def watch() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="qo-lifeline", daemon=True).start()


class RestartDelays:
    """How long to wait before a process that has died is started again."""

    def __init__(self) -> None:
        self._deaths = 0  # In a row, each soon after its start.

    def next_s(self, ran_s: float) -> float:
        """Return the delay after a process that has run for so long."""
        if ran_s > HEALTHY_S:
            self._deaths = 0
        delay_s = BACKOFF_S[min(self._deaths, len(BACKOFF_S) - 1)]
        self._deaths += 1
        return delay_s
