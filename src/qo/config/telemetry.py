"""The settings of metrics that are pushed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from qo.config import kinds
from qo.config.setting import setting

_ENDPOINT = kinds.endpoint("telemetry.otlp_headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    otlp_endpoint: str | None = setting(
        None,
        "QO_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        kind=_ENDPOINT,
        help="The URL of a collector that takes OTLP over HTTP, without /v1/metrics: metrics are pushed to it, besides "
        "being served at /metrics. Unset: they are not.",
    )
    otlp_metrics_endpoint: str | None = setting(
        None,
        "QO_OTLP_METRICS_ENDPOINT",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        kind=_ENDPOINT,
        help="The same as a whole URL, with its path. It counts more than otlp_endpoint.",
    )
    otlp_headers: tuple[tuple[str, str], ...] = setting(
        (),
        "QO_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
        "OTEL_EXPORTER_OTLP_HEADERS",
        kind=kinds.PAIRS,
        secret=True,
        help="Headers of each push, such as a token; % escapes a character as in URLs.",
    )
    otlp_interval_s: float = setting(
        60.0,
        "QO_OTLP_INTERVAL_S",
        kind=kinds.number(0.1),
        help="Seconds between two pushes of metrics.",
    )

    @property
    def push_options(self) -> dict[str, Any]:
        """Return where, with which headers and how often metrics are pushed."""
        url = self.otlp_metrics_endpoint
        if url is None and self.otlp_endpoint is not None:
            url = f"{self.otlp_endpoint}/v1/metrics"
        headers = {name: unquote(value) for name, value in self.otlp_headers}
        return {"url": url, "headers": headers, "interval_s": self.otlp_interval_s}
