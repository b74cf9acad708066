"""Metrics in the Prometheus text format, and those of the traffic of a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from qo.asgi.traffic import BUCKETS_S, Traffic

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def encode(families: Sequence[Metric]) -> bytes:
    """Return the metrics in the Prometheus text format, version 0.0.4."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(families))
    return generate_latest(registry)


class _Collector:
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def traffic_families(traffic: Traffic, requests: str, duration: str) -> Iterator[Metric]:
    """Return the metrics of the traffic, under these names."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    answers = CounterMetricFamily(
        requests, "Requests answered, by operation and status.", labels=["operation", "status"]
    )
    for (operation, status), count in sorted(traffic.answers.copy().items()):
        answers.add_metric([operation, str(status)], count)
    yield answers
    durations_family = HistogramMetricFamily(
        duration, "How long answers took, by operation.", labels=["operation"]
    )
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    for operation, durations in sorted(traffic.durations.copy().items()):
        durations_family.add_metric(
            [operation], list(zip(bounds, accumulate(durations.counts), strict=True)), durations.total_s
        )
    yield durations_family
