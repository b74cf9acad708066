"""The families of the Spark suite, in the order they are measured."""

from __future__ import annotations

from bench.spark import apart, latency, overhead, scale, small

FAMILIES = [
    *overhead.FAMILIES,
    *small.FAMILIES,
    *apart.FAMILIES,
    *scale.FAMILIES,
    *latency.FAMILIES,
]
