"""A task that asks to come back later says why, and whoever runs a pipeline once does not wait for what cannot come."""

from __future__ import annotations

import pytest

from qo.api.contract.task import Claimed, Outcome
from qo.core.pipeline.topology import Topology
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.views.why.answer import why
from qo.up.pipeline_progress import Survey, survey
from support.dispatcher.pipeline_tasks import claimed, feed, finish, partition_task, route_all, succeed
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("days"),
    source("months"),
    job("daily", reads="days"),
    job("closed", reads=["months", {"job": "daily", "trigger": False}]),
    job("sensor", reads="months"),
)


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def put_off(
    state: State, held: Claimed, reason: str | None = "waits for 3 of 31 days", delay_s: float = 3
) -> None:
    finish(state, held, Outcome.RELEASED, retry_after_s=delay_s, error=reason)


def look(state: State) -> Survey:
    with state.read() as tx:
        return survey(tx, settle_s=0)


def test_why_says_how_often_a_task_was_put_off_for_what_and_until_when(
    state: State, shop: Topology, state_clock: Clock
) -> None:
    feed(state, live(shop, "shop.months"), "m1")
    task = partition_task(state, live(shop, "shop.closed"), "m1")
    for _ in range(2):
        put_off(state, claimed(state, task))
        state_clock.advance(5)
    put_off(state, claimed(state, task), "waits for 2 of 31 days", 60)
    with state.read() as tx:
        shown, told = operator_actions.show_task(tx, task), why(tx, task)
    assert (shown.rescheduled, shown.reschedule_reason) == (3, "waits for 2 of 31 days")
    assert shown.last_error is None
    assert [(each.outcome, each.error) for each in shown.attempts][-1] == (
        "rescheduled",
        "waits for 2 of 31 days",
    )
    again = f"{shown.available_at:%Y-%m-%d %H:%M:%S} UTC"
    assert f"rescheduled 3 times, last: waits for 2 of 31 days; is tried again at {again}" in told.lines[0]
    state_clock.advance(70)
    with state.read() as tx:
        assert "rescheduled 3 times, last: waits for 2 of 31 days; waits to be released" in why(tx, task).lines[0]


def test_a_task_put_off_without_a_reason_says_that_much(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.months"), "m1")
    task = partition_task(state, live(shop, "shop.closed"), "m1")
    put_off(state, claimed(state, task), None)
    with state.read() as tx:
        assert "rescheduled once, without a reason; is tried again at" in why(tx, task).lines[0]


def test_who_is_given_back_at_a_shutdown_was_not_put_off(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.months"), "m1")
    task = partition_task(state, live(shop, "shop.closed"), "m1")
    finish(state, claimed(state, task), Outcome.RELEASED)
    with state.read() as tx:
        shown = operator_actions.show_task(tx, task)
    assert (shown.rescheduled, shown.attempts[-1].outcome) == (0, "released")


def test_an_attempt_that_says_twice_that_it_was_put_off_has_said_it_once(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.months"), "m1")
    held = claimed(state, partition_task(state, live(shop, "shop.closed"), "m1"))
    put_off(state, held)
    put_off(state, held)
    with state.read() as tx:
        assert operator_actions.show_task(tx, held.work.task_id).rescheduled == 1


def test_a_task_that_waits_for_failed_inputs_is_stuck_once_it_has_seen_all_there_is(
    state: State, shop: Topology, state_clock: Clock
) -> None:
    days, daily, closed = (live(shop, f"shop.{name}") for name in ("days", "daily", "closed"))
    feed(state, live(shop, "shop.months"), "m1")
    feed(state, days, "d1")
    feed(state, days, "d2")
    route_all(state)
    task = partition_task(state, closed, "m1")
    sensor = claimed(state, partition_task(state, live(shop, "shop.sensor"), "m1"))
    first, second = (claimed(state, partition_task(state, daily, key)) for key in ("d1", "d2"))
    put_off(state, claimed(state, task))
    assert not look(state).stuck  # Others run, and nothing has failed.
    finish(state, first, Outcome.FATAL, error="it is broken")
    succeed(state, second)
    route_all(state)
    assert not look(state).stuck  # There is more than it has seen.
    state_clock.advance(5)
    put_off(state, claimed(state, task), "waits for 1 of 2 days")
    [stuck] = look(state).stuck
    assert (stuck.task_id, stuck.job, stuck.about, stuck.times) == (task, "closed", "m1", 2)
    assert (stuck.reason, stuck.failed) == ("waits for 1 of 2 days", ("daily",))
    assert not look(state).is_blocked(["shop"])  # The sensor is open.
    put_off(state, sensor, "the ship is not in")
    assert not look(state).is_blocked(["shop"])  # It waits for something outside, which may come.
    state_clock.advance(5)
    succeed(state, claimed(state, sensor.work.task_id))
    route_all(state)
    assert look(state).is_blocked(["shop"])
    assert not look(state).is_idle(["shop"])


def test_nobody_is_stuck_once_the_failure_was_mended(state: State, shop: Topology, state_clock: Clock) -> None:
    days, daily, closed = (live(shop, f"shop.{name}") for name in ("days", "daily", "closed"))
    feed(state, live(shop, "shop.months"), "m1")
    feed(state, days, "d1")
    task, day = partition_task(state, closed, "m1"), partition_task(state, daily, "d1")
    finish(state, claimed(state, day), Outcome.FATAL, error="it is broken")
    put_off(state, claimed(state, task))
    assert [each.task_id for each in look(state).stuck] == [task]
    with state.write() as tx:
        operator_actions.replay(tx, day, "ada")
    assert not look(state).stuck
    state_clock.advance(1)
    succeed(state, claimed(state, day))
    assert not look(state).stuck
