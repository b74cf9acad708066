"""The families of the suite of tables, in the order they are measured."""

from __future__ import annotations

from bench.tables import iceberg, keyed, month_of_days

FAMILIES = [
    *iceberg.FAMILIES,
    *month_of_days.FAMILIES,
    *keyed.FAMILIES,
]
