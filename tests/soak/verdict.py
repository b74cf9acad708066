"""Whether the end of a run looks like its beginning.

The first part is left out: processes load what they need, caches fill. After that, memory and open files may not grow
beyond a margin, a task may not take more room in the database than the first ones did, and may not take longer.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from soak.observation import Observation

MEMORY_GROWTH = 1.10
MEMORY_MARGIN_MB = 8.0  # Small processes vary by as much as Python's allocator takes at a time.
FILES_MARGIN = 5
LATENCY_GROWTH = 1.5
LATENCY_MARGIN_S = 0.1
SIZE_GROWTH = 1.25


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    unit: str
    start: float
    end: float
    limit: float

    @property
    def flat(self) -> bool:
        return self.end <= self.limit


def judge(
    start: Sequence[Observation],
    end: Sequence[Observation],
    start_latencies: Sequence[float],
    end_latencies: Sequence[float],
) -> list[Figure]:
    """One figure for everything that must stay flat. ``start`` and ``end`` are equally long parts of the run."""
    figures: list[Figure] = []
    for name in start[0].processes:
        figures += _judge_process(name, start, end)
    for share, quantile in (("p50", 0.5), ("p99", 0.99)):
        before, after = _quantile(start_latencies, quantile), _quantile(end_latencies, quantile)
        limit = before * LATENCY_GROWTH + LATENCY_MARGIN_S
        figures.append(Figure(f"task, {share}", "s", before, after, limit))
    before, after = _kb_per_task(start), _kb_per_task(end)
    return [*figures, Figure("database, per task", "KB", before, after, before * SIZE_GROWTH)]


def _judge_process(name: str, start: Sequence[Observation], end: Sequence[Observation]) -> list[Figure]:
    def median(part: Sequence[Observation], field: str) -> float:
        return statistics.median(getattr(each.processes[name], field) for each in part)

    memory = median(start, "memory_mb")
    limit = max(memory * MEMORY_GROWTH, memory + MEMORY_MARGIN_MB)
    figures = [Figure(f"{name}, memory", "MB", memory, median(end, "memory_mb"), limit)]
    for field, title in (("files", "open files"), ("threads", "threads")):
        before = median(start, field)
        figures.append(Figure(f"{name}, {title}", "", before, median(end, field), before + FILES_MARGIN))
    return figures


def _kb_per_task(part: Sequence[Observation]) -> float:
    tasks = part[-1].completed - part[0].completed
    return 1024 * (part[-1].database_mb - part[0].database_mb) / max(1, tasks)


def _quantile(values: Sequence[float], share: float) -> float:
    if not values:
        return float("inf")  # Nothing was done: that is not flat.
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
