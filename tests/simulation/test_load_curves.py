"""Scaling under load curves in virtual time: how long tasks wait, and what the workers cost against an ideal."""

from __future__ import annotations

import math

import pytest

from qo.core.pipeline.scaling import Policy
from support.scaling.load_curves import TURN_S, Outcome, Simulation

pytestmark = pytest.mark.fast

TARGET_S = 20.0
IDLE_S = 60.0
START_S = 3.0
POLICY = Policy(min=0, max=12, slots=4, target_wait_s=TARGET_S, idle_s=IDLE_S)
SLACK_S = TURN_S + START_S  # A turn passes before anybody looks, and a worker has to start.
HOUR_S = 3600.0


def check(outcome: Outcome, *, wait_s: float, cost: float, workers: int = POLICY.max) -> None:
    """``wait_s``: what 99 of 100 tasks may wait. ``cost``: worker-seconds, as a multiple of the ideal."""
    assert outcome.left == 0
    assert outcome.most <= workers
    assert outcome.wait_s(0.99) <= wait_s
    assert outcome.worker_s <= outcome.ideal_s * cost
    assert outcome.last == 0


def test_a_steady_load_is_served_by_about_as_many_workers_as_it_takes() -> None:
    """Four tasks a second of two seconds each: eight slots, two workers."""
    outcome = Simulation(POLICY, task_s=2.0).run(lambda now: 4.0, HOUR_S, after_s=2 * IDLE_S)
    check(outcome, wait_s=TARGET_S + SLACK_S, cost=1.6, workers=6)
    assert outcome.changes <= 3


def test_a_burst_from_zero_begins_within_the_target() -> None:
    outcome = Simulation(POLICY, task_s=2.0).run(lambda now: 80.0 if now < 2.0 else 0.0, 10.0, after_s=300.0)
    check(outcome, wait_s=TARGET_S + SLACK_S, cost=14.0)
    assert outcome.changes == 1  # Up, and down again.


def test_a_burst_of_long_tasks_gets_all_workers_at_once() -> None:
    outcome = Simulation(POLICY, task_s=120.0).run(lambda now: 24.0 if now < 2.0 else 0.0, 10.0, after_s=600.0)
    check(outcome, wait_s=SLACK_S, cost=2.0)
    assert outcome.most == POLICY.max


def test_a_ramp_is_followed() -> None:
    outcome = Simulation(POLICY, task_s=2.0).run(lambda now: 16.0 * now / HOUR_S, HOUR_S, after_s=2 * IDLE_S)
    check(outcome, wait_s=TARGET_S + SLACK_S, cost=1.8)


def test_a_daily_curve_costs_little_more_than_the_ideal() -> None:
    day_s = 6 * HOUR_S
    outcome = Simulation(POLICY, task_s=2.0).run(
        lambda now: 8.0 * (1 - math.cos(2 * math.pi * now / day_s)), day_s, after_s=2 * IDLE_S
    )
    check(outcome, wait_s=TARGET_S + SLACK_S, cost=1.5)


def test_a_load_that_goes_on_and_off_faster_than_idle_s_keeps_its_workers() -> None:
    """No flapping: a pause shorter than idle_s drains nobody."""
    outcome = Simulation(POLICY, task_s=2.0).run(
        lambda now: 8.0 if now % 60.0 < 30.0 else 0.0, HOUR_S, after_s=2 * IDLE_S
    )
    check(outcome, wait_s=TARGET_S + SLACK_S, cost=3.2)
    assert outcome.changes <= 3


def test_a_load_that_pauses_for_longer_than_idle_s_costs_nothing_in_between() -> None:
    outcome = Simulation(POLICY, task_s=2.0).run(
        lambda now: 8.0 if now % 600.0 < 60.0 else 0.0, HOUR_S, after_s=2 * IDLE_S
    )
    check(outcome, wait_s=TARGET_S + SLACK_S, cost=4.5)
    assert outcome.worker_s < 0.5 * outcome.most * HOUR_S


def test_workers_that_die_are_replaced_and_every_task_runs() -> None:
    deaths = [300.0 + 40.0 * number for number in range(60)]
    outcome = Simulation(POLICY, task_s=2.0, deaths=deaths).run(lambda now: 8.0, HOUR_S, after_s=2 * IDLE_S)
    check(outcome, wait_s=2 * TARGET_S + SLACK_S, cost=2.5)


def test_workers_that_all_die_at_their_start_are_started_ever_more_slowly() -> None:
    deaths = [float(second) for second in range(0, 600, 2)]
    outcome = Simulation(POLICY, task_s=60.0, start_s=30.0, deaths=deaths).run(lambda now: 4.0, 600.0)
    starts = sum(len(each.start) for _, each in outcome.decisions)
    assert starts <= 12 * POLICY.max  # Without a backoff there would be one a turn and place, ten times as many.


def test_slow_starts_are_not_answered_with_ever_more_workers() -> None:
    """Workers that take a minute to start count from the moment at which they are started."""
    outcome = Simulation(POLICY, task_s=2.0, start_s=60.0, is_known=True).run(
        lambda now: 4.0, HOUR_S, after_s=2 * IDLE_S
    )
    check(outcome, wait_s=TARGET_S + TURN_S + 60.0, cost=2.0)
    assert outcome.changes == 1


@pytest.mark.parametrize("least", [1, 3])
def test_the_minimum_is_kept_through_the_night(least: int) -> None:
    policy = Policy(min=least, max=12, slots=4, target_wait_s=TARGET_S, idle_s=IDLE_S)
    outcome = Simulation(policy, task_s=2.0).run(lambda now: 8.0 if now < 300.0 else 0.0, 1200.0)
    assert outcome.last == least
    assert all(each.reason.live >= least for now, each in outcome.decisions if now > 0)
