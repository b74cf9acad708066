"""Keys are taken from paths as they were written into them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.key_pattern import find_key, pattern_problem
from qo.core.pipeline.partitions import PartitionKind, Partitions, find_part

TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds.


@given(at=TIMES, folder=st.sampled_from(("", "in/", "in/deep/")), tail=st.text("abc0-", max_size=5))
def test_a_key_from_digits_is_a_partition_of_that_kind(at: datetime, folder: str, tail: str) -> None:
    for kind, pattern, path in (
        (PartitionKind.DAY, "{year}/{month}/{day}/*.csv", f"{at:%Y/%m/%d}/x{tail}.csv"),
        (PartitionKind.DAY, "{day}.csv", f"{at:%Y-%m-%d}.csv"),
        (PartitionKind.MONTH, "{year}{month}.json", f"{at:%Y%m}.json"),
        (PartitionKind.HOUR, "{year}{month}{day}/{hour}-*", f"{at:%Y%m%d}/{at:%H}-{tail}"),
        (PartitionKind.MINUTE, "{year}-{month}-{day}T{hour}{minute}.x", f"{at:%Y-%m-%dT%H%M}.x"),
        (PartitionKind.WEEK, "{year}w{week}.csv", f"{at:%G}w{at:%V}.csv"),
    ):
        assert pattern_problem(pattern) is None
        key = find_key(pattern, folder + path)
        assert key is not None
        assert (
            find_part(Partitions(kind=kind), key).start
            <= at.timestamp()
            < find_part(Partitions(kind=kind), key).end
        )


def test_words_are_joined_and_other_paths_have_no_key() -> None:
    assert find_key("{region}/{customer}.parquet", "a/eu/4711.parquet") == "eu-4711"
    assert find_key("{region}/{customer}.parquet", "4711.parquet") is None
    assert find_key("{year}{month}.csv", "2026x3.csv") is None


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("*.csv", "says nothing about the key"),
        ("{day.csv", "has a single {"),
        ("{Day}.csv", "names no part of a path"),
        ("{a}-{a}", "has a word twice"),
        ("{a}-{b}-{c}*", "too many ways"),
        ("/{a}", "names no file"),
    ],
)
def test_a_pattern_without_a_key_is_refused_with_what_to_write(pattern: str, problem: str) -> None:
    refusal = pattern_problem(pattern)
    assert refusal is not None
    assert problem in refusal[0]
