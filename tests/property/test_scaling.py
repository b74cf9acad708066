"""Laws of scaling decisions, over any load, any workers and any policy."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.scaling import (
    BACKOFF_S,
    HEALTHY_S,
    Code,
    Decision,
    Load,
    Memory,
    Policy,
    Reason,
    Worker,
    WorkerState,
    decide,
)
from qo.core.pipeline.scaling_reasons import describe

pytestmark = pytest.mark.fast

LONG_AGO = -1e9
policies = st.builds(
    lambda low, more, slots, target, idle: Policy(
        min=low, max=max(1, low + more), slots=slots, target_wait_s=target, idle_s=idle
    ),
    st.integers(0, 4),
    st.integers(0, 12),
    st.integers(1, 8),
    st.sampled_from([0.0, 1.0, 30.0]),
    st.sampled_from([0.0, 5.0, 60.0]),
)
loads = st.builds(
    Load,
    waiting=st.integers(0, 200),
    running=st.integers(0, 60),
    oldest_s=st.floats(0, 500),
    task_s=st.none() | st.floats(0.01, 100),
    in_flight_max=st.none() | st.integers(1, 50),
    held=st.integers(0, 3),
)
fleets = st.lists(
    st.tuples(st.integers(1, 16), st.sampled_from(WorkerState), st.integers(0, 3)),
    max_size=16,
    unique_by=lambda each: each[0],
).map(lambda rows: [Worker(f"w{place}", place, state, busy) for place, state, busy in rows])
memories = st.builds(
    lambda deaths, died, need: Memory(LONG_AGO, ((-1.0, need),), deaths, died),
    st.integers(0, 9),
    st.floats(-200, 0),
    st.integers(0, 10),
)


def count_live(workers: list[Worker]) -> int:
    return sum(each.state in (WorkerState.STARTING, WorkerState.READY) for each in workers)


def apply(workers: list[Worker], decision: Decision) -> list[Worker]:
    """Return the workers once started ones are ready and drained ones have ended."""
    gone = {each.name for each in decision.drain}
    kept = [each for each in workers if each.name not in gone and each.place not in decision.start]
    return [*kept, *(Worker(f"w{place}", place, WorkerState.READY) for place in decision.start)]


@given(load=loads, workers=fleets, policy=policies, memory=memories)
def test_a_decision_never_leaves_the_bounds(
    load: Load, workers: list[Worker], policy: Policy, memory: Memory
) -> None:
    decision = decide(load, workers, policy, memory, now=0.0)
    present = [each for each in workers if each.state is not WorkerState.DEAD]
    assert not (decision.start and decision.drain)
    if decision.start:
        assert len(present) + len(decision.start) <= policy.max
        assert all(1 <= place <= policy.max for place in decision.start)
    if decision.drain:
        assert count_live(workers) - len(decision.drain) >= policy.min


@given(load=loads, workers=fleets, policy=policies, memory=memories)
def test_a_place_is_filled_once_and_only_live_workers_are_drained(
    load: Load, workers: list[Worker], policy: Policy, memory: Memory
) -> None:
    decision = decide(load, workers, policy, memory, now=0.0)
    taken = {each.place for each in workers if each.state is not WorkerState.DEAD}
    assert not taken & set(decision.start)
    assert len(set(decision.start)) == len(decision.start)
    assert all(each.state in (WorkerState.STARTING, WorkerState.READY) for each in decision.drain)


@given(load=loads, workers=fleets, policy=policies, memory=memories)
def test_no_more_workers_are_started_than_the_work_and_its_limits_can_use(
    load: Load, workers: list[Worker], policy: Policy, memory: Memory
) -> None:
    decision = decide(load, workers, policy, memory, now=0.0)
    work = load.waiting + load.running
    usable = work if load.in_flight_max is None else min(work, max(load.in_flight_max, load.running))
    if decision.start:
        assert count_live(workers) + len(decision.start) <= max(policy.min, math.ceil(usable / policy.slots))


@given(load=loads, workers=fleets, policy=policies, memory=memories)
def test_the_last_worker_goes_only_if_nothing_waits_or_runs(
    load: Load, workers: list[Worker], policy: Policy, memory: Memory
) -> None:
    decision = decide(load, workers, policy, memory, now=0.0)
    if decision.drain and len(decision.drain) == count_live(workers):
        assert load.waiting + load.running == 0
        assert policy.min == 0


@given(load=loads, policy=policies)
def test_from_zero_a_worker_is_started_at_once_when_something_waits(load: Load, policy: Policy) -> None:
    decision = decide(replace(load, waiting=load.waiting + 1), [], policy, Memory(0.0), now=0.0)
    assert decision.start
    assert decision.reason.code in (Code.WORK_AT_ZERO, Code.LATE, Code.BELOW_MIN)


@given(held=st.integers(1, 9), oldest_s=st.floats(0, 1e4), policy=policies, memory=memories)
def test_work_that_is_held_back_starts_nobody(held: int, oldest_s: float, policy: Policy, memory: Memory) -> None:
    at_zero = replace(policy, min=0)
    decision = decide(Load(oldest_s=oldest_s, held=held), [], at_zero, memory, now=0.0)
    assert (decision.start, decision.reason.code) == ((), Code.HELD)


@given(
    turns=st.lists(st.tuples(loads, st.floats(0.1, 20)), min_size=1, max_size=60),
    policy=policies.map(lambda each: replace(each, idle_s=30.0)),
)
def test_a_worker_is_never_drained_soon_after_it_was_needed(
    turns: list[tuple[Load, float]], policy: Policy
) -> None:
    """No flapping: fewer workers must have been enough for the whole of idle_s."""
    now, memory, workers = 0.0, Memory(0.0), list[Worker]()
    needs: list[tuple[float, int]] = []
    for load, pause_s in turns:
        decision = decide(load, workers, policy, memory, now=now)
        needs.append((now, decision.reason.needed))
        if decision.drain:
            highest = max(need for at, need in needs if at > now - policy.idle_s)
            assert count_live(workers) - len(decision.drain) >= min(highest, policy.max)
            assert now >= policy.idle_s
        workers, memory = apply(workers, decision), decision.memory
        now += pause_s


@given(load=loads, workers=fleets, policy=policies, deaths=st.integers(1, 12), later_s=st.floats(0, 100))
def test_after_deaths_in_a_row_nobody_is_started_before_the_backoff_is_over(
    load: Load, workers: list[Worker], policy: Policy, deaths: int, later_s: float
) -> None:
    memory = Memory(LONG_AGO).with_deaths([1.0] * deaths, 0.0)
    decision = decide(load, workers, policy, memory, now=later_s)
    if later_s < BACKOFF_S[min(deaths, len(BACKOFF_S)) - 1]:
        assert not decision.start


@given(deaths=st.integers(1, 12))
def test_a_worker_that_dies_after_a_good_while_is_replaced_at_once(deaths: int) -> None:
    memory = Memory(LONG_AGO).with_deaths([1.0] * deaths, 0.0).with_deaths([HEALTHY_S], 1.0)
    assert decide(Load(waiting=1), [], Policy(max=1), memory, now=1.0).start == (1,)


@given(load=loads, workers=fleets, policy=policies, memory=memories)
def test_idle_workers_are_drained_before_busy_ones(
    load: Load, workers: list[Worker], policy: Policy, memory: Memory
) -> None:
    decision = decide(load, workers, policy, memory, now=0.0)
    live = [each for each in workers if each.state in (WorkerState.STARTING, WorkerState.READY)]
    kept = [each.busy for each in live if each not in decision.drain]
    assert max((each.busy for each in decision.drain), default=0) <= min(kept, default=99)


@given(load=loads, workers=fleets, policy=policies, memory=memories)
def test_the_same_facts_give_the_same_decision_and_it_settles(
    load: Load, workers: list[Worker], policy: Policy, memory: Memory
) -> None:
    """Once done, the decision is not taken again, unless the work is late all the same."""
    decision = decide(load, workers, policy, memory, now=0.0)
    assert decision == decide(load, workers, policy, memory, now=0.0)
    again = decide(load, apply(workers, decision), policy, decision.memory, now=0.001)
    assert decision.reason.code is Code.LATE or again.reason.code is Code.LATE or not (again.start or again.drain)


@given(load=loads, workers=fleets, policy=policies, memory=memories)
def test_every_decision_has_a_reason_in_words(
    load: Load, workers: list[Worker], policy: Policy, memory: Memory
) -> None:
    assert describe(decide(load, workers, policy, memory, now=0.0).reason, policy)


def test_every_reason_has_a_text() -> None:
    for code in Code:
        assert describe(Reason(code, Load(task_s=2.0), 1, 2), Policy(max=3))
