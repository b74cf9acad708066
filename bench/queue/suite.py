"""The families of the queue suite, in the order they are measured."""

from __future__ import annotations

from bench.queue import embedded

FAMILIES = [*embedded.FAMILIES]
