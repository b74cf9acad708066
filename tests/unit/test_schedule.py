"""When a schedule runs: against a scan of every minute, across clock changes, and after every kind of absence."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qo.core import wire
from qo.core.schedule import (
    GRACE_S,
    RUNS_MAX,
    CatchUp,
    Schedule,
    change,
    due_runs,
    next_run,
    record_run,
    run_key,
    validate,
    validate_name,
)
from qo.errors import CorruptRecord, UsageError

pytestmark = pytest.mark.fast
CALM = settings(deadline=None)  # A slow machine is not a broken law.

START = datetime(2026, 3, 1, 12, 0, 20, tzinfo=UTC)  # A Sunday.
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def planned(cron: str, since: datetime = START, **more: Any) -> Schedule:
    base = {"name": "nightly", "task_type": "work", "token": "t", "catch_up": CatchUp.ALL}
    times = {"created_at": since, "updated_at": since, "active_since": since}
    return Schedule(cron=cron, **{**base, **times, **more})


def recorded(schedule: Schedule, instants: list[datetime]) -> Schedule:
    return record_run(schedule, instants[-1], "id", now=instants[-1], token="next") if instants else schedule


def at(zone: str, *wall: int, fold: int = 0) -> datetime:
    return datetime(*wall, tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


# Against a scan of every minute


class Fields:
    """A cron line kept as sets, so that a scan can ask of any minute whether it matches."""

    def __init__(self, minutes: set[int] | None, hours: set[int] | None, weekdays: set[int] | None) -> None:
        self.minutes, self.hours, self.weekdays = minutes, hours, weekdays

    @property
    def cron(self) -> str:
        spelled = ["*" if s is None else ",".join(map(str, sorted(s))) for s in (self.minutes, self.hours)]
        days = "*" if self.weekdays is None else ",".join(map(str, sorted(self.weekdays)))
        return f"{spelled[0]} {spelled[1]} * * {days}"

    def __repr__(self) -> str:
        return self.cron

    @property
    def fixed(self) -> bool:
        return self.minutes is not None and self.hours is not None

    def match(self, wall: datetime) -> bool:
        weekday = wall.isoweekday()  # Monday is 1, Sunday 7, which cron also writes as 0.
        return (
            (self.minutes is None or wall.minute in self.minutes)
            and (self.hours is None or wall.hour in self.hours)
            and (self.weekdays is None or weekday in self.weekdays or weekday % 7 in self.weekdays)
        )


def some(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[set[int] | None]:
    return st.none() | st.sets(numbers, min_size=1, max_size=3)


plans = st.builds(
    Fields, some(st.sampled_from([0, 1, 29, 30, 59])), some(st.integers(0, 23)), some(st.integers(0, 7))
)
passes = st.lists(st.integers(1, 4 * 3600), min_size=1, max_size=8)


def scanned(fields: Fields, after: datetime, until: datetime) -> list[datetime]:
    minute = after.replace(second=0, microsecond=0) + MINUTE
    return [m for m in minutes_between(minute, until) if fields.match(m)]


def minutes_between(first: datetime, until: datetime) -> list[datetime]:
    return [first + n * MINUTE for n in range(int((until - first) / MINUTE) + 1)] if first <= until else []


@CALM
@given(plans, st.integers(0, 10**6), st.integers(1, 30 * 3600))
def test_in_utc_runs_are_exactly_the_matching_minutes(fields: Fields, offset_s: int, span_s: int) -> None:
    since = START + timedelta(seconds=offset_s)
    now = since + timedelta(seconds=span_s)
    assert due_runs(planned(fields.cron, since), now) == scanned(fields, since, now)[:RUNS_MAX]


@CALM
@given(plans, passes, st.sampled_from(CatchUp))
def test_successive_passes_never_return_a_moment_twice(
    fields: Fields, steps_s: list[int], catch_up: CatchUp
) -> None:
    schedule, now, seen = planned(fields.cron, catch_up=catch_up), START, list[datetime]()
    for step_s in steps_s:
        now += timedelta(seconds=step_s)
        instants = due_runs(schedule, now)
        assert all(START < instant <= now for instant in instants)
        seen += instants
        schedule = recorded(schedule, instants)
        assert due_runs(schedule, now) == [] or len(instants) == RUNS_MAX
    assert seen == sorted(set(seen))


@CALM
@given(plans, passes)
def test_making_up_for_all_misses_nothing_however_the_passes_fall(fields: Fields, steps_s: list[int]) -> None:
    schedule, now, seen = planned(fields.cron), START, list[datetime]()
    for step_s in steps_s:
        now += timedelta(seconds=step_s)
        while instants := due_runs(schedule, now):
            seen += instants
            schedule = recorded(schedule, instants)
    assert seen == scanned(fields, START, now)


@CALM
@given(plans, st.integers(1, 30 * 3600), st.integers(0, 30 * 3600))
def test_what_is_due_only_grows_until_it_is_recorded(fields: Fields, span_s: int, more_s: int) -> None:
    schedule = planned(fields.cron)
    early = due_runs(schedule, START + timedelta(seconds=span_s))
    late = due_runs(schedule, START + timedelta(seconds=span_s + more_s))
    assert late[: len(early)] == early


@CALM
@given(plans, st.integers(1, 90 * 3600))
def test_making_up_for_the_last_runs_the_latest_missed_moment(fields: Fields, span_s: int) -> None:
    now = START + timedelta(seconds=span_s)
    assert due_runs(planned(fields.cron, catch_up=CatchUp.LAST), now) == scanned(fields, START, now)[-1:]


@CALM
@given(plans, st.integers(1, 30 * 3600))
def test_making_up_for_none_runs_only_what_is_on_time(fields: Fields, span_s: int) -> None:
    now = START + timedelta(seconds=span_s)
    on_time = [m for m in scanned(fields, START, now) if m > now - timedelta(seconds=GRACE_S)]
    assert due_runs(planned(fields.cron, catch_up=CatchUp.NONE), now) == on_time


@CALM
@given(plans, st.integers(0, 10 * 86_400))
def test_the_next_run_is_the_first_that_will_be_due(fields: Fields, offset_s: int) -> None:
    now = START + timedelta(seconds=offset_s)
    schedule = planned(fields.cron, catch_up=CatchUp.LAST)
    upcoming = next_run(schedule, now)
    assert upcoming is not None
    assert upcoming > now
    assert due_runs(replace(schedule, active_since=now), upcoming - timedelta(seconds=1)) == []
    assert due_runs(replace(schedule, active_since=now), upcoming) == [upcoming]


# Where clocks change

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
# Also zones whose gap is at midnight, whose offset is no whole hour, and that have no change at all.
ZONES = [BERLIN, NEW_YORK, "America/Santiago", "Africa/Cairo", "Asia/Kolkata", "Australia/Adelaide"]
CHANGES = [datetime(2026, m, d, 12, tzinfo=UTC) for m, d in [(3, 8), (3, 29), (4, 5), (4, 24), (9, 6), (10, 4)]]
CHANGES += [datetime(2026, m, d, 12, tzinfo=UTC) for m, d in [(10, 25), (10, 29), (11, 1)]]


def scanned_in(zone: str, fields: Fields, after: datetime, until: datetime) -> list[datetime]:
    """The documented rule, told minute by minute."""
    tz = ZoneInfo(zone)
    around = minutes_between((after - DAY).replace(second=0, microsecond=0), until + DAY)
    if not fields.fixed:
        found = {m for m in around if fields.match(m.astimezone(tz))}
    else:
        first_wall = around[0].astimezone(tz).replace(tzinfo=None)
        walls = [first_wall + n * MINUTE for n in range(len(around))]
        found = {resolved(wall, tz) for wall in walls if fields.match(wall)}
    return sorted(m for m in found if after < m <= until)


def resolved(wall: datetime, tz: ZoneInfo) -> datetime:
    """The first moment that this wall clock shows, or the first after the gap that swallowed it."""
    while (moment := wall.replace(tzinfo=tz).astimezone(UTC)).astimezone(tz).replace(tzinfo=None) != wall:
        wall += MINUTE
    return moment


@CALM
@given(
    st.sampled_from(ZONES),
    st.sampled_from(CHANGES),
    st.builds(Fields, some(st.sampled_from([0, 15, 30, 59])), some(st.integers(0, 4)), some(st.integers(0, 7))),
    st.integers(0, 36 * 60),
)
def test_across_a_clock_change_runs_follow_the_documented_rule(
    zone: str, change: datetime, fields: Fields, offset_min: int
) -> None:
    since = change - DAY + offset_min * MINUTE + timedelta(seconds=7)
    until = since + 30 * HOUR
    schedule = planned(fields.cron, since, timezone=zone)
    expected = scanned_in(zone, fields, since, until)
    assert due_runs(schedule, until) == expected[:RUNS_MAX]
    assert due_runs(replace(schedule, catch_up=CatchUp.LAST), until) == expected[-1:]


@pytest.mark.parametrize(
    ("zone", "day"), [(BERLIN, (2026, 3, 29)), (NEW_YORK, (2026, 3, 8))], ids=["Berlin", "New York"]
)
def test_a_time_that_the_clocks_skip_runs_right_after_the_gap(zone: str, day: tuple[int, int, int]) -> None:
    schedule = planned("30 2 * * *", at(zone, *day, 0, 0), timezone=zone)
    assert due_runs(schedule, at(zone, *day, 23, 0)) == [at(zone, *day, 3, 0)]


@pytest.mark.parametrize(
    ("zone", "day", "hour"),
    [(BERLIN, (2026, 10, 25), 2), (NEW_YORK, (2026, 11, 1), 1)],
    ids=["Berlin", "New York"],
)
def test_a_time_that_the_clocks_repeat_runs_the_first_time_only(
    zone: str, day: tuple[int, int, int], hour: int
) -> None:
    schedule = planned(f"30 {hour} * * *", at(zone, *day, 0, 0), timezone=zone, catch_up=CatchUp.LAST)
    first = at(zone, *day, hour, 30)
    assert due_runs(schedule, first) == [first]
    schedule = recorded(schedule, [first])
    for minutes in range(0, 180, 10):
        assert due_runs(schedule, first + minutes * MINUTE) == []


def test_a_plan_made_in_the_second_pass_of_a_repeated_hour_waits_for_the_next_day() -> None:
    since = at(BERLIN, 2026, 10, 25, 2, 15, fold=1)
    schedule = planned("30 2 * * *", since, timezone=BERLIN)
    assert due_runs(schedule, since + 3 * HOUR) == []
    assert next_run(schedule, since) == at(BERLIN, 2026, 10, 26, 2, 30)


def test_an_hourly_plan_follows_elapsed_time() -> None:
    spring = planned("0 * * * *", at(BERLIN, 2026, 3, 29, 0, 30), timezone=BERLIN)
    autumn = planned("0 * * * *", at(BERLIN, 2026, 10, 25, 0, 30), timezone=BERLIN)
    for schedule in (spring, autumn):
        hours = due_runs(schedule, schedule.active_since + 5 * HOUR)
        assert [later - hour for hour, later in pairwise(hours)] == [HOUR] * 4


def test_where_the_clocks_skip_midnight_no_run_is_made_up_and_none_is_lost() -> None:
    zone, sunday = "America/Santiago", (2026, 9, 6)  # 00:00 to 01:00 does not exist.
    before, after = at(zone, 2026, 9, 5, 20, 0), at(zone, *sunday, 2, 30)
    assert due_runs(planned("* 0 * * 0", before, timezone=zone), after) == []
    hourly = planned("0 * * * 0", before, timezone=zone)
    assert due_runs(hourly, after) == [at(zone, *sunday, 1, 0), at(zone, *sunday, 2, 0)]


def test_a_time_zone_moves_the_run_with_its_summer_time() -> None:
    schedule = planned("0 9 * * *", at(BERLIN, 2026, 3, 27, 12, 0), timezone=BERLIN)
    runs = due_runs(schedule, at(BERLIN, 2026, 3, 30, 12, 0))
    assert [run.hour for run in runs] == [8, 7, 7]


# Days


@pytest.mark.parametrize("sunday", ["0", "7", "SUN", "sun"])
def test_sunday_is_0_and_7_and_has_a_name(sunday: str) -> None:
    schedule = planned(f"0 0 * * {sunday}")
    assert next_run(schedule, START) == datetime(2026, 3, 8, tzinfo=UTC)


def test_monday_to_friday_is_1_to_5() -> None:
    runs = due_runs(planned("0 6 * * 1-5"), START + 7 * DAY)
    assert [run.strftime("%a") for run in runs] == ["Mon", "Tue", "Wed", "Thu", "Fri"]


def test_a_plan_for_the_29th_of_february_waits_for_it() -> None:
    assert next_run(planned("0 0 29 2 *"), START) == datetime(2028, 2, 29, tzinfo=UTC)


# After an absence


def test_a_new_schedule_does_not_run_for_the_past() -> None:
    for catch_up in CatchUp:
        schedule = planned("* * * * *", catch_up=catch_up)
        assert due_runs(schedule, START) == []
        assert due_runs(schedule, START + timedelta(seconds=39)) == []
        assert due_runs(schedule, START + timedelta(seconds=40)) == [START + timedelta(seconds=40)]


def test_a_year_of_missed_minutes_is_made_up_for_as_told() -> None:
    now = START + 365 * DAY
    assert due_runs(planned("* * * * *", catch_up=CatchUp.LAST), now) == [now.replace(second=0)]
    assert due_runs(planned("* * * * *", catch_up=CatchUp.NONE), now) == [now.replace(second=0)]
    every = due_runs(planned("* * * * *", catch_up=CatchUp.ALL), now)
    assert len(every) == RUNS_MAX
    assert every[0] == START + timedelta(seconds=40)


def test_a_run_is_on_time_for_as_long_as_the_grace() -> None:
    schedule = planned("0 13 * * *", catch_up=CatchUp.NONE)
    one = datetime(2026, 3, 1, 13, tzinfo=UTC)
    assert due_runs(schedule, one + timedelta(seconds=59)) == [one]
    assert due_runs(schedule, one + timedelta(seconds=61)) == []
    assert due_runs(schedule, one + timedelta(seconds=61), grace_s=120) == [one]


def test_a_disabled_schedule_has_nothing_due_and_no_next_run() -> None:
    schedule = planned("* * * * *", enabled=False)
    assert due_runs(schedule, START + DAY) == []
    assert next_run(schedule, START) is None


def test_enabling_again_does_not_make_up_for_the_time_in_between() -> None:
    off = change(planned("0 * * * *"), now=START, token="a", enabled=False)
    on = change(off, now=START + DAY, token="b", enabled=True)
    assert due_runs(on, START + DAY) == []
    assert due_runs(on, START + DAY + HOUR) == [datetime(2026, 3, 2, 13, tzinfo=UTC)]


def test_enabling_what_is_enabled_does_not_lose_a_run() -> None:
    schedule = change(planned("0 * * * *"), now=START + HOUR, token="b", enabled=True)
    assert due_runs(schedule, START + HOUR) == [datetime(2026, 3, 1, 13, tzinfo=UTC)]


def test_a_new_plan_does_not_run_for_the_past_and_other_changes_keep_what_is_due() -> None:
    schedule = planned("0 18 * * *", last_run_at=START)
    now = START + DAY
    assert due_runs(change(schedule, now=now, token="b", cron="0 9 * * *"), now) == []
    assert due_runs(change(schedule, now=now, token="b", timezone=BERLIN), now) == []
    assert len(due_runs(change(schedule, now=now, token="b", priority=5), now)) == 1


def test_a_clock_set_back_runs_nothing_again() -> None:
    schedule = recorded(planned("* * * * *"), [START + HOUR])
    assert due_runs(schedule, START + MINUTE) == []


# Records


def test_a_run_is_recorded_once_and_never_backwards() -> None:
    schedule = planned("* * * * *")
    later = record_run(schedule, START + HOUR, "two", now=START + HOUR, token="b")
    assert (later.last_run_at, later.last_task_id, later.token) == (START + HOUR, "two", "b")
    assert record_run(later, START + HOUR, "two", now=START, token="c") is later
    assert record_run(later, START + MINUTE, "one", now=START, token="c") is later


def test_a_skipped_run_keeps_the_last_task_and_never_hides_one_that_was_submitted() -> None:
    schedule = planned("* * * * *", last_task_id="one")
    skipped = record_run(schedule, START + HOUR, None, now=START + HOUR, token="b")
    assert (skipped.last_run_at, skipped.last_task_id) == (START + HOUR, "one")
    submitted = record_run(skipped, START + HOUR, "two", now=START + HOUR, token="c")
    assert (submitted.last_run_at, submitted.last_task_id) == (START + HOUR, "two")
    assert record_run(submitted, START + HOUR, None, now=START + HOUR, token="d") is submitted


def test_a_namesake_created_later_has_other_runs() -> None:
    first, second = planned("* * * * *"), planned("* * * * *", START + DAY)
    moment = START + 2 * DAY
    assert run_key(first, moment) == run_key(replace(first, cron="0 * * * *", token="other"), moment)
    assert run_key(first, moment) != run_key(second, moment)


def test_a_schedule_survives_its_bytes() -> None:
    schedule = planned("* * * * *", input={"a": [1, "ü"]}, last_run_at=START, timezone=BERLIN)
    assert wire.decode(Schedule, wire.encode(schedule), "k") == schedule
    with pytest.raises(CorruptRecord):
        wire.decode(Schedule, wire.encode(replace(schedule, format=99)), "k")


# Refusals


@pytest.mark.parametrize("name", ["a", "0", "nightly-report.v2_x", "a" * 100])
def test_a_name_that_can_be_part_of_a_key_is_taken(name: str) -> None:
    assert validate_name(name) == name


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a/b", "..", "a b", "a" * 101, "a\n", "ä", "../queue"])
def test_a_name_that_cannot_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a schedule"):
        validate(planned("* * * * *", name=name))


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("0 * * * * *", "6 fields"),
        ("@daily", "1 fields"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 32 * *", "day-of-month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day-of-week"),
        ("*/0 * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("9" * 5000 + " * * * *", "cannot be read"),
        ("0 0 30 2 *", "day-of-month"),
        ("0 0 31 2,4 *", "day-of-month"),
    ],
)
def test_a_cron_that_cannot_be_read_is_refused_with_the_reason(cron: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        validate(planned(cron))


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "America", "../../etc/passwd", "/etc/localtime", "a\0b"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(UsageError, match="no time zone"):
        validate(planned("* * * * *", timezone=zone))


@pytest.mark.parametrize("field", ["catch_up", "overlap"])
def test_a_policy_that_does_not_exist_is_refused(field: str) -> None:
    with pytest.raises(UsageError, match=field):
        validate(planned("* * * * *", **{field: "sometimes"}))


@CALM
@given(st.text("0123456789*,-/#LWSUNMO ", max_size=20) | st.text(max_size=20))
def test_no_cron_text_does_worse_than_a_usage_error(cron: str) -> None:
    with suppress(UsageError):
        validate(planned(cron))
    with suppress(UsageError):
        due_runs(planned(cron, catch_up=CatchUp.NONE), START + DAY)
