"""Kinds of partitions cut time and numbers into parts without gaps or overlaps, and every part has one key."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.event import PARTITION_KEY
from qo.core.pipeline.partitions import (
    EXAMPLES,
    PartitionKind,
    Partitions,
    check_key,
    find_part,
    following,
    part_at,
)
from qo.errors import UsageError

ZONES = [
    None,
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # Clocks changed at midnight.
    "America/Havana",
    "America/St_Johns",  # At one minute past midnight.
    "Australia/Lord_Howe",  # By half an hour.
    "Asia/Kathmandu",
    "Pacific/Apia",  # It once skipped a day.
]
in_time = [kind for kind in PartitionKind if kind in EXAMPLES]
times = st.integers(0, 4_102_444_800)  # Up to 2100.
partitionings = st.one_of(
    st.builds(Partitions, kind=st.sampled_from(in_time), timezone=st.sampled_from(ZONES)),
    st.builds(Partitions, kind=st.just(PartitionKind.INTEGER), range=st.sampled_from([None, 1, 7, 1_000])),
)


@given(partitions=partitionings, at=times)
def test_every_moment_is_in_the_part_that_it_is_found_in(partitions: Partitions, at: int) -> None:
    part = part_at(partitions, at)
    assert part.start <= at < part.end
    assert PARTITION_KEY.match(part.key)


@given(partitions=partitionings, at=times)
def test_a_key_leads_back_to_its_part(partitions: Partitions, at: int) -> None:
    part = part_at(partitions, at)
    assert find_part(partitions, part.key) == part


@given(partitions=partitionings, at=times)
def test_parts_follow_each_other_without_gap_and_no_two_share_a_key(partitions: Partitions, at: int) -> None:
    part = part_at(partitions, at)
    keys = {part.key}
    for _ in range(30):
        after = following(partitions, part)
        assert after.start == part.end
        assert after.key not in keys
        keys.add(after.key)
        part = after


@given(zone=st.sampled_from(["Europe/Berlin", "America/New_York"]), year=st.integers(1990, 2037))
def test_most_days_have_24_hours_and_two_of_a_year_do_not(zone: str, year: int) -> None:
    days = Partitions(kind=PartitionKind.DAY, timezone=zone)
    part, lengths = find_part(days, f"{year}-01-01"), list[int]()
    while part.key < f"{year + 1}-01-01":
        lengths.append((part.end - part.start) // 3_600)
        part = following(days, part)
    assert sorted(lengths) == [23, *[24] * (len(lengths) - 2), 25]


@pytest.mark.parametrize("kind", in_time)
def test_the_examples_in_messages_are_keys(kind: PartitionKind) -> None:
    check_key(Partitions(kind=kind), EXAMPLES[kind])


def test_a_repeated_hour_has_its_offset_and_a_skipped_one_does_not_exist() -> None:
    hours = Partitions(kind=PartitionKind.HOUR, timezone="Europe/Berlin")
    first = find_part(hours, "2026-10-25T02")
    again = following(hours, first)
    assert (again.key, again.end - again.start) == ("2026-10-25T02+01:00", 3_600)
    assert following(hours, again).key == "2026-10-25T03"
    assert following(hours, find_part(hours, "2026-03-29T01")).key == "2026-03-29T03"
    with pytest.raises(UsageError, match=r"no such hour"):
        find_part(hours, "2026-03-29T02")


def test_a_day_begins_at_midnight_of_its_zone() -> None:
    day = find_part(Partitions(kind=PartitionKind.DAY, timezone="America/New_York"), "2026-01-15")
    assert datetime.fromtimestamp(day.start, UTC) == datetime(2026, 1, 15, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("day", "2026-02-30"),
        ("day", "2026-2-3"),
        ("day", "2026-02-03.csv"),
        ("day", "٢٠٢٦-02-03"),
        ("hour", "2026-02-03T24"),
        ("hour", "2026-02-03T05+00:00"),  # It has another name already.
        ("minute", "2026-02-03T05:60"),
        ("week", "2025-W53"),
        ("month", "2026-13"),
        ("month", "9999-01"),
        ("integer", "1500"),
        ("integer", "01000"),
        ("integer", "x"),
    ],
)
def test_a_key_that_does_not_fit_its_kind_is_refused(kind: str, key: str) -> None:
    partitions = Partitions(kind=PartitionKind(kind), range=1_000 if kind == "integer" else None)
    with pytest.raises(UsageError, match=r"is not a|is no partition"):
        check_key(partitions, key)


def test_any_key_fits_partitions_of_text_and_of_no_kind() -> None:
    check_key(Partitions(kind=PartitionKind.TEXT), "north")
    check_key(None, "north")
