"""When a Spark session has lost its cluster: laws over random observations, and the cases that must not be mistaken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.spark.engine.cluster_watch import (
    AWAY_S,
    Cause,
    Driver,
    Healthy,
    Limits,
    Lost,
    Observation,
    Record,
    Verdict,
    Waiting,
    judge,
)
from qo.spark.engine.endpoint import Reach

pytestmark = pytest.mark.fast

LIMITS = Limits(lost_after_s=15.0)

observations = st.builds(
    Observation,
    at=st.just(0.0),
    endpoint=st.sampled_from(Reach),
    executors=st.none() | st.integers(0, 2),
    waiting=st.integers(0, 2),
    running=st.integers(0, 2),
    session=st.integers(0, 1),
)
limits = st.builds(Limits, st.floats(1, 100), scales_to_zero=st.booleans(), patience=st.integers(1, 64))


@st.composite
def histories(draw: st.DrawFn) -> list[Observation]:
    at, seen = 0.0, []
    for each in draw(st.lists(observations, max_size=12)):
        at += draw(st.floats(0, 60))
        seen.append(replace(each, at=at))
    return seen


def verdicts(seen: list[Observation], limits: Limits = LIMITS) -> list[Verdict]:
    record, found = Record(), []
    for each in seen:
        record, verdict = judge(record, each, limits)
        found.append(verdict)
    return found


def every_second(first: float, last: float, seen: Observation) -> list[Observation]:
    return [replace(seen, at=first + n) for n in range(int(last - first) + 1)]


@given(histories(), limits)
def test_a_session_without_work_or_with_executors_is_never_lost(seen: list[Observation], limits: Limits) -> None:
    for each, verdict in zip(seen, verdicts(seen, limits), strict=True):
        if each.waiting == 0 or each.executors or each.running:
            assert verdict == Healthy()


@given(histories(), limits)
def test_a_session_is_never_lost_at_the_first_sight_of_trouble(seen: list[Observation], limits: Limits) -> None:
    healthy_at = 0.0
    for each, verdict in zip(seen, verdicts(seen, limits), strict=True):
        if verdict == Healthy():
            healthy_at = each.at
        if isinstance(verdict, Lost):
            assert each.at - healthy_at >= min(AWAY_S, limits.lost_after_s)
        if isinstance(verdict, Waiting):
            assert healthy_at <= verdict.since <= each.at


@given(histories(), limits)
def test_what_was_seen_of_another_session_says_nothing(seen: list[Observation], limits: Limits) -> None:
    own = [replace(each, session=7) for each in seen]
    before = [Observation(0.0, Reach.REFUSED, 1), Observation(0.0, Reach.REFUSED, 0, waiting=1)]
    assert verdicts([*before, *own], limits)[2:] == verdicts(own, limits)


@given(limits, st.floats(0, 10))
def test_a_session_that_had_executors_and_gets_none_is_lost_in_time(limits: Limits, step: float) -> None:
    seen = [Observation(0.0, Reach.OPEN, 1, waiting=1), Observation(step, Reach.OPEN, 0, waiting=1)]
    late = step + (limits.first_executors_s if limits.scales_to_zero else limits.lost_after_s)
    seen.append(replace(seen[-1], at=late + 0.001))
    assert verdicts(seen, limits)[-1] == Lost(Cause.NO_EXECUTORS)


def test_a_full_cluster_is_waited_for() -> None:
    waiting = Observation(0.0, Reach.OPEN, 0, waiting=1)
    assert set(verdicts(every_second(5, 100, waiting))) == {Waiting(since=5)}


def test_dynamic_allocation_may_give_everything_back_and_take_its_time_to_get_it_again() -> None:
    scaling = replace(LIMITS, scales_to_zero=True)
    idle = every_second(1, 600, Observation(0.0, Reach.OPEN, 0))
    again = every_second(601, 700, Observation(0.0, Reach.OPEN, 0, waiting=1))
    found = verdicts([Observation(0.0, Reach.OPEN, 2, waiting=1), *idle, *again], scaling)
    assert found[:601] == [Healthy()] * 601
    assert set(found[601:]) == {Waiting(since=601)}


def test_a_master_that_is_gone_is_noticed_when_the_executors_are_too() -> None:
    working = Observation(0.0, Reach.REFUSED, 2, waiting=1)  # Executors need no master for what they have.
    assert verdicts(every_second(0, 60, working))[-1] == Healthy()
    left = every_second(61, 70, replace(working, executors=0))
    found = verdicts([*every_second(0, 60, working), *left])
    assert found[61:64] == [Waiting(since=61)] * 3
    assert found[64] == Lost(Cause.ENDPOINT_GONE)


def test_a_master_that_was_away_has_forgotten_the_application() -> None:
    seen = [
        Observation(0.0, Reach.OPEN, 2, waiting=1),
        Observation(5.0, Reach.REFUSED, 2, waiting=1),
        *every_second(10, 13, Observation(0.0, Reach.OPEN, 0, waiting=1)),
    ]
    assert verdicts(seen)[-2:] == [Waiting(since=10), Lost(Cause.ENDPOINT_RESTARTED)]


def test_a_server_that_is_out_of_reach_for_a_moment_is_not_lost() -> None:
    away = Observation(0.0, Reach.SILENT, 0, waiting=1)
    back = Observation(10.0, Reach.OPEN, None, waiting=1, running=1)
    assert verdicts([*every_second(0, 9, away), back])[-1] == Healthy()
    assert verdicts(every_second(0, 15, away))[-1] == Lost(Cause.ENDPOINT_SILENT)


def test_others_may_be_using_the_executors_of_a_server() -> None:
    waiting = Observation(0.0, Reach.OPEN, None, waiting=1)
    assert verdicts(every_second(0, 3600, waiting))[-1] == Waiting(since=0)


@pytest.mark.parametrize(
    ("driver", "cause"), [(Driver.DEAD, Cause.DRIVER_DEAD), (Driver.STOPPED, Cause.DRIVER_STOPPED)]
)
def test_a_driver_that_ended_is_lost_at_once(driver: Driver, cause: Cause) -> None:
    assert verdicts([Observation(0.0, driver=driver)]) == [Lost(cause)]
