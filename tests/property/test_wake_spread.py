"""Which waiting tasks get a wake-up of their own: few at a time, at a bounded rate, and each in the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.claim_order import WaitingTask, order_claims
from qo.core.pipeline.wake_spread import BURST, PER_S, SPREAD, STALL_MAX_S, Spread

pytestmark = pytest.mark.fast

steps = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.floats(0.0, 5.0)), min_size=1, max_size=40
)  # New tasks, claimed tasks, and the seconds until the next step.


@given(steps=steps)
def test_no_more_wake_ups_are_sent_than_the_rate_allows(steps: list[tuple[int, int, float]]) -> None:
    spread, waiting, now, sent, number = Spread(), list[str](), 0.0, set[str](), 0
    for new, claimed, rest_s in steps:
        waiting = [*waiting, *(f"t{number + at}" for at in range(new))][claimed:]
        number += new
        spread, chosen = spread.observe(waiting, now).name(waiting[::-1], now)
        assert len(chosen) == len(set(chosen))
        assert set(chosen) <= set(waiting)
        assert not sent & set(chosen), "a task that waits is named once"
        assert len(spread.wake_ids) <= 2 * SPREAD or not chosen or spread.patience_s > Spread().patience_s
        sent |= set(chosen)
        assert len(sent) <= BURST + PER_S * now + 1e-6
        now += rest_s


@given(count=st.integers(1, SPREAD))
def test_few_tasks_are_all_named_at_once(count: int) -> None:
    names = [f"t{number}" for number in range(count)]
    _, chosen = Spread().name(names, 0.0)
    assert chosen == names


@given(count=st.integers(SPREAD + 1, 200))
def test_tasks_that_nobody_claims_are_all_named_in_the_end(count: int) -> None:
    """Messages may be with a worker that has died: others are sent, more and more slowly."""
    names, spread, now = [f"t{number}" for number in range(count)], Spread(), 0.0
    spread, first = spread.name(names, now)
    assert len(first) == SPREAD
    spread, soon = spread.observe(names, now).name(names, now + 0.1)
    assert soon == []
    for _ in range(count):
        now += STALL_MAX_S
        spread, _ = spread.observe(names, now).name(names, now)
    assert spread.wake_ids == set(names)


def test_a_claimed_wake_up_is_replaced_by_another() -> None:
    names = [f"t{number}" for number in range(3 * SPREAD)]
    spread, first = Spread().name(names, 0.0)
    left = [each for each in names if each != first[0]]
    spread, more = spread.observe(left, 1.0).name(left, 1.0)
    assert more == [names[SPREAD]]


@given(depths=st.lists(st.integers(0, 3), max_size=20))
def test_deeper_jobs_are_claimed_first_and_older_tasks_within_a_depth(depths: list[int]) -> None:
    began = datetime(2024, 1, 1, tzinfo=UTC)
    tasks = [WaitingTask(f"t{at}", f"e{depth}", began + timedelta(seconds=at)) for at, depth in enumerate(depths)]
    ordered = order_claims(reversed(tasks), {f"e{depth}": depth for depth in range(4)})
    expected = sorted(range(len(depths)), key=lambda at: (-depths[at], at))
    assert [each.id for each in ordered] == [f"t{at}" for at in expected]
