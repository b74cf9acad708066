"""The dedupe operator: one row for each key, the same one wherever the rows lie."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from qo.errors import UsageError
from qo.testing.spark import run_operator

pytestmark = pytest.mark.spark

SCHEMA = "id bigint, at bigint, seen timestamp, tags map<string, string>, name string"
NOON = datetime(2026, 1, 1, 12, 0, 0, 1)  # noqa: DTZ001 - Spark returns times without a zone.
LATER = NOON.replace(microsecond=2)


def deduped(spark: SparkSession, rows: list[tuple[Any, ...]], files: int = 1, **config: Any) -> list[Any]:
    maker: Any = spark
    frame = maker.createDataFrame(rows, SCHEMA).repartition(files)
    chosen = {"keys": ["id"], "order_by": "at", **config}
    return sorted(run_operator("dedupe", {"changes": frame}, config=chosen, spark=spark).collect(), key=str)


def test_the_newest_row_of_each_key_is_kept(spark: SparkSession) -> None:
    rows = [
        (1, 1, NOON, {}, "old"),
        (1, 2, NOON, {}, "new"),
        (2, None, NOON, {}, "only"),
        (1, None, NOON, {}, "null"),
    ]
    assert [(row.id, row.name) for row in deduped(spark, rows)] == [(1, "new"), (2, "only")]


def test_nulls_in_keys_are_one_key_and_names_of_columns_ignore_case(spark: SparkSession) -> None:
    rows = [(None, 1, NOON, {}, "a"), (None, 2, NOON, {}, "b")]
    assert [row.name for row in deduped(spark, rows, keys=["ID"], order_by="At")] == ["b"]


def test_ties_are_resolved_by_the_other_columns_however_rows_are_spread(spark: SparkSession) -> None:
    rows = [(1, 1, LATER, {"a": "1"}, "same"), (1, 1, NOON, {"a": "1"}, "same"), (1, 1, NOON, {"a": "2"}, "same")]
    expected = deduped(spark, rows)
    assert [(row.seen, row.tags) for row in expected] == [(NOON, {"a": "1"})]
    for files in (1, 3):
        assert deduped(spark, rows[::-1], files) == expected


def test_a_column_that_is_not_there_is_named(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match=r"'changes' has no column 'nope'.*correct 'keys' and 'order_by'"):
        deduped(spark, [(1, 1, NOON, {}, "a")], keys=["nope"])
