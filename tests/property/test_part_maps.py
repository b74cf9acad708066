"""What a partition is made of and what a partition concerns are two sides of one relation, in every zone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.core.pipeline.dag import Job
from qo.core.pipeline.part_maps import (
    PARTS_MAX,
    Missing,
    PartMap,
    can_map,
    concerned,
    due_at,
    find_missing,
    is_ready,
    is_too_wide,
    map_inputs,
    reads,
)
from qo.core.pipeline.partitions import (
    SECONDS,
    PartitionKind,
    Partitions,
    find_part,
    following,
    is_expected,
    part_at,
    preceding,
)

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
kinds = st.sampled_from(list(SECONDS))
zones = st.sampled_from(ZONES)
in_time = st.builds(Partitions, kind=kinds, timezone=zones)
of_numbers = st.builds(
    Partitions, kind=st.just(PartitionKind.INTEGER), range=st.sampled_from([None, 3, 10, 1_000])
)
windows, offsets = st.integers(1, 5), st.integers(-3, 3)
maps = st.one_of(
    st.builds(PartMap, target=in_time, source=in_time, window=windows, offset=offsets),
    st.builds(PartMap, target=of_numbers, source=of_numbers, window=windows, offset=offsets),
).filter(lambda map_: not is_too_wide(map_))
times = st.one_of(
    st.integers(1_000_000_000, 2_000_000_000),
    # Around changes of clocks in Berlin and New York, and the day that Apia skipped.
    st.sampled_from([1_774_746_000, 1_792_890_000, 1_772_953_200, 1_793_512_800, 1_325_239_200]).flatmap(
        lambda at: st.integers(at - 100_000, at + 100_000)
    ),
)


@settings(deadline=None)
@given(map_=maps, at=times)
def test_a_part_reads_exactly_those_that_concern_it(map_: PartMap, at: int) -> None:
    part = part_at(map_.source, at)
    for key in concerned(map_, part.key)[:20]:
        assert part.key in {each.key for each in reads(map_, key).parts}
    target = part_at(map_.target, at)
    for each in reads(map_, target.key).parts[:20]:
        assert target.key in concerned(map_, each.key)


@settings(deadline=None)
@given(map_=maps, at=times)
def test_what_a_part_reads_has_no_gaps_and_covers_its_time(map_: PartMap, at: int) -> None:
    target = part_at(map_.target, at)
    read = reads(map_, target.key)
    assert all(one.end == other.start for one, other in zip(read.parts, read.parts[1:], strict=False))
    assert len(read.parts) <= PARTS_MAX + 2
    if map_.offset == 0:
        assert read.parts[0].start <= target.start
        assert read.parts[-1].end >= target.end
        assert find_part(map_.source, read.parts[-1].key).end > target.start
    assert read.own <= {each.key for each in read.parts}


@given(zone=zones, at=times)
def test_a_month_is_made_of_its_days_and_each_day_is_in_one_month(zone: str | None, at: int) -> None:
    months, days = (Partitions(kind=PartitionKind(kind), timezone=zone) for kind in ("month", "day"))
    map_ = PartMap(months, days)
    month = part_at(months, at)
    read = reads(map_, month.key).parts
    assert {each.key[:7] for each in read} == {month.key}
    assert [concerned(map_, each.key) for each in read] == [(month.key,)] * len(read)
    assert (read[0].start, read[-1].end) == (month.start, month.end)


@given(partitions=st.one_of(in_time, of_numbers), window=st.integers(1, 30), at=times)
def test_a_window_reads_back_and_an_offset_moves(partitions: Partitions, window: int, at: int) -> None:
    part = part_at(partitions, at)
    back = reads(PartMap(partitions, partitions, window), part.key)
    assert len(back.parts) == window
    assert back.parts[-1] == part
    assert back.own == {part.key}
    moved = reads(PartMap(partitions, partitions, window, -1), part.key)
    assert moved.parts[-1] == preceding(partitions, part)
    assert reads(PartMap(partitions, partitions, 1, 1), part.key).parts == (following(partitions, part),)


@given(map_=maps, at=times, start=times)
def test_nothing_before_the_start_is_made_or_expected(map_: PartMap, at: int, start: int) -> None:
    def begins(partitions: Partitions) -> Partitions:
        return msgspec.structs.replace(partitions, start=part_at(partitions, start).key)

    late = PartMap(begins(map_.target), begins(map_.source), map_.window, map_.offset)
    first, part = part_at(map_.target, start), part_at(map_.source, at)
    assert all(find_part(map_.target, key).start >= first.start for key in concerned(late, part.key))
    read = reads(late, part_at(map_.target, at).key)
    assert read.expected == {each.key for each in read.parts if each.start >= part_at(map_.source, start).start}


def test_a_calendar_says_which_days_are_expected() -> None:
    days = Partitions(kind=PartitionKind.DAY, weekdays="MON-FRI", without=("2026-01-01",), start="2026-01-01")
    read = reads(PartMap(Partitions(kind=PartitionKind.MONTH), days), "2026-01")
    assert len(read.parts) == 31
    assert len(read.expected) == 21
    assert not read.expected & {"2026-01-01", "2026-01-03", "2026-01-04"}


@given(first=st.integers(0, 6), last=st.integers(0, 6), at=times)
def test_weekdays_may_go_over_the_end_of_the_week(first: int, last: int, at: int) -> None:
    names = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
    days = Partitions(kind=PartitionKind.DAY, weekdays=f"{names[first]}-{names[last]}")
    week = reads(
        PartMap(Partitions(kind=PartitionKind.WEEK), days), part_at(Partitions(kind=PartitionKind.WEEK), at).key
    )
    assert len(week.expected) == (last - first) % 7 + 1
    assert all(is_expected(days, each) == (each.key in week.expected) for each in week.parts)


# When a part is ready


MONTHS = {0: PartMap(Partitions(kind=PartitionKind.MONTH), Partitions(kind=PartitionKind.DAY, start="2026-02-03"))}
KEYS = [each.key for each in reads(MONTHS[0], "2026-02").parts]


def job(**fields: Any) -> Job:
    given_fields = {
        "name": "monthly",
        "activation": "reactive",
        "runtime": "python",
        "operator": "a:b",
        "outputs": 1,
    }
    return msgspec.convert(
        given_fields | {"partitions": {"kind": "month"}, "execution_strategy": "PerPartition"} | fields, Job
    )


@given(
    there=st.sets(st.sampled_from(KEYS)),
    since=st.none() | times,
    now=times,
    complete=st.sampled_from(["all", "any"]),
)
def test_a_part_is_made_when_all_is_there_or_its_deadline_has_passed(
    there: set[str], since: int | None, now: int, complete: str
) -> None:
    missing = find_missing(MONTHS, "2026-02", {0: there})
    assert missing.count == len(set(KEYS) - {"2026-02-01", "2026-02-02"} - there)
    patient, urgent = job(complete=complete), job(complete=complete, deadline="2d")
    due = due_at(urgent, "2026-02", since=since)
    assert due is not None
    assert due >= find_part(MONTHS[0].target, "2026-02").end + 2 * 86_400
    assert due_at(patient, "2026-02", since=since) is None
    by_itself = is_ready(patient, missing, now=now, due=None)
    assert by_itself == (bool(there) if complete == "any" else bool(there) and not missing.count)
    assert is_ready(urgent, missing, now=now, due=due) == (by_itself or (bool(there) and now >= due))


def test_what_is_announced_waits_for_its_deadline() -> None:
    whole = Missing(is_begun=True, keys={})
    announced = job(complete="announced", deadline="6h")
    assert not is_ready(announced, whole, now=0.0, due=1.0)
    assert is_ready(announced, whole, now=1.0, due=1.0)


# Which inputs have maps


@given(own=st.none() | in_time | of_numbers, source=st.none() | in_time | of_numbers)
def test_inputs_of_the_same_kind_need_no_map(own: Partitions | None, source: Partitions | None) -> None:
    read = msgspec.to_builtins(job(inputs=[{"from": {"job": "daily"}}])) | {"partitions": own}
    found = map_inputs(msgspec.convert(read, Job), [source])
    assert bool(found) == (
        can_map(own, source) and not PartMap(own, source).is_identity if own and source else False
    )


def test_all_triggers_of_a_composite_have_maps_and_side_inputs_only_where_they_differ() -> None:
    days = Partitions(kind=PartitionKind.DAY)
    inputs = [
        {"from": {"job": "a"}},
        {"from": {"job": "a"}, "as": "before", "offset": -1},
        {"from": {"job": "b"}, "trigger": False},
        {"from": {"job": "c"}, "trigger": False},
    ]
    read = job(partitions={"kind": "day"}, inputs=inputs)
    assert set(map_inputs(read, [days, days, days, Partitions(kind=PartitionKind.HOUR)])) == {0, 1, 3}
    assert (
        map_inputs(job(partitions={"kind": "day"}, inputs=inputs[2:], execution_strategy="PerUpdate"), [days] * 2)
        == {}
    )


@pytest.mark.parametrize(
    ("target", "source", "window", "wide"),
    [
        ("month", "minute", 1, True),
        ("day", "minute", 1, False),
        ("day", "minute", 2, True),
        ("month", "hour", 1, False),
        ("minute", "month", 1, True),
    ],
)
def test_a_part_of_too_many_parts_is_recognised(target: str, source: str, window: int, wide: bool) -> None:
    map_ = PartMap(Partitions(kind=PartitionKind(target)), Partitions(kind=PartitionKind(source)), window)
    assert is_too_wide(map_) == wide


def test_numbers_begin_at_zero() -> None:
    tens = Partitions(kind=PartitionKind.INTEGER, range=10)
    assert reads(PartMap(tens, tens, window=3), "0").parts == (find_part(tens, "0"),)
    assert reads(PartMap(tens, tens, offset=-1), "0").parts == ()
    assert concerned(PartMap(tens, tens, offset=-1), "0") == ("10",)
    assert [each.key for each in reads(PartMap(tens, tens, window=9), "10").parts] == ["0", "10"]
