"""Shares of limits: however workers ask, die and come back, no more than the limit is leased or started."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.core.limit_shares import Limit, LimitRegister, Share, Wish, fair_parts, grant, parse_limit
from qo.errors import UsageError

pytestmark = pytest.mark.fast

START = datetime(2026, 3, 1, tzinfo=UTC)
TTL_S = 15.0
steps = st.tuples(
    st.sampled_from(["a", "b", "c", "d"]),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.1, 2.0, 20.0]),
)


@settings(deadline=None)
@given(st.integers(1, 10), st.lists(steps, max_size=40))
def test_the_shares_never_add_up_to_more_than_the_limit(
    concurrency: int, history: list[tuple[str, int, int, float]]
):
    limit, register, now = Limit(name="l", concurrency=concurrency), LimitRegister(name="l"), START
    granted: dict[str, int] = {}
    for worker, in_use, wanted, step_s in history:
        now += timedelta(seconds=step_s)
        in_use = min(in_use, granted.get(worker, 0))  # It runs no more than it was granted.
        register, answer = grant(register, limit, Wish(worker, in_use, wanted, 0), now=now, ttl_s=TTL_S)
        granted[worker] = answer.permits
        valid = [share for share in register.shares.values() if share.until > now]
        assert sum(share.permits for share in valid) <= concurrency
        assert answer.permits <= wanted
        if wanted:
            share = register.shares[worker]
            assert share.permits >= answer.permits
            assert share.permits >= min(in_use, concurrency - sum(s.permits for s in valid if s is not share))
        else:
            assert worker not in register.shares


def test_permits_of_a_dead_worker_come_back_however_wrong_its_clock_was() -> None:
    limit, wish = Limit(name="l", concurrency=5), Wish("new", 0, 5, 0)
    for years in (1, 1000):
        share = Share(permits=5, demand=5, until=START + timedelta(days=365 * years))
        _, answer = grant(LimitRegister(name="l", shares={"dead": share}), limit, wish, now=START, ttl_s=TTL_S)
        assert answer.permits == 5


@settings(deadline=None)
@given(st.integers(0, 100), st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 40), min_size=1))
def test_parts_are_fair_and_nothing_wanted_is_left(total: int, wants: dict[str, int]):
    parts = fair_parts(total, wants)
    assert sum(parts.values()) == min(total, sum(wants.values()))
    for worker, part in parts.items():
        assert part <= wants[worker]
        if part < wants[worker]:
            assert all(other <= part + 1 for other in parts.values())


@settings(deadline=None)
@given(
    st.sampled_from(
        [Limit(name="l", starts=5, per_s=1.0), Limit(name="l", starts=100), Limit(name="l", starts=6, per_s=60)]
    ),
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 200)), max_size=60),
    st.floats(0.5, 20),
)
def test_starts_stay_within_the_rate_and_one_second_of_burst(
    limit: Limit, history: list[tuple[float, int]], window_s: float
):
    register, now = LimitRegister(name="l"), START
    taken: list[tuple[datetime, int]] = []
    for step_s, wanted in history:
        now += timedelta(seconds=step_s)
        register, answer = grant(register, limit, Wish("w", 0, 0, wanted), now=now, ttl_s=TTL_S)
        assert answer.starts <= min(wanted, limit.batch)
        taken.append((now, answer.starts))
    for at, _ in taken:
        inside = sum(count for instant, count in taken if at <= instant < at + timedelta(seconds=window_s))
        assert inside <= window_s / limit.gap_s + limit.batch + 1


def test_who_waits_as_long_as_it_was_told_gets_a_start():
    limit, register = Limit(name="l", starts=6, per_s=60), LimitRegister(name="l")
    register, first = grant(register, limit, Wish("w", 0, 0, 1), now=START, ttl_s=TTL_S)
    register, second = grant(register, limit, Wish("w", 0, 0, 1), now=START, ttl_s=TTL_S)
    assert (first.starts, second.starts, second.starts_in_s) == (1, 0, 10.0)
    _, third = grant(register, limit, Wish("v", 0, 0, 1), now=START + timedelta(seconds=10), ttl_s=TTL_S)
    assert third.starts == 1


def test_a_starving_worker_gets_its_part_when_the_others_have_finished_some():
    limit, register, now = Limit(name="l", concurrency=4), LimitRegister(name="l"), START
    register, a = grant(register, limit, Wish("a", 0, 16, 0), now=now, ttl_s=TTL_S)
    register, b = grant(register, limit, Wish("b", 0, 16, 0), now=now, ttl_s=TTL_S)
    assert (a.permits, b.permits) == (4, 0)
    register, a = grant(register, limit, Wish("a", 4, 16, 0), now=now, ttl_s=TTL_S)
    assert a.permits == 2, "it starts no more before two have ended"
    register, _ = grant(register, limit, Wish("a", 2, 16, 0), now=now, ttl_s=TTL_S)
    register, b = grant(register, limit, Wish("b", 0, 16, 0), now=now, ttl_s=TTL_S)
    assert b.permits == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10", (10, None, 1.0)), ("100/m", (None, 100, 60.0)), ("2 5/s", (2, 5, 1.0)), ("5/h 3", (3, 5, 3600.0))],
)
def test_limits_are_read_from_text(text: str, expected: tuple[int | None, int | None, float]):
    limit = parse_limit("t", text)
    assert (limit.concurrency, limit.starts, limit.per_s) == expected


@pytest.mark.parametrize(
    ("input", "key"),
    [({"a": {"b": 7}}, "7"), ({"a": {"b": "7"}}, '"7"'), ({"a": {"b": None}}, "null"), ({"a": 1}, ""), (None, "")],
)
def test_a_key_tells_values_apart_and_a_missing_member_is_a_key_of_its_own(input: object, key: str):
    limit = parse_limit("t", "2 by input.a.b")
    assert (limit.concurrency, limit.by, limit.key_in(input)) == (2, "input.a.b", key)
    assert limit.for_key(key) == Limit(name=f"t[{key}]", concurrency=2)


@pytest.mark.parametrize(
    "text", ["2 by", "2 by customer", "by input.a", "", "0", "-1", "10/x", "1/s 2/s", "3 4", "many"]
)
def test_a_bad_limit_is_explained(text: str):
    with pytest.raises(UsageError, match="limit"):
        parse_limit("t", text)
