"""What is said of a column is what a look at all of its values would say."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.iceberg.iceberg_types import decode_bound, encode_bound, is_shortened
from qo.core.pipeline.column_summary import KnownColumn, MeasuredPiece, count_nulls, summarize
from qo.core.pipeline.file_stats import ColumnStats, FileStats, pack_stats, unpack_stats

pytestmark = pytest.mark.fast

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "string": st.text("ab\U0010ffff", max_size=20),
    "binary": st.binary(max_size=20),
    "decimal(10,2)": st.decimals(-1000, 1000, places=2),
    "double": st.floats(allow_nan=False),
}
FILES = st.sampled_from(sorted(VALUES)).flatmap(
    lambda type_: st.tuples(
        st.just(type_),
        st.lists(st.lists(st.none() | VALUES[type_], min_size=1, max_size=5), min_size=1, max_size=4),
    )
)


def measured(type_: str, values: list[Any]) -> FileStats:
    there = [each for each in values if each is not None]
    if type_ == "double":
        numbers = (min(there, default=None), max(there, default=None))
        stats = ColumnStats(1, len(values), len(values) - len(there), None, None, *numbers)
        return FileStats(len(values), 1, {"c": stats})
    lower = encode_bound(min(there), type_, upper=False) if there else None
    upper = encode_bound(max(there), type_, upper=True) if there else None
    return FileStats(len(values), 1, {"c": ColumnStats(1, len(values), len(values) - len(there), lower, upper)})


@given(FILES)
def test_nulls_and_bounds_are_those_of_all_values_together(case: tuple[str, list[list[Any]]]) -> None:
    type_, files = case
    pieces = [
        MeasuredPiece(n, list(unpack_stats(pack_stats({"f": measured(type_, values)})).values()))
        for n, values in enumerate(files, 1)
    ]
    found = summarize([KnownColumn("c", type_, 1)], pieces)["c"]
    values = [each for some in files for each in some]
    there = [each for each in values if each is not None]
    assert (found.rows, found.nulls) == (len(values), len(values) - len(there))
    assert count_nulls((file for piece in pieces for file in piece.files), "C") == found.nulls
    for bound, extreme, is_beyond in (
        (found.least, min(there, default=None), lambda one, other: one <= other),
        (found.greatest, max(there, default=None), lambda one, other: one >= other),
    ):
        if bound is None:
            assert not there or type_ in ("string", "binary")  # No short text is above the highest code point.
        else:
            assert is_beyond(bound.value, extreme)
            assert bound.shortened or bound.value == extreme
    assert found.distinct in (None, len(set(there)))


def test_a_file_that_says_nothing_leaves_a_column_unknown() -> None:
    column = KnownColumn("c", "integer", 1)
    known, silent = measured("integer", [1, None]), FileStats(3, 1)
    found = summarize([column], [MeasuredPiece(1, [known, silent])])["c"]
    assert (found.nulls, found.least, found.greatest, found.distinct) == (None, None, None, None)


def test_rows_of_files_from_before_a_column_are_null_in_it() -> None:
    column = KnownColumn("c", "integer", 5)
    found = summarize(
        [column], [MeasuredPiece(2, [FileStats(3, 1)]), MeasuredPiece(5, [measured("integer", [7])])]
    )["c"]
    assert (found.rows, found.nulls, found.distinct) == (4, 3, 1)
    assert found.least is not None
    assert found.least.text == "7"


def test_statistics_of_a_worker_of_before_are_understood() -> None:
    old = ColumnStats(1, 2, 0, b"\x01", b"\x01")
    assert (old.least, old.greatest) == (None, None)
    found = summarize([KnownColumn("c", "double", 1)], [MeasuredPiece(1, [FileStats(2, 1, {"c": old})])])["c"]
    assert (found.nulls, found.least) == (0, None)


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("boolean", True, "true"),
        ("date", date(2024, 2, 29), "2024-02-29"),
        ("timestamp", datetime(2024, 2, 29, 12, tzinfo=UTC), "2024-02-29T12:00:00+00:00"),
        ("decimal(10,2)", Decimal("-1.20"), "-1.20"),
        ("decimal(3,0)", Decimal(0), "0"),
        ("binary", b"\x00\xff", "00ff"),
        ("string", "pen", "pen"),
    ],
)
def test_bounds_are_shown_as_people_write_them(type_: str, value: Any, text: str) -> None:
    body = encode_bound(value, type_, upper=False)
    assert body is not None
    found = summarize([KnownColumn("c", type_, 1)], [MeasuredPiece(1, [measured(type_, [value])])])["c"]
    assert found.least is not None
    assert found.least.text == text
    assert not is_shortened(body, type_)
    assert decode_bound(body, type_) == value


def test_a_day_that_python_does_not_have_is_unknown() -> None:
    assert decode_bound((2**31 - 1).to_bytes(4, "little", signed=True), "date") is None
