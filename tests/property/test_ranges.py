"""Ranges: nothing is lost, nothing is there twice, and the order of what is heard does not matter."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.ranges import Aggregate, Range, aggregate, split

pytestmark = pytest.mark.fast

cursors = st.lists(st.integers(0, 1_900), max_size=40)
sizes = st.integers(1, 500)
starts = st.integers(0, 1_000)


def closed_by(heard: list[int], size: int, start: int) -> list[Range]:
    state, closed = Aggregate(size, start), []
    for cursor in heard:
        state, more = aggregate(state, cursor)
        closed += more
    return closed


@given(start=st.integers(0, 10**12), length=st.integers(1, 10**6), chunk=st.integers(500, 10**7))
def test_chunks_cover_the_range_side_by_side(start: int, length: int, chunk: int) -> None:
    chunks = split(start, start + length, chunk)
    assert (chunks[0].start, chunks[-1].end) == (start, start + length)
    assert all(one.end == other.start for one, other in pairwise(chunks))
    assert all(each.end - each.start == chunk for each in chunks[:-1])
    assert 0 < chunks[-1].end - chunks[-1].start <= chunk


@given(heard=cursors, size=sizes, start=starts)
def test_closed_ranges_are_the_whole_ones_below_the_greatest_cursor(
    heard: list[int], size: int, start: int
) -> None:
    closed = closed_by(heard, size, start)
    assert closed == sorted(closed, key=lambda each: each.start)
    assert all(each.end - each.start == size for each in closed)
    assert all(one.end == other.start for one, other in pairwise(closed))
    reached = max(heard, default=-1) + 1
    if closed:
        assert closed[0].start == start
        assert closed[-1].end <= reached < closed[-1].end + size
    else:
        assert reached < start + size


@given(data=st.data(), heard=cursors, size=sizes, start=starts)
def test_repeating_and_reordering_closes_the_same_ranges(
    data: st.DataObject, heard: list[int], size: int, start: int
) -> None:
    repeated = heard + data.draw(st.lists(st.sampled_from(heard), max_size=10)) if heard else heard
    mixed = data.draw(st.permutations(repeated))
    once, again = closed_by(heard, size, start), closed_by(mixed, size, start)
    assert set(again) == set(once)
    assert len(again) == len(set(again))


@given(heard=cursors, size=sizes, start=starts)
def test_no_two_ranges_share_a_partition_key(heard: list[int], size: int, start: int) -> None:
    closed = closed_by(heard, size, start)
    assert len({each.partition_key for each in closed}) == len(closed)
