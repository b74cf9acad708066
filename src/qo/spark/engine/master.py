"""What the setting ``spark.master`` says about where Spark runs."""

from __future__ import annotations

import os
import re

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?\Z")


def local_cores(master: str) -> int | None:
    """Return how many tasks run at a time on a local master; None for a cluster."""
    local = _LOCAL.match(master)
    if local is None:
        return None
    count = local[1] or "1"
    return _machine_cores() if count == "*" else int(count)


def _machine_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
