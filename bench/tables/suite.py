"""The families of the suite of tables, in the order they are measured."""

from __future__ import annotations

from bench.tables import keyed, month_of_days

FAMILIES = [
    *month_of_days.FAMILIES,
    *keyed.FAMILIES,
]
