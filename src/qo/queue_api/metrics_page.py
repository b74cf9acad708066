"""The metrics of ``qo serve``, for Prometheus."""

from __future__ import annotations

from qo.asgi.exposition import encode, traffic_families
from qo.asgi.traffic import Traffic
from qo.queue_api.watcher import Watcher

REQUESTS = "qo_serve_requests_total"
DURATION = "qo_serve_request_seconds"
WAITING = "qo_serve_waiting"
READS = "qo_serve_wait_reads_total"
NAMES = (REQUESTS, DURATION, WAITING, READS)


def exposition(traffic: Traffic, watcher: Watcher) -> bytes:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    return encode(
        [
            *traffic_families(traffic, REQUESTS, DURATION),
            GaugeMetricFamily(WAITING, "Requests that wait for a task.", value=watcher.waiting),
            CounterMetricFamily(READS, "Tasks read for requests that wait.", value=watcher.reads),
        ]
    )
