"""What is known of the columns of a dataset, and how its size and quality moved."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from qo.api.contract.body import Answer


class ColumnStatistics(Answer):
    """What workers have measured of a column in all files of the dataset. Null: a file does not say."""

    name: str
    type: str | dict[str, Any]  # In Spark's JSON format.
    rows: int = 0  # Of the files that say something about it.
    nulls: int | None = None
    null_share: float | None = None  # 0 to 1.
    distinct: int | None = None  # Values other than null, where that follows from the rest.
    least: str | None = None  # As text, whatever the type; of floating-point numbers, NaN left aside.
    greatest: str | None = None
    least_shortened: bool = False  # Of a long text, the beginning. No value is below it …
    greatest_shortened: bool = False  # … and none is above this.
    bytes: int | None = None  # Compressed.


class ColumnStatisticsAnswer(Answer):
    """The columns of what a dataset serves, from the statistics of its files; no data is read for it."""

    dataset: str
    dataset_id: str
    generation_id: str
    revision: int | None = None  # Null: nothing is committed.
    columns: list[ColumnStatistics] | None = None  # Null: not known.
    pieces: int = 0  # So many commits were looked at, the newest ones …
    measured: int = 0  # … of which so many have statistics.
    rows: int = 0  # In those that have.
    complete: bool = (
        True  # False: there are more pieces, or some without statistics, which these figures leave out.
    )


class TrendPoint(Answer):
    """A commit, or an output that was not committed because of its quality."""

    revision: int | None = None  # Null: it was rejected.
    partition_key: str | None = None
    cursor: int | None = None
    at: datetime
    task_id: str
    attempt: int
    rows: int | None = None
    bytes: int | None = None
    nulls: int | None = None  # Of the chosen column, or of all; null: not measured.
    passed: int = 0  # Expectations that were met, …
    warned: int = 0  # … not met, and committed all the same, …
    failed: int = 0  # … and not met, so that it was rejected.
    rejected: int = 0  # Outputs that were rejected: by commit, 1 if this is one; by partition, how many.
    rejected_rows: int | None = None  # The rows of those.
    replaced: bool = False  # A later commit has replaced it.


class ExpectationTrend(Answer):
    """How often an expectation was met in the outputs of an answer."""

    name: str
    kind: str
    severity: str  # fail, warn
    passed: int = 0
    violated: int = 0


class TrendAnswer(Answer):
    dataset: str
    dataset_id: str
    generation_id: str
    by: str  # commit, partition
    column: str | None = None
    points: list[TrendPoint]  # From new to old, or from the last key to the first.
    expectations: list[ExpectationTrend] = []  # In the outputs of these points; by name, a hundred at most.
    next: str | None = None  # Pass it as ``before`` for the following page.
