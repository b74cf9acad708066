"""Laws of what operators want: a state that any order of the same wishes leads to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core import control
from qo.core.control import WHOLE, Desired, Orders, Target

pytestmark = pytest.mark.fast

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORKERS, TYPES = ["w-1", "w-2", "w-3"], ["mail", "report"]

Edit = Callable[[Desired], Desired]

instants = st.integers(0, 10**6).map(lambda seconds: NOW + timedelta(seconds=seconds))
texts = st.none() | st.text(max_size=10)
targets = st.one_of(
    st.just(WHOLE),
    st.sampled_from(WORKERS).map(Target),
    st.sampled_from(TYPES).map(lambda name: Target(None, name)),
)


def pausing(target: Target, at: datetime, by: str | None, reason: str | None) -> Edit:
    return lambda desired: control.pause(desired, target, now=at, by=by, reason=reason)


def draining(worker: str, at: datetime, by: str | None, reason: str | None) -> Edit:
    return lambda desired: control.drain(desired, worker, now=at, by=by, reason=reason)


def cancelling(task_ids: list[str], at: datetime) -> Edit:
    return lambda desired: control.note_cancel(desired, task_ids, now=at)


def resuming(target: Target) -> Edit:
    return lambda desired: control.resume(desired, target)


wishes = st.one_of(
    st.builds(pausing, targets, instants, texts, texts),
    st.builds(draining, st.sampled_from(WORKERS), instants, texts, texts),
    st.builds(cancelling, st.lists(st.sampled_from("abcdef"), max_size=3), instants),
)
edits = wishes | st.builds(resuming, targets) | st.just(control.resume_all)


def built(history: list[Edit]) -> Desired:
    desired = Desired()
    for edit in history:
        desired = edit(desired)
    return desired


desires = st.lists(edits, max_size=12).map(built)


def effect(desired: Desired) -> tuple[list[Orders], dict[str, datetime]]:
    """What every worker makes of it, whoever is named as the one who asked."""
    seen = [control.orders_for(desired, worker) for worker in [*WORKERS, "stranger"]]
    return [Orders(w.paused, w.drain, w.paused_types) for w in seen], desired.cancels


@given(desires, targets, instants)
def test_to_resume_what_was_just_paused_is_to_have_done_nothing(
    desired: Desired, target: Target, now: datetime
) -> None:
    if control.in_force(desired, target) is None:
        assert control.resume(control.pause(desired, target, now=now), target) == desired


@given(desires, wishes)
def test_asking_twice_is_asking_once(desired: Desired, wish: Edit) -> None:
    once = wish(desired)
    assert wish(once) == once


@given(desires, targets, instants, instants)
def test_pausing_again_changes_nothing_at_all(desired: Desired, target: Target, a: datetime, b: datetime) -> None:
    once = control.pause(desired, target, now=a)
    assert control.pause(once, target, now=b) is once


@given(
    desires, st.lists(wishes, max_size=8).flatmap(lambda given: st.tuples(st.just(given), st.permutations(given)))
)
def test_racing_wishes_come_to_the_same_in_any_order(
    desired: Desired, orders: tuple[list[Edit], list[Edit]]
) -> None:
    one, other = desired, desired
    for edit in orders[0]:
        one = edit(one)
    for edit in orders[1]:
        other = edit(other)
    assert effect(one) == effect(other)
    assert {*control.targets(one)} == {*control.targets(other)} >= {*control.targets(desired)}


@given(desires, wishes, st.lists(wishes, max_size=6))
def test_no_wish_is_lost_to_another(desired: Desired, wish: Edit, others: list[Edit]) -> None:
    first = wish(desired)
    after = first
    for edit in others:
        after = edit(after)
    for worker in WORKERS:
        was, now = control.orders_for(first, worker), control.orders_for(after, worker)
        assert now.drain >= was.drain
        assert now.paused or now.drain or not was.paused
        assert now.paused_types >= was.paused_types
    assert {*after.cancels} >= {*first.cancels}


@given(desires)
def test_what_is_wanted_depends_on_the_state_alone(desired: Desired) -> None:
    for worker in [*WORKERS, "stranger"]:
        wish = control.orders_for(desired, worker)
        order = desired.workers.get(worker)
        assert wish.drain == (order is not None and order.kind is control.Order.DRAINED)
        assert wish.paused == (
            desired.queue is not None or (order is not None and order.kind is control.Order.PAUSED)
        )
        assert wish.paused_types == frozenset(desired.types)
        assert wish.paused or wish.drain or wish.reason is None


@given(desires)
def test_lifting_everything_leaves_nothing_but_cancellations(desired: Desired) -> None:
    lifted = control.resume_all(desired)
    assert control.targets(lifted) == []
    assert lifted.cancels == desired.cancels
    assert all(control.orders_for(lifted, worker) == Orders() for worker in WORKERS)


@given(desires, targets)
def test_resuming_one_thing_touches_no_other(desired: Desired, target: Target) -> None:
    left = control.resume(desired, target)
    assert control.targets(left) == [other for other in control.targets(desired) if other != target]
    assert all(control.in_force(left, o) is control.in_force(desired, o) for o in control.targets(left))


@given(desires, instants, st.sets(st.sampled_from(WORKERS)))
def test_pruning_takes_nothing_from_workers_that_are_there(
    desired: Desired, now: datetime, here: set[str]
) -> None:
    late = now + timedelta(days=30)
    kept = control.prune(desired, late, here)
    assert control.prune(kept, late, here) is kept
    for worker in here:
        assert control.orders_for(kept, worker) == control.orders_for(desired, worker)
    assert (kept.queue, kept.types) == (desired.queue, desired.types)
    assert len(kept.cancels) <= control.CANCELS_MAX
