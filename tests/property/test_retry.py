"""The rest between attempts: bounded, growing, and computable however often a task has failed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.core.retry import delay_s, validate
from qo.core.task import RetryPolicy
from qo.errors import UsageError

pytestmark = pytest.mark.fast

units = st.floats(0, 1, exclude_max=True)
retries = st.integers(0, 10_000) | st.sampled_from([10**6, 2**63])
policies = st.builds(
    RetryPolicy,
    initial_interval_ms=st.integers(0, 10**9),
    max_interval_ms=st.integers(0, 10**9),
    multiplier=st.floats(1, 1e6) | st.integers(1, 10).map(float),
    jitter_percent=st.floats(0, 1),
).map(validate)
CALM = settings(deadline=None)  # A slow machine is not a broken law.


@CALM
@given(policies, retries, units)
def test_a_rest_lies_within_its_jitter_of_the_longest_interval(policy: RetryPolicy, n: int, unit: float) -> None:
    rest_s = delay_s(policy, n, unit)
    assert 0 <= rest_s <= policy.max_interval_ms / 1000 * (1 + policy.jitter_percent)


@CALM
@given(policies, retries, st.integers(0, 1000))
def test_without_jitter_rests_only_grow(policy: RetryPolicy, n: int, more: int) -> None:
    assert delay_s(policy, n, 0.5) <= delay_s(policy, n + more, 0.5)


@CALM
@given(policies, st.integers(0, 50), units, units)
def test_a_later_draw_never_shortens_the_rest(policy: RetryPolicy, n: int, one: float, other: float) -> None:
    early, late = sorted([one, other])
    assert delay_s(policy, n, early) <= delay_s(policy, n, late)


@CALM
@given(policies, retries, units)
def test_a_rest_can_always_be_added_to_a_time(policy: RetryPolicy, n: int, unit: float) -> None:
    assert datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=delay_s(policy, n, unit))


def test_the_default_policy_doubles_from_a_second_to_a_minute() -> None:
    assert [delay_s(RetryPolicy(), n, 0.5) for n in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert delay_s(RetryPolicy(), 0, 0.0) == 0.75
    assert delay_s(RetryPolicy(), 0, 0.999_999) == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (RetryPolicy(initial_interval_ms=-1), "interval"),
        (RetryPolicy(max_interval_ms=-1), "interval"),
        (RetryPolicy(max_interval_ms=10**18), "interval"),
        (RetryPolicy(multiplier=0.5), "multiplier"),
        (RetryPolicy(multiplier=float("nan")), "multiplier"),
        (RetryPolicy(multiplier=float("inf")), "multiplier"),
        (RetryPolicy(jitter_percent=-0.1), "jitter_percent"),
        (RetryPolicy(jitter_percent=1.1), "jitter_percent"),
        (RetryPolicy(jitter_percent=float("nan")), "jitter_percent"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_by_the_name_of_its_field(policy: RetryPolicy, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        validate(policy)
