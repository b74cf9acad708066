"""Which columns of its inputs each column of an output is made from, and how.

A column that is missing from ``columns`` has an unknown origin. One without sources is a constant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec


class How(StrEnum):
    """How a column takes part in another, from weak to strong, and how it decides which rows there are."""

    WINDOW = "window"  # It orders or parts the rows that a value is made from.
    IDENTITY = "identity"
    TRANSFORMATION = "transformation"
    AGGREGATION = "aggregation"
    FILTER = "filter"
    JOIN = "join"
    GROUP_BY = "group_by"
    SORT = "sort"


STRENGTH = {each: at for at, each in enumerate(How)}
OF_ROWS = frozenset({How.FILTER, How.JOIN, How.GROUP_BY, How.SORT})


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A column of an input, by the input's name in the operator."""

    input: str
    column: str


Origin = Mapping[Source, How]


@dataclass(frozen=True, slots=True)
class Lineage:
    columns: Mapping[str, Origin]
    rows: frozenset[tuple[Source, How]] = frozenset()  # What decides which rows there are.
    unknown: tuple[str, ...] = field(default=())  # Why some origins are not known.

    def digest(self) -> str:
        """Return what identifies the lineage: equal for equal ones."""
        columns = {
            name: sorted((each.input, each.column, how) for each, how in origin.items())
            for name, origin in self.columns.items()
        }
        rows = sorted((each.input, each.column, how) for each, how in self.rows)
        document = msgspec.json.encode([columns, rows, self.unknown], order="deterministic")
        return hashlib.sha256(document).hexdigest()


def merge_origins(origins: Iterable[Origin]) -> dict[Source, How]:
    """Return all sources, each with the strongest way in which it takes part."""
    merged: dict[Source, How] = {}
    for each in origins:
        for source, how in each.items():
            if source not in merged or STRENGTH[how] > STRENGTH[merged[source]]:
                merged[source] = how
    return merged


def merge(lineages: Iterable[Lineage]) -> Lineage:
    """Return what several lineages of one output say together. A column is known if any of them knows it."""
    columns: dict[str, dict[Source, How]] = {}
    rows: set[tuple[Source, How]] = set()
    unknown: dict[str, None] = {}
    for each in lineages:
        for name, origin in each.columns.items():
            columns[name] = merge_origins([columns.get(name, {}), origin])
        rows |= each.rows
        unknown |= dict.fromkeys(each.unknown)
    return Lineage(columns, frozenset(rows), tuple(unknown))
