"""A pipe that ends child processes with their parent, however that ends.

Each child has the reading end. Only the parent holds the writing end, and never writes to it: when the parent ends,
even by SIGKILL, the pipe closes, and the children end, too.
"""

from __future__ import annotations

import os
import signal
import threading
import time


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
