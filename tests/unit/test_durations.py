"""Durations and instants as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.durations import format_duration, format_instant, parse_duration_s, parse_instant
from qo.errors import UsageError

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("1.5", 1.5),
        ("45s", 45),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("1.5h", 5400),
    ],
)
def test_a_duration_means_the_sum_of_its_parts(text: str, seconds: float) -> None:
    assert parse_duration_s(text, "--delay") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-5",
        "-5s",
        "5x",
        "h",
        "1h-30m",
        "1e9",
        "inf",
        "nan",
        "٣s",
        "1h30",
        "5 seconds",
        "99999999999d",
        "36526d",
    ],
)
def test_what_is_no_duration_is_refused_under_the_name_of_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--delay"):
        parse_duration_s(text, "--delay")


@pytest.mark.timeout(10)
def test_a_long_text_that_is_no_duration_is_refused_at_once_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration_s("1" * 1_000_000 + "x", "--delay")  # Searched for parts, this takes hours.
    assert len(str(caught.value)) < 300


@given(st.integers(min_value=0, max_value=10**9))
def test_a_shown_duration_reads_back_as_no_more_than_it_was(seconds: int) -> None:
    shown = parse_duration_s(format_duration(seconds), "shown")
    assert shown <= seconds
    assert seconds - shown < max(1, seconds / 24)  # Two units, so less than one part in 24 is left out.


@given(st.integers(0, 2 * 10**11), st.integers(-840, 840))
def test_an_instant_with_any_offset_is_the_same_moment(second: int, offset_min: int) -> None:
    moment = datetime.fromtimestamp(second, timezone(timedelta(minutes=offset_min)))
    assert parse_instant(moment.isoformat(), "--at") == moment
    assert parse_instant(format_instant(moment), "--at") == moment


def test_z_and_lower_case_are_utc() -> None:
    moment = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
    assert parse_instant("2026-03-01T09:00:00Z", "--at") == moment
    assert parse_instant("2026-03-01t09:00z", "--at") == moment


def test_a_time_without_a_zone_is_refused_because_nobody_knows_which_moment_is_meant() -> None:
    with pytest.raises(UsageError, match="no time zone"):
        parse_instant("2026-03-01T09:00:00", "--at")


@pytest.mark.parametrize("text", ["tomorrow", "2026-03-01", "2026-02-30T00:00:00Z", "20260301T090000Z", "1", ""])
def test_what_is_no_instant_is_refused_under_the_name_of_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--expires-at"):
        parse_instant(text, "--expires-at")
