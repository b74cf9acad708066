"""The depth of the queue between the monitor, which reads it, and the metrics, which show it.

It is read only while somebody asks for it: a queue whose metrics nobody scrapes pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qo.core.depth import QueueDepth, Wait

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

WANTED_CHECKS = 10  # After so many checks without a scrape, the depth is no longer read.
TYPES_MAX = 200

DEPTH = "qo_queue_depth"
OLDEST = "qo_queue_oldest_age_seconds"
UNHANDLED = "qo_queue_unhandled"
NAMES = (DEPTH, OLDEST, UNHANDLED)
OTHER = "other"


class DepthBoard:
    """Holds the latest depth. The monitor publishes it, in its event loop; a server's threads read it."""

    def __init__(self) -> None:
        self._depth: QueueDepth | None = None
        self._checks = WANTED_CHECKS  # Since the last scrape.

    @property
    def is_wanted(self) -> bool:
        return self._checks < WANTED_CHECKS

    def publish(self, depth: QueueDepth | None) -> None:
        """Show this depth from now on. None: this process is not the one that reads it, or nobody asks."""
        self._depth = depth
        self._checks += 1

    def read(self) -> QueueDepth | None:
        self._checks = 0
        return self._depth


class DepthMetrics:
    """The metrics of a process that only monitors."""

    def __init__(self, board: DepthBoard) -> None:
        self._board = board
        self._registry: CollectorRegistry | None = None

    def exposition(self) -> bytes:
        """Return the metrics in the Prometheus text format. Any thread may call this."""
        from prometheus_client import CollectorRegistry, generate_latest

        if self._registry is None:
            registry = CollectorRegistry()
            registry.register(self)
            self._registry = registry
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        return depth_families(self._board.read())


def depth_families(depth: QueueDepth | None) -> Iterator[Metric]:
    """Yield the metrics of the depth; none while it is not known. The types after the largest 200 count as other."""
    if depth is None:
        return
    from prometheus_client.core import GaugeMetricFamily

    by_size = sorted(depth.types, key=lambda each: sum(getattr(each, wait) for wait in Wait), reverse=True)
    tasks = GaugeMetricFamily(
        DEPTH, "Active tasks, by type and by what they wait for.", labels=["task_type", "wait"]
    )
    oldest = GaugeMetricFamily(
        OLDEST, "How long the oldest due task has been due, by type; 0 if none is due.", labels=["task_type"]
    )
    unhandled = GaugeMetricFamily(
        UNHANDLED, "1 for types with due tasks that no worker handles.", labels=["task_type"]
    )
    for each in by_size[:TYPES_MAX]:
        for wait in Wait:
            tasks.add_metric([each.task_type, wait], getattr(each, wait))
        oldest.add_metric([each.task_type], each.oldest_age_s or 0.0)
        unhandled.add_metric([each.task_type], each.due > 0 and each.handled is not True)
    if rest := by_size[TYPES_MAX:]:
        for wait in Wait:
            tasks.add_metric([OTHER, wait], sum(getattr(each, wait) for each in rest))
        oldest.add_metric([OTHER], max(each.oldest_age_s or 0.0 for each in rest))
    yield from (tasks, oldest, unhandled)
