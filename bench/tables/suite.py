"""The families of the suite of tables, in the order they are measured."""

from __future__ import annotations

from bench.tables import month_of_days

FAMILIES = [
    *month_of_days.FAMILIES,
]
