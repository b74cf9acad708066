"""Where a stream of Kafka's topics goes on, and what it says is missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.kafka_offsets import Gap, GapKind, describe_gaps, resume

pytestmark = pytest.mark.fast

offsets = st.integers(0, 50)


def test_a_stream_goes_on_at_the_committed_offsets_and_reads_new_partitions_from_their_beginning():
    position = {"clicks": {"0": 12, "1": 7}}
    earliest = {"clicks": {"0": 0, "1": 7, "2": 3}, "views": {"0": 0}}
    latest = {"clicks": {"0": 20, "1": 7, "2": 9}, "views": {"0": 4}}
    start, gaps = resume(position, earliest, latest)
    assert start == {"clicks": {"0": 12, "1": 7, "2": 3}, "views": {"0": 0}}
    assert gaps == []


def test_records_that_expired_topics_made_anew_and_partitions_removed_are_gaps():
    position = {"clicks": {"0": 12, "1": 7}, "views": {"0": 5}}
    start, gaps = resume(position, {"clicks": {"0": 20, "1": 0}}, {"clicks": {"0": 30, "1": 2}})
    assert start == {"clicks": {"0": 20, "1": 0}}
    assert [(each.kind, each.next, each.goes_on_at) for each in gaps] == [
        (GapKind.EXPIRED, 12, 20),
        (GapKind.SHORTENED, 7, 0),
        (GapKind.REMOVED, 5, None),
    ]
    assert describe_gaps(gaps) == (
        "clicks, partition 0: records 12 to 19 have expired; "
        "clicks, partition 1: record 7 is next, and the topic ends before it: it was made anew or cut; "
        "views, partition 0: it was removed, and record 5 was next"
    )


def test_of_many_gaps_some_are_described_and_the_others_counted():
    gaps = [Gap(GapKind.EXPIRED, "t", str(n), 0, 5) for n in range(8)]
    assert describe_gaps(gaps).count("have expired") == 5
    assert describe_gaps(gaps).endswith("; and 3 more")


@given(following=offsets, oldest=offsets, length=offsets)
def test_no_record_is_left_out_or_repeated_unless_a_gap_says_so(following: int, oldest: int, length: int):
    latest = oldest + length
    start, gaps = resume({"t": {"0": following}}, {"t": {"0": oldest}}, {"t": {"0": latest}})
    assert oldest <= start["t"]["0"] <= latest
    assert (start["t"]["0"] == following) == (gaps == [])
