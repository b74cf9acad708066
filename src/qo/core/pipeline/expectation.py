"""Expectations: what must be true of an output before it may be read.

    expectations:
      - not_null: [carrier, day]
      - unique: [flight]
      - range: {column: delay, min: -120, max: 3000}
        severity: warn
      - accepted: {column: origin, values: [EWR, JFK, LGA]}
      - rows: {min: 1}
      - freshness: {column: day, within: 2d}
      - in_partition: departed
      - references: {columns: [tailnum], input: planes}
      - sql: arrived is null or arrived >= departed

Each states exactly one condition for one output. If one of severity ``fail`` is not met, the output is not committed;
one of severity ``warn`` is recorded. Nulls satisfy everything but ``not_null``, as in SQL, and so does an output
without rows, except for ``rows``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, cast

import msgspec

from qo.core.struct_preload import preload


class Severity(StrEnum):
    FAIL = "fail"
    WARN = "warn"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Range(_Part, frozen=True, kw_only=True):
    """Both ends included."""

    column: str
    min: float | int | str | None = None
    max: float | int | str | None = None


class Accepted(_Part, frozen=True, kw_only=True):
    column: str
    values: tuple[str | int | float | bool, ...]


class Rows(_Part, frozen=True, kw_only=True):
    min: int | None = None
    max: int | None = None


class Freshness(_Part, frozen=True, kw_only=True):
    """The latest value of a date or timestamp is no older than this when the task runs."""

    column: str
    within: str  # 90s, 15m, 6h, 2d

    @property
    def within_s(self) -> int:
        return int(self.within[:-1]) * _UNITS_S[self.within[-1]]


class References(_Part, frozen=True, kw_only=True):
    """Every combination of these columns is one of an input."""

    columns: tuple[str, ...]
    input: str
    input_columns: tuple[str, ...] = ()  # Unset: of the same names.


_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

KINDS = ("not_null", "unique", "range", "accepted", "rows", "freshness", "in_partition", "references", "sql")


class Expectation(_Part, frozen=True, kw_only=True):
    name: str | None = None  # For people. Unset: derived from the condition.
    output: int = 0
    severity: Severity = Severity.FAIL
    not_null: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    range: Range | None = None
    accepted: Accepted | None = None
    rows: Rows | None = None
    freshness: Freshness | None = None
    in_partition: str | None = None  # A column whose values lie within the partition that is written.
    references: References | None = None
    sql: str | None = None  # A condition that holds for every row.

    @property
    def kind(self) -> str:
        """Which condition it states."""
        return next(each for each in KINDS if getattr(self, each))

    @property
    def title(self) -> str:
        """The name for people."""
        if self.name is not None:
            return self.name
        parts: list[str | None] = [", ".join(self.not_null or self.unique) or self.sql]
        if self.range is not None:
            parts = [self.range.column, _bounds(self.range.min, self.range.max)]
        elif self.accepted is not None:
            parts = [self.accepted.column]
        elif self.rows is not None:
            parts = [_bounds(self.rows.min, self.rows.max)]
        elif self.freshness is not None:
            parts = [self.freshness.column, f"within {self.freshness.within}"]
        elif self.in_partition is not None:
            parts = [self.in_partition]
        elif self.references is not None:
            parts = [", ".join(self.references.columns), f"in {self.references.input}"]
        return " ".join([self.kind, *(each for each in parts if each)])


preload(Expectation)


def _bounds(low: object, high: object) -> str:
    return f"{'' if low is None else low}..{'' if high is None else high}"


def describe_value(value: Any) -> str:
    """Return a value in words: ``{"outside": 1, "sample": ["-1.20"]}`` is "outside 1, such as -1.20"."""
    if isinstance(value, Mapping):
        parts = cast("Mapping[str, Any]", value)
        return ", ".join(
            f"{'such as' if name == 'sample' else name} {_part_in_words(each)}" for name, each in parts.items()
        )
    if isinstance(value, list):
        return "; ".join(describe_value(each) for each in cast("list[Any]", value))
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return str(value)


def _part_in_words(value: Any) -> str:
    return f"({describe_value(value)})" if isinstance(value, Mapping) else describe_value(value)


def parse_expectations(documents: Iterable[Mapping[str, Any]]) -> list[Expectation]:
    """Convert the expectations of a task from JSON."""
    return [msgspec.convert(each, Expectation) for each in documents]
