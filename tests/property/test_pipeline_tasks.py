"""One pipeline task under any order of what workers, the reaper and people do to it, some of it said twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.api.contract.task import Claimed, Outcome
from qo.core.lifecycle import Rejected
from qo.core.pipeline.late_completion import reopen
from qo.core.pipeline.topology import LiveJob
from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions, rows
from qo.errors import LeaseLost, Refused
from support.dispatcher.fresh_states import FreshStates
from support.dispatcher.pipeline_tasks import all_of, ask, beat, finish, lapse, output, partition_task, row_of
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock

SHOP = dag("shop", source("orders"), job("clean", reads="orders", max_attempts=3))

steps = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from(["a", "b", "c", "d"])),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 61.0, 1000.0])),
    st.tuples(st.sampled_from(["beat", "lapse"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(list(Outcome)), st.integers(0, 5)),
    st.tuples(st.sampled_from(["cancel", "replay"]), st.none()),
)


@dataclass
class World:
    state: State
    clock: Clock
    job: LiveJob
    runs: int = 0
    held: list[Claimed] = field(default_factory=list)
    accepted: list[Claimed] = field(default_factory=list)


@pytest.fixture
def world(fresh_states: FreshStates) -> Iterator[World]:
    clock = Clock()
    with fresh_states.opened(clock) as state:
        yield World(state, clock, live(deployed(state, SHOP), "shop.clean"))


def act(world: World, task: str, what: str, which: object) -> None:
    state = world.state
    if what == "claim":
        # Few names, so that they come again: a worker may present the lease of an earlier attempt.
        answer = ask(state, task, f"{task[:20]}-{which}")
        if isinstance(answer, Claimed) and answer not in world.held:
            world.held.append(answer)
    elif what == "wait":
        world.clock.advance(float(str(which)))
    elif what == "cancel":
        with state.write() as tx:
            operator_actions.cancel(tx, task, "somebody")
    elif what == "replay":
        with state.write() as tx:
            operator_actions.replay(tx, task, "somebody")
    elif world.held:
        speak(world, world.held[int(str(which)) % len(world.held)], what)


def speak(world: World, held: Claimed, what: str) -> None:
    state, task = world.state, held.work.task_id
    if what == "beat":
        beat(state, held)
    elif what == "lapse":
        lapse(state, held)
    else:
        before = row_of(state, task)
        answer = finish(state, held, Outcome(what), outputs=[output(held)])
        if answer.repeated:
            assert row_of(state, task) == before
        else:
            assert held.attempt == before["attempt"]
            if answer.status == "completed":
                world.accepted.append(held)


def test_at_most_one_completion_is_accepted_and_all_commits_are_its_own(
    fresh_states: FreshStates, world: World
) -> None:
    @fresh_states.settings(max_examples=60)
    @given(history=st.lists(steps, max_size=25))
    def check(history: list[tuple[str, object]]) -> None:
        live_through(world, history)

    check()


def live_through(world: World, history: list[tuple[str, object]]) -> None:
    """Of a task of its own: one database serves all examples."""
    world.runs += 1
    world.held, world.accepted = [], []
    task = partition_task(world.state, world.job, f"p{world.runs}")
    attempt = 0
    for what, which in history:
        with contextlib.suppress(LeaseLost, Refused):
            act(world, task, what, which)
        row = row_of(world.state, task)
        assert row["attempt"] >= attempt
        assert (row["status"] == "running") == (row["lease_id"] is not None)
        attempt = row["attempt"]
    commits = [each for each in all_of(world.state, schema.commits) if each["task_id"] == task]
    assert [each["attempt"] for each in commits] == [each.attempt for each in world.accepted]
    assert len(commits) <= 1
    assert bool(commits) == (row_of(world.state, task)["status"] == "completed")
    attempts = [each for each in all_of(world.state, schema.attempts) if each["task_id"] == task]
    assert sorted(each["attempt"] for each in attempts) == list(range(1, attempt + 1))
    assert sum(each["outcome"] is None for each in attempts) == (row_of(world.state, task)["status"] == "running")


def test_only_the_last_attempt_may_be_late_and_only_until_the_task_has_moved_on(
    fresh_states: FreshStates, world: World
) -> None:
    row = row_of(world.state, partition_task(world.state, world.job, "pure"))

    @fresh_states.settings()
    @given(
        status=st.sampled_from(list(Status)),
        late=st.sampled_from([None, "a", "b"]),
        lease=st.sampled_from(["a", "b"]),
        attempt=st.integers(1, 2),
    )
    def check(status: Status, late: str | None, lease: str, attempt: int) -> None:
        task = rows.task_of({**row, "status": status.value, "attempt": 2})
        found = reopen(task, late, lease, attempt)
        allowed = late == lease and attempt == 2 and status in (Status.PENDING, Status.FAILED)
        assert (found is not None) == allowed
        if found is not None:
            assert (found.status, found.lease_id) == (Status.RUNNING, lease)

    check()


def test_a_command_that_does_not_apply_leaves_the_row_alone(world: World) -> None:
    task = partition_task(world.state, world.job, "still")
    before = row_of(world.state, task)
    answer = ask(world.state, task)
    assert isinstance(answer, Claimed)
    held = row_of(world.state, task)
    assert isinstance(lapse(world.state, answer), Rejected)
    assert row_of(world.state, task) == held
    assert before["token"] != held["token"]
