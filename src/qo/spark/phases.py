"""The phases of an attempt, and its progress as heartbeats carry it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from typing import Any

from qo.spark.engine.engine import Progress


class Phases:
    """The current phase of an attempt, and how long each one took."""

    def __init__(self) -> None:
        self.now = "start"
        self.progress: dict[str, Any] = {}  # As last reported.
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Generator[None]:
        """Enter a phase. The time of a phase within another counts for the inner one only."""
        before, self.now = self.now, name
        began = time.perf_counter()
        inside = sum(self.seconds.values())
        try:
            yield
        finally:
            own = time.perf_counter() - began - (sum(self.seconds.values()) - inside)
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            self.now = before


def progress_body(phase: str, progress: Progress | None, missing: str | None = None) -> dict[str, Any]:
    """Return the progress that heartbeats carry. ``missing``: why nothing can run now."""
    waiting = {} if missing is None else {"waiting": missing}
    if progress is None:
        return {"phase": phase, **waiting}
    return {
        "phase": phase,
        "stages": {"done": progress.stages_done, "total": progress.stages},
        "tasks": {"done": progress.tasks_done, "total": progress.tasks, "active": progress.active},
        **waiting,
    }
