"""When an always-on source is started, left alone, restarted and stopped."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.supervision import (
    BACKOFF_MAX_S,
    SETTLED_S,
    Action,
    ObservedTask,
    SourceState,
    Supervised,
    backoff_s,
    supervise,
)
from qo.core.task import Status

pytestmark = pytest.mark.fast

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAITING = ObservedTask(status=Status.PENDING, attempt=0, heard_at=NOW)
RUNNING = ObservedTask(
    status=Status.RUNNING,
    attempt=1,
    heard_at=NOW,
    lease_expires_at=NOW + timedelta(seconds=60),
    started_at=NOW - timedelta(seconds=5),
)


def lapsed(attempt: int = 1, ran_s: float = 5.0, status: Status = Status.PENDING) -> ObservedTask:
    return ObservedTask(
        status=status,
        attempt=attempt,
        heard_at=NOW,
        started_at=NOW - timedelta(seconds=ran_s),
        ended_at=NOW,
        died=True,
        error="lease expired",
    )


def test_a_new_source_gets_a_task() -> None:
    after, action = supervise(Supervised(), None, unwanted=None, now=NOW)
    assert (after.state, action) == (SourceState.PENDING, Action.CREATE)


def test_a_source_that_is_heard_runs() -> None:
    after, action = supervise(Supervised(), RUNNING, unwanted=None, now=NOW)
    assert (after.state, after.heard_at, action) == (SourceState.RUNNING, NOW, Action.NONE)


def test_a_source_that_falls_silent_is_dead_before_anyone_takes_its_task() -> None:
    silent = replace(RUNNING, lease_expires_at=NOW)
    after, action = supervise(Supervised(), silent, unwanted=None, now=NOW)
    assert (after.state, after.error, action) == (SourceState.DEAD, "no heartbeat", Action.NONE)


@pytest.mark.parametrize("status", [Status.PENDING, Status.FAILED, Status.COMPLETED])
def test_a_source_that_died_rests_and_starts_again(status: Status) -> None:
    dead, action = supervise(Supervised(), lapsed(status=status), unwanted=None, now=NOW)
    assert (dead.state, dead.restarts, action) == (SourceState.DEAD, 1, Action.RESTART)
    assert dead.start_after == NOW + timedelta(seconds=1)
    waits, action = supervise(dead, lapsed(), unwanted=None, now=NOW)
    assert (waits, action) == (dead, Action.NONE)
    rested, action = supervise(dead, lapsed(), unwanted=None, now=NOW + timedelta(seconds=1))
    assert (rested.state, action) == (SourceState.PENDING, Action.NONE)


def test_rests_double_up_to_five_minutes() -> None:
    assert [backoff_s(each) for each in (0, 1, 2, 3, 9, 10, 1000)] == [0, 1, 2, 4, 256, 300, 300]


def test_a_source_that_ran_for_ten_minutes_begins_with_the_shortest_rest() -> None:
    weary = Supervised(streak=9, restarts=9, attempt=9)
    dead, _ = supervise(weary, lapsed(10, SETTLED_S), unwanted=None, now=NOW)
    assert (dead.streak, dead.restarts) == (1, 10)
    dead, _ = supervise(weary, lapsed(10, SETTLED_S - 1), unwanted=None, now=NOW)
    assert dead.streak == 10


def test_a_source_given_back_in_good_order_does_not_rest() -> None:
    given_back = replace(lapsed(), died=False)
    after, action = supervise(Supervised(), given_back, unwanted=None, now=NOW)
    assert (after.state, after.restarts, action) == (SourceState.PENDING, 0, Action.NONE)


def test_a_paused_source_is_asked_to_end_once_and_stops() -> None:
    draining, action = supervise(Supervised(), RUNNING, unwanted="paused", now=NOW)
    assert (draining.state, draining.error, action) == (SourceState.DRAINING, "paused", Action.STOP)
    asked = replace(RUNNING, cancel_requested=True)
    draining, action = supervise(draining, asked, unwanted="paused", now=NOW)
    assert (draining.state, action) == (SourceState.DRAINING, Action.NONE)
    ended = replace(lapsed(status=Status.CANCELLED), died=False)
    stopped, action = supervise(draining, ended, unwanted="paused", now=NOW)
    assert (stopped.state, action) == (SourceState.STOPPED, Action.NONE)


def test_a_source_that_waits_is_stopped_at_once() -> None:
    stopped, action = supervise(Supervised(), WAITING, unwanted="paused", now=NOW)
    assert (stopped.state, action) == (SourceState.STOPPED, Action.STOP)
    stopped, action = supervise(Supervised(), None, unwanted="paused", now=NOW)
    assert (stopped.state, action) == (SourceState.STOPPED, Action.NONE)


def test_a_resumed_source_starts_again_at_once() -> None:
    stopped = Supervised(state=SourceState.STOPPED, streak=3, attempt=1)
    ended = replace(lapsed(status=Status.CANCELLED), died=False)
    after, action = supervise(stopped, ended, unwanted=None, now=NOW)
    assert (after.state, after.streak, after.start_after, action) == (SourceState.PENDING, 0, NOW, Action.RESTART)


def test_a_source_resumed_while_it_drains_ends_first() -> None:
    after, action = supervise(
        Supervised(state=SourceState.DRAINING), replace(RUNNING, cancel_requested=True), unwanted=None, now=NOW
    )
    assert (after.state, action) == (SourceState.DRAINING, Action.NONE)


seen = st.builds(
    ObservedTask,
    status=st.sampled_from([Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELLED]),
    attempt=st.integers(0, 5),
    heard_at=st.just(NOW),
    lease_expires_at=st.sampled_from([None, NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)]),
    cancel_requested=st.booleans(),
    started_at=st.just(NOW - timedelta(seconds=5)),
    ended_at=st.sampled_from([None, NOW]),
    died=st.booleans(),
)


@given(looks=st.lists(st.tuples(st.one_of(st.none(), seen), st.sampled_from([None, "paused"])), max_size=10))
def test_whatever_is_seen_rests_are_bounded_and_unwanted_sources_never_start(
    looks: list[tuple[ObservedTask | None, str | None]],
) -> None:
    known = Supervised()
    for each, unwanted in looks:
        after, action = supervise(known, each, unwanted=unwanted, now=NOW)
        if unwanted is not None:
            assert action in (Action.NONE, Action.STOP)
            assert after.state in (SourceState.STOPPED, SourceState.DRAINING)
        else:
            assert action is not Action.STOP
        if after.start_after is not None:
            assert after.start_after <= NOW + timedelta(seconds=BACKOFF_MAX_S)
        assert after.restarts in (known.restarts, known.restarts + 1)
        known = after
