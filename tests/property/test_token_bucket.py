"""A token bucket never lets more through than its rate and burst allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.token_bucket import TokenBucket

pytestmark = pytest.mark.fast

steps = st.lists(st.tuples(st.floats(-1, 5), st.integers(0, 5)), max_size=60)


@given(steps=steps, rate=st.floats(0.1, 20), burst=st.integers(1, 50))
def test_no_more_pass_than_the_burst_and_the_rate_over_the_time(
    steps: list[tuple[float, int]], rate: float, burst: int
) -> None:
    bucket, now, latest, passed, owed = TokenBucket.full(rate, burst, now=0.0), 0.0, 0.0, 0, 0
    for wait_s, count in steps:
        now += wait_s
        latest = max(latest, now)
        bucket, wait = bucket.take(now=now)
        if wait == 0:
            passed += 1
            assert passed + owed <= burst + rate * latest + 1e-6
            bucket = bucket.owe(count, now=now)
            owed += count


@given(rate=st.floats(0.1, 20), burst=st.integers(1, 50), count=st.integers(0, 200))
def test_who_waits_as_long_as_told_is_served(rate: float, burst: int, count: int) -> None:
    bucket = TokenBucket.full(rate, burst, now=0.0).owe(burst + count, now=0.0)
    bucket, wait_s = bucket.take(now=0.0)
    assert wait_s > 0
    _, again_s = bucket.take(now=wait_s + 1e-6)
    assert again_s == 0


def test_a_bucket_is_full_again_after_a_while() -> None:
    bucket = TokenBucket.full(10, 20, now=0.0).owe(60, now=0.0)
    assert not bucket.is_full(now=5.9)
    assert bucket.is_full(now=6.1)
