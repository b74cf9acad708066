"""What footers say of the files that a merge reads, against the rows of these files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DataType, DateType, DoubleType, IntegerType, LongType, StringType, TimestampType

from qo.spark.operators.standing_footers import RELEARNED_EVERY, StandingFooters

MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
KINDS: dict[str, tuple[DataType, Any, st.SearchStrategy[Any]]] = {
    "int": (IntegerType(), pa.int32(), st.integers(-5, 5)),
    "long": (LongType(), pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "date": (DateType(), pa.date32(), st.dates()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC"), MOMENTS),
}


def footer(values: Sequence[Any], type_: Any, **options: Any) -> Any:
    body = BytesIO()
    pq.write_table(pa.table({"At": pa.array(values, type_)}), body, row_group_size=3, **options)
    return pq.read_metadata(BytesIO(body.getvalue()))


@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_values_that_footers_call_less_are_less(data: st.DataObject, kind: str) -> None:
    type_, arrow_type, values = KINDS[kind]
    files = data.draw(st.lists(st.lists(st.none() | values, max_size=8), max_size=3))
    bound = data.draw(values)
    footers = StandingFooters([footer(each, arrow_type) for each in files])
    are_less = all(value is None or value < bound for each in files for value in each)
    assert footers.are_below(collected(bound), "at", type_) == are_less


def collected(value: Any) -> Any:
    """As Spark returns it: timestamps as microseconds."""
    if not isinstance(value, datetime):
        return value
    passed = value - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


@pytest.mark.parametrize(
    ("type_", "arrow_type", "value", "bound"),
    [(DoubleType(), pa.float64(), 1.0, 2.0), (StringType(), pa.string(), "a", "b")],
)
def test_nothing_is_known_of_fractions_and_texts(type_: DataType, arrow_type: Any, value: Any, bound: Any) -> None:
    assert not StandingFooters([footer([value], arrow_type)]).are_below(bound, "at", type_)


def test_nothing_is_known_of_files_without_statistics() -> None:
    footers = StandingFooters([footer([date(2026, 1, 1)], pa.date32(), write_statistics=False)])
    assert not footers.are_below(date(2027, 1, 1), "at", DateType())


def test_a_column_is_plain_if_no_file_has_a_dictionary_of_it() -> None:
    with_one = footer([1, 1, 1, 2], pa.int64())
    without = footer([1, 2, 3, 4], pa.int64(), use_dictionary=False)
    known = [each for each in range(100) if StandingFooters([without]).plain_columns(each)]
    assert {StandingFooters([without]).plain_columns(each) for each in known} == {("At",)}
    assert not any(StandingFooters([without, with_one]).plain_columns(each) for each in range(100))
    assert 0 < 100 - len(known) < 3 * 100 / RELEARNED_EVERY, "now and then the writer finds out again"
