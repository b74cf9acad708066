"""Metrics as OTLP: the text that Prometheus scrapes, as the protobuf that collectors of OpenTelemetry take.

Only the messages that metrics need are written, by their field numbers, which never change. The exporter of
OpenTelemetry's SDK would want every metric to be counted a second time, by instruments of its own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

_CUMULATIVE = 2
_VARINT, _FIXED64, _BYTES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Window:
    """When counting began, and now, in nanoseconds since 1970."""

    start_ns: int
    now_ns: int


def encode_metrics(text: str, resource: Mapping[str, str], window: Window) -> bytes:
    """Return the body of an export request for metrics in the Prometheus text format."""
    from prometheus_client.parser import text_string_to_metric_families

    metrics = [_metric(family, window) for family in text_string_to_metric_families(text)]
    scope = _message(1, _text(1, "qo"))
    scope_metrics = _message(2, scope + b"".join(_message(2, each) for each in metrics if each))
    return _message(1, _message(1, _attributes(1, resource)) + scope_metrics)


def _metric(family: Any, window: Window) -> bytes:
    head = _text(2, family.documentation)
    if family.type == "histogram":
        points = b"".join(_message(1, each) for each in _histogram_points(family.samples, window))
        return _text(1, family.name) + head + _message(9, points + _number(2, _CUMULATIVE)) if points else b""
    points = b"".join(_message(1, _point(each, window)) for each in family.samples)
    if not points:
        return b""
    if family.type == "counter":
        # The parser takes the suffix away; by it, people know the metric.
        name, total = family.samples[0].name, _number(2, _CUMULATIVE) + _number(3, 1)
        return _text(1, name) + head + _message(7, points + total)
    return _text(1, family.name) + head + _message(5, points)


def _point(sample: Any, window: Window) -> bytes:
    return _attributes(7, sample.labels) + _times(window) + _double(4, sample.value)


@dataclass(slots=True)
class _Histogram:
    buckets: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])  # Bound, count up to it.
    sum: float = 0.0
    count: float = 0.0


def _histogram_points(samples: Iterable[Any], window: Window) -> Iterable[bytes]:
    histograms: dict[tuple[tuple[str, str], ...], _Histogram] = {}
    for sample in samples:
        labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
        one = histograms.setdefault(labels, _Histogram())
        if sample.name.endswith("_bucket"):
            one.buckets.append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            one.sum = sample.value
        elif sample.name.endswith("_count"):
            one.count = sample.value
    for labels, one in histograms.items():
        buckets = sorted(one.buckets)
        upto = [0.0, *(count for _, count in buckets)]
        counts = [int(high - low) for low, high in pairwise(upto)]
        bounds = [bound for bound, _ in buckets if math.isfinite(bound)]
        yield b"".join(
            (
                _attributes(9, dict(labels)),
                _times(window),
                _fixed(4, int(one.count)),
                _double(5, one.sum),
                _message(6, struct.pack(f"<{len(counts)}Q", *counts)),
                _message(7, struct.pack(f"<{len(bounds)}d", *bounds)),
            )
        )


def _times(window: Window) -> bytes:
    return _fixed(2, window.start_ns) + _fixed(3, window.now_ns)


def _attributes(number: int, values: Mapping[str, str]) -> bytes:
    return b"".join(
        _message(number, _text(1, key) + _message(2, _text(1, value))) for key, value in values.items()
    )


def _message(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(body)) + body


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode())


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _fixed(number: int, value: int) -> bytes:
    return _varint(number << 3 | _FIXED64) + struct.pack("<Q", value)


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
