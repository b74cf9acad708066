"""The families of the worker suite, in the order they are measured."""

from __future__ import annotations

from bench.worker import drain, idle, kill, slots

FAMILIES = [
    *idle.FAMILIES,
    *slots.FAMILIES,
    *drain.FAMILIES,
    *kill.FAMILIES,
]
