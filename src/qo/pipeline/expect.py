"""Expectations in Python: functions that state what must be true of a table, for ``expect=[...]``.

    @pipeline.table(expect=[qo.not_null("day"), qo.range("delay", -120, 3000, severity="warn")])

``severity``, ``name`` and ``output`` are those of the file. Core has their meaning, and validation their rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

from msgspec.structs import replace

from qo.core.pipeline.expectation import Accepted, Expectation, Freshness, Range, References, Rows, Severity

Value = str | int | float


class Common(TypedDict, total=False):
    severity: Literal["fail", "warn"]
    name: str
    output: int


def not_null(*columns: str, **common: Unpack[Common]) -> Expectation:
    """None of the columns has nulls."""
    return _expectation(common, Expectation(not_null=columns))


def unique(*columns: str, **common: Unpack[Common]) -> Expectation:
    """No two rows have the same values in all of the columns."""
    return _expectation(common, Expectation(unique=columns))


def range(
    column: str, min: Value | None = None, max: Value | None = None, **common: Unpack[Common]
) -> Expectation:
    """The values lie between two bounds, both included. Dates and timestamps are written as text."""
    return _expectation(common, Expectation(range=Range(column=column, min=min, max=max)))


def accepted(column: str, values: Sequence[Value | bool], **common: Unpack[Common]) -> Expectation:
    """The values are among these."""
    return _expectation(common, Expectation(accepted=Accepted(column=column, values=tuple(values))))


def rows(min: int | None = None, max: int | None = None, **common: Unpack[Common]) -> Expectation:
    """The number of rows lies between two bounds."""
    return _expectation(common, Expectation(rows=Rows(min=min, max=max)))


def freshness(column: str, within: str, **common: Unpack[Common]) -> Expectation:
    """The latest value is no older than ``within`` (``90s``, ``15m``, ``6h``, ``2d``) when the task runs."""
    return _expectation(common, Expectation(freshness=Freshness(column=column, within=within)))


def in_partition(column: str, **common: Unpack[Common]) -> Expectation:
    """The values of a date, timestamp or number lie within the partition that is written."""
    return _expectation(common, Expectation(in_partition=column))


def references(
    columns: str | Sequence[str], input: str, input_columns: Sequence[str] = (), **common: Unpack[Common]
) -> Expectation:
    """Every combination of these columns is one of an input."""
    listed = (columns,) if isinstance(columns, str) else tuple(columns)
    condition = References(columns=listed, input=input, input_columns=tuple(input_columns))
    return _expectation(common, Expectation(references=condition))


def condition(sql: str, **common: Unpack[Common]) -> Expectation:
    """A condition in Spark SQL that holds for every row."""
    return _expectation(common, Expectation(sql=sql))


def _expectation(common: Common, expectation: Expectation) -> Expectation:
    return replace(
        expectation,
        severity=Severity(common.get("severity", Severity.FAIL)),
        name=common.get("name"),
        output=common.get("output", 0),
    )
