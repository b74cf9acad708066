"""Columns of Parquet files become columns of PostgreSQL, or an error says which cannot."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from qo.errors import UsageError
from qo.sink.arrow_columns import column_type, column_types, find_missing, rows

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("arrow", "postgres"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "smallint"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "numeric(20,0)"),
        (pa.float64(), "double precision"),
        (pa.decimal128(10, 2), "numeric(10,2)"),
        (pa.dictionary(pa.int32(), pa.string()), "text"),
        (pa.timestamp("ns"), "timestamp without time zone"),
        (pa.timestamp("us", "UTC"), "timestamp with time zone"),
        (pa.list_(pa.int64()), "jsonb"),
        (pa.map_(pa.string(), pa.int64()), "jsonb"),
        (pa.month_day_nano_interval(), None),
    ],
)
def test_each_type_has_one_of_postgresql_or_none(arrow: Any, postgres: str | None) -> None:
    assert column_type(arrow) == postgres


def test_a_column_that_cannot_be_mapped_is_named() -> None:
    with pytest.raises(UsageError, match=r"'span' of f\.parquet is month_day_nano_interval"):
        column_types(pa.schema([("span", pa.month_day_nano_interval())]), "f.parquet")
    with pytest.raises(UsageError, match="more than 63 bytes"):
        column_types(pa.schema([("x" * 64, pa.int64())]), "f.parquet")
    with pytest.raises(UsageError, match="reserved"):
        column_types(pa.schema([("_qo_revision", pa.int64())]), "f.parquet")


def test_a_table_takes_narrower_numbers_and_no_wider_ones() -> None:
    assert find_missing({"n": "bigint"}, {"n": "integer", "new": "text"}) == {"new": "text"}
    with pytest.raises(UsageError, match="'n' is bigint in new data, and integer in the table"):
        find_missing({"n": "integer"}, {"n": "bigint"})


def test_values_are_as_copy_takes_them() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    columns = {
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "word": pa.array(["w"]).dictionary_encode(),
        "at": pa.array([at], pa.timestamp("ns", "UTC")),
        "day": pa.array([date(2026, 3, 1)]),
    }
    (batch,) = pa.table(columns).to_batches()
    assert [tuple(row) for row in rows(batch)] == [('{"k": 1}', "w", at, date(2026, 3, 1))]
    nested = pa.array([{"a": float("nan"), "b": [1, None]}])
    assert list(rows(pa.record_batch([nested], ["nested"]))) == [('{"a": null, "b": [1, null]}',)]
