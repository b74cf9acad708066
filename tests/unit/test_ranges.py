"""Cutting ranges, and closing them as a cursor moves on."""

from __future__ import annotations

import pytest

from qo.core.pipeline.event import NUMBER_MAX
from qo.core.pipeline.ranges import RANGES_MAX, Aggregate, Range, aggregate, split
from qo.errors import UsageError

pytestmark = pytest.mark.fast


def test_a_range_is_cut_from_its_start_and_the_last_chunk_may_be_shorter() -> None:
    assert split(1500, 4000, 1000) == [Range(1500, 2500), Range(2500, 3500), Range(3500, 4000)]


def test_a_chunk_larger_than_the_range_leaves_it_whole() -> None:
    assert split(0, 5, 100) == [Range(0, 5)]


def test_the_greatest_numbers_can_be_cut() -> None:
    assert split(NUMBER_MAX - 3, NUMBER_MAX, 2) == [
        Range(NUMBER_MAX - 3, NUMBER_MAX - 1),
        Range(NUMBER_MAX - 1, NUMBER_MAX),
    ]


@pytest.mark.parametrize(("start", "end", "chunk"), [(5, 5, 1), (6, 5, 1), (-1, 5, 1), (0, 5, 0), (0, 5, -2)])
def test_what_is_no_range_or_no_size_is_refused(start: int, end: int, chunk: int) -> None:
    with pytest.raises(UsageError):
        split(start, end, chunk)


def test_too_many_chunks_are_refused_before_they_are_made() -> None:
    with pytest.raises(UsageError, match="chunk_size"):
        split(0, NUMBER_MAX, 1)
    assert len(split(0, RANGES_MAX, 1)) == RANGES_MAX


def test_a_range_is_closed_when_its_last_number_is_there() -> None:
    state, closed = aggregate(Aggregate(10), 8)
    assert closed == []
    state, closed = aggregate(state, 9)
    assert closed == [Range(0, 10)]
    state, closed = aggregate(state, 35)
    assert closed == [Range(10, 20), Range(20, 30)]
    assert aggregate(state, 35) == (state, [])
    assert aggregate(state, 3) == (state, [])


def test_ranges_begin_where_the_job_says() -> None:
    state, closed = aggregate(Aggregate(10, start=1005), 1025)
    assert closed == [Range(1005, 1015), Range(1015, 1025)]
    assert aggregate(state, 1004) == (state, [])


def test_a_first_cursor_far_from_the_start_asks_for_a_start() -> None:
    with pytest.raises(UsageError, match="set start"):
        aggregate(Aggregate(60), 1_700_000_000)
    _, closed = aggregate(Aggregate(60, start=1_700_000_000), 1_700_000_119)
    assert closed == [Range(1_700_000_000, 1_700_000_060), Range(1_700_000_060, 1_700_000_120)]


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="range_size"):
        aggregate(Aggregate(0), 5)
