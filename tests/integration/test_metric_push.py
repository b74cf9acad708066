"""Metrics are pushed as they are scraped, and a collector that is away troubles nobody."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import qo
from qo.config.settings import Settings
from qo.config.telemetry import TelemetrySettings
from qo.telemetry.metric_pusher import TIMEOUT_S, MetricPusher
from qo.worker.api.app import App
from qo.worker.service import run_worker
from support.dispatcher.in_process_dispatcher import dispatching
from support.dispatcher.pipelines import dag, source
from support.telemetry.collectors import collecting

TEXT = b"""\
# HELP qo_things Things.
# TYPE qo_things gauge
qo_things{kind="a b\\"c"} 3.0
qo_things{kind="other"} NaN
# HELP qo_runs_total Runs.
# TYPE qo_runs_total counter
qo_runs_total 12.0
# HELP qo_wait_seconds Waits.
# TYPE qo_wait_seconds histogram
qo_wait_seconds_bucket{le="0.1",queue="q"} 2.0
qo_wait_seconds_bucket{le="1.0",queue="q"} 5.0
qo_wait_seconds_bucket{le="+Inf",queue="q"} 9.0
qo_wait_seconds_count{queue="q"} 9.0
qo_wait_seconds_sum{queue="q"} 12.5
"""


def test_a_collector_decodes_what_a_scrape_would_have_read() -> None:
    with collecting() as collector:
        pusher = MetricPusher(
            f"{collector.url}/v1/metrics",
            service="qo-test",
            instance="one",
            exposition=lambda: TEXT,
            headers={"Authorization": "Bearer x"},
        )
        assert pusher.push()
    headers = collector.headers[-1]
    assert (headers["path"], headers["Authorization"]) == ("/v1/metrics", "Bearer x")
    assert headers["Content-Type"] == "application/x-protobuf"
    assert collector.resource() == {"service.name": "qo-test", "service.instance.id": "one"}
    metrics = collector.metrics()
    things = {point.attributes[0].value.string_value: point for point in metrics["qo_things"].gauge.data_points}
    assert things['a b"c'].as_double == 3.0
    assert math.isnan(things["other"].as_double)
    runs = metrics["qo_runs_total"].sum
    assert (runs.is_monotonic, runs.aggregation_temporality, runs.data_points[0].as_double) == (True, 2, 12.0)
    (wait,) = metrics["qo_wait_seconds"].histogram.data_points
    assert (list(wait.explicit_bounds), list(wait.bucket_counts)) == ([0.1, 1.0], [2, 3, 4])
    assert (wait.count, wait.sum, wait.attributes[0].key) == (9, 12.5, "queue")
    assert 0 < wait.start_time_unix_nano <= wait.time_unix_nano


def test_a_collector_that_is_away_is_mentioned_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        url = collector.url
    pusher = MetricPusher(f"{url}/v1/metrics", service="qo", exposition=lambda: TEXT)
    with caplog.at_level(logging.WARNING):
        assert not pusher.push()
        assert not pusher.push()
    assert len(caplog.records) == 1

    def fail() -> bytes:
        raise RuntimeError("the database is away")

    assert not MetricPusher(url, service="qo", exposition=fail).push()


def test_standard_variables_lead_to_the_collector(tmp_path: Path) -> None:
    from qo.config.origins import load

    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b,x=1",
    }
    options = load({}, environ=environ, cwd=tmp_path).telemetry.push_options
    assert options["url"] == "http://collector:4318/v1/metrics"
    assert options["headers"] == {"api-key": "a b", "x": "1"}
    environ["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"] = "http://metrics:4318/own"
    assert load({}, environ=environ, cwd=tmp_path).telemetry.push_options["url"] == "http://metrics:4318/own"
    assert Settings().telemetry.push_options["url"] is None


async def test_a_worker_pushes_its_metrics_even_its_last_ones(tmp_path: Path) -> None:
    app = App()

    @app.task("noop")
    async def noop(value: object) -> None:
        pass

    with collecting() as collector:
        telemetry = TelemetrySettings(otlp_endpoint=collector.url, otlp_interval_s=60)
        settings = Settings(store=f"local:{tmp_path / '.qo'}", telemetry=telemetry)
        async with qo.connect(settings.store) as queue:
            for _ in range(3):
                await queue.submit("noop", None)
            await run_worker(queue, app, settings, stop_when_empty=True)
    assert collector.resource()["service.name"] == "qo-worker"
    assert collector.metrics()["qo_worker_claims_total"].sum.data_points[0].as_double == 3


async def test_a_dispatcher_pushes_everything_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.dispatcher import in_process_dispatcher

    with collecting() as collector:
        telemetry = TelemetrySettings(otlp_endpoint=collector.url, otlp_interval_s=0.2)

        def configured(**values: object) -> Settings:
            return replace(Settings(**values), telemetry=telemetry)  # type: ignore[arg-type]

        monkeypatch.setattr(in_process_dispatcher, "Settings", configured)
        async with dispatching(tmp_path, dag("shop", source("orders"))) as running:
            async with httpx.AsyncClient(trust_env=False) as http:
                scraped = (await http.get(f"{running.addresses.internal}/metrics")).text
            collector.received.clear()
            assert await asyncio.to_thread(collector.received.wait, 30)
            pushed = set(collector.metrics())
    names = {
        family.samples[0].name if family.type == "counter" else family.name
        for family in text_string_to_metric_families(scraped)
        if family.samples
    }
    assert names
    assert names <= pushed


def test_a_process_that_ends_does_not_wait_for_a_collector_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        pusher = MetricPusher(url, service="qo", exposition=lambda: TEXT, interval_s=0.01)
        pusher.start()
        began = time.monotonic()
        pusher.stop()
        assert time.monotonic() - began < TIMEOUT_S
