"""The store's clock is known from its replies, and ever more closely."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.storetime import DRIFT, STALE_AFTER_S, Offset, observe

pytestmark = pytest.mark.fast

offsets = st.floats(-2e9, 2e9)
exchanges = st.lists(
    st.tuples(
        st.floats(0, 100),  # Since the last reply.
        st.floats(0, 5),  # From sending to the moment the server read its clock.
        st.floats(0, 5),  # From there to receiving.
    ),
    min_size=1,
    max_size=30,
)
ROUNDING = 1e-5  # Of floats as large as epoch seconds.


def watch(offset: float, script: list[tuple[float, float, float]], *, drift: float = 0.0) -> list[Offset]:
    """What is known after each reply of a store whose clock is off by ``offset``, and more with time."""
    known, monotonic, course = None, 1000.0, []
    for pause, there, back in script:
        sent = monotonic + pause
        monotonic = sent + there + back
        second = math.floor((sent + there) * (1 + drift) + offset)
        known = observe(known, sent=sent, received=monotonic, second=second)
        course.append(known)
    return course


@given(offsets, exchanges)
def test_the_true_time_is_always_within_the_bounds(
    offset: float, script: list[tuple[float, float, float]]
) -> None:
    for known in watch(offset, script):
        assert known.low - ROUNDING <= offset <= known.high + ROUNDING
        assert abs(known.store_time(known.at) - (known.at + offset)) <= known.uncertainty_s + ROUNDING


@given(offsets, exchanges, st.floats(-DRIFT / 2, DRIFT / 2))
def test_a_drifting_clock_is_followed(
    offset: float, script: list[tuple[float, float, float]], drift: float
) -> None:
    for known in watch(offset, script, drift=drift):
        slack = abs(drift) * 10 + ROUNDING  # What the clock may drift within one exchange.
        assert known.low - slack <= offset + drift * known.at <= known.high + slack


@given(offsets, exchanges)
def test_one_more_reply_never_makes_it_worse_than_that_reply_alone(
    offset: float, script: list[tuple[float, float, float]]
) -> None:
    for known, (_, there, back) in zip(watch(offset, script), script, strict=True):
        assert known.uncertainty_s <= (1 + there + back) / 2 + ROUNDING


def test_many_quick_replies_give_a_fraction_of_a_second() -> None:
    *_, known = watch(0.123, [(0.0137, 0.001, 0.001)] * 200)
    assert known.uncertainty_s < 0.01


def test_a_store_whose_clock_was_set_is_believed_at_once() -> None:
    before = observe(None, sent=10.0, received=10.1, second=1000)
    after = observe(before, sent=20.0, received=20.1, second=5000)
    assert after.store_time(20.05) == pytest.approx(5000.5)


def test_knowledge_goes_stale() -> None:
    known = observe(None, sent=10.0, received=10.1, second=1000)
    assert not known.stale(10.1 + STALE_AFTER_S)
    assert known.stale(10.2 + STALE_AFTER_S)
