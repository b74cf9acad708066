"""What an always-on source commits on its way: each segment once, whichever attempt says it, and in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from qo.api.contract.task import Claimed, CommitAnswer, CommitRequest, InputMode, Outcome
from qo.core.lifecycle import Rejected
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.attempts import segments
from qo.dispatcher.engine.loops import source_monitor
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.errors import Cancelled, LeaseLost, NotFound, Refused, UsageError
from support.dispatcher import accounting
from support.dispatcher.listeners import served
from support.dispatcher.pipeline_tasks import (
    ROOT,
    all_of,
    claimed,
    fence,
    finish,
    lapse,
    manual_task,
    output,
    route_all,
    row_of,
    tasks_of,
    woken,
)
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock

CLICKS = dag(
    "clicks",
    source("clicks", "always_on"),
    source("by_hand"),
    job("count", reads="clicks", execution_strategy="PerUpdate", runtime="spark"),
)


@pytest.fixture
def topology(state: State) -> Topology:
    return deployed(state, CLICKS)


@pytest.fixture
def clicks(topology: Topology) -> LiveJob:
    return live(topology, "clicks.clicks")


def begun(state: State, clicks: LiveJob) -> Claimed:
    """The one task of the source, as its monitor makes it."""
    source_monitor.tick(state)
    (task,) = tasks_of(state, clicks)
    return claimed(state, task["id"])


def forgotten(state: State, clock: Clock, held: Claimed) -> None:
    """Nobody has heard of it for too long: another attempt may begin."""
    clock.advance(3600)
    assert not isinstance(lapse(state, held), Rejected)
    clock.advance(3600)


def commit(state: State, held: Claimed, *cursors: int, **fields: object) -> CommitAnswer:
    prefix = held.work.outputs[0].prefix
    bodies = [output(held, **{"cursor": each, "location": f"{prefix}{each}/", **fields}) for each in cursors]
    with state.write() as tx:
        return segments.commit(tx, CommitRequest(**fence(held), outputs=bodies), ROOT)


def committed(state: State) -> list[tuple[int, int, str]]:
    """Cursor, attempt and place of each segment."""
    return [(each["cursor"], each["attempt"], each["location"]) for each in all_of(state, schema.commits)]


def events(state: State) -> list[int]:
    return [each["cursor"] for each in all_of(state, schema.events)]


def test_a_segment_is_there_with_its_event_before_the_source_ends(
    state: State, topology: Topology, clicks: LiveJob
) -> None:
    held = begun(state, clicks)
    assert commit(state, held, 0) == CommitAnswer(committed=1, repeated=0)
    assert commit(state, held, 1).committed == 1
    assert (events(state), row_of(state, held.work.task_id)["status"]) == ([0, 1], "running")

    route_all(state)
    count = live(topology, "clicks.count")
    read = claimed(state, next(each["id"] for each in tasks_of(state, count) if each["cursor"] == 1))
    (given,) = read.work.inputs
    assert (given.mode, given.cursor_upto) == (InputMode.CURSOR, 1)
    assert [each.cursor for each in given.pieces] == [0, 1]
    with state.read() as tx:
        assert accounting.check(tx, clicks.outputs[0].dataset_id).problems == ()
        (generation,) = [each for each in all_of(state, schema.generations) if each["segments"]]
    assert (generation["segments"], generation["rows"], generation["cursor"]) == (2, 20, 1)


def test_a_cursor_that_is_committed_stays_whoever_says_it_again(
    state: State, state_clock: Clock, clicks: LiveJob
) -> None:
    held = begun(state, clicks)
    commit(state, held, 0)
    assert commit(state, held, 0, rows=99) == CommitAnswer(committed=0, repeated=1)  # Its answer had been lost.
    forgotten(state, state_clock, held)
    again = claimed(state, held.work.task_id)
    assert commit(state, again, 0) == CommitAnswer(committed=0, repeated=1)
    assert commit(state, again, 1).committed == 1
    first, second = held.work.outputs[0].prefix, again.work.outputs[0].prefix
    assert committed(state) == [(0, 1, f"{first}0/"), (1, 2, f"{second}1/")]
    assert events(state) == [0, 1]
    with state.read() as tx:
        found = segments.last(tx, held.work.task_id, 0)
    assert (found.cursor, found.attempt, found.location) == (1, 2, f"{second}1/")


def test_a_stale_attempt_commits_nothing(state: State, state_clock: Clock, clicks: LiveJob) -> None:
    zombie = begun(state, clicks)
    forgotten(state, state_clock, zombie)
    with pytest.raises(LeaseLost):
        commit(state, zombie, 0)
    successor = claimed(state, zombie.work.task_id)
    with pytest.raises(LeaseLost):
        commit(state, zombie, 0)
    assert committed(state) == []
    commit(state, successor, 0)
    with pytest.raises(LeaseLost):
        commit(state, zombie, 0)
    assert len(committed(state)) == len(events(state)) == 1


def test_who_was_asked_to_stop_commits_nothing_more(state: State, clicks: LiveJob) -> None:
    held = begun(state, clicks)
    commit(state, held, 0)
    with state.write() as tx:
        operator_actions.cancel(tx, held.work.task_id, "tests", "enough")
    with pytest.raises(Cancelled, match="asked to stop"):
        commit(state, held, 1)
    assert events(state) == [0]


def test_rows_that_were_compared_with_an_earlier_state_are_refused_and_the_lease_stays(
    state: State, clicks: LiveJob
) -> None:
    held = begun(state, clicks)
    commit(state, held, 0)
    with pytest.raises(Refused, match="read them again") as refused:
        commit(state, held, 1, based_on=0)
    assert not isinstance(refused.value, LeaseLost)
    (generation,) = [each for each in all_of(state, schema.generations) if each["segments"]]
    assert commit(state, held, 1, based_on=generation["revision"]).committed == 1


def test_cursors_only_grow_and_all_of_a_commit_appears_or_none(state: State, clicks: LiveJob) -> None:
    held = begun(state, clicks)
    commit(state, held, 7)
    with pytest.raises(UsageError, match="lies behind 7"):
        commit(state, held, 8, 3)
    assert events(state) == [7]
    assert commit(state, held, 7, 8, 9) == CommitAnswer(committed=2, repeated=1)
    assert finish(state, held, Outcome.RELEASED).status == "pending"
    assert events(state) == [7, 8, 9]


def test_only_an_always_on_source_commits_on_its_way_and_only_below_its_prefix(
    state: State, topology: Topology, clicks: LiveJob
) -> None:
    other = claimed(state, manual_task(state, live(topology, "clicks.by_hand"), "p"))
    with pytest.raises(UsageError, match="only an always_on source"):
        commit(state, other, 0)
    held = begun(state, clicks)
    with pytest.raises(UsageError, match="write it below"):
        commit(state, held, 0, location="file:/data/elsewhere/")
    with pytest.raises(UsageError, match="needs a cursor"):
        commit(state, held, 0, cursor=None, partition_key="p")
    with state.read() as tx, pytest.raises(NotFound, match="no output 4"):
        segments.last(tx, held.work.task_id, 4)
    assert committed(state) == []


async def test_the_routes_take_the_capability_of_the_attempt(
    state: State, state_clock: Clock, tmp_path: Path
) -> None:
    clicks = live(deployed(state, CLICKS), "clicks.clicks")
    async with served(state, tmp_path) as dispatcher, dispatcher.worker() as client:
        source_monitor.tick(state)
        (task,) = tasks_of(state, clicks)
        with state.write() as tx:
            woken(tx, task["id"])
        held = await client.claim(task["id"], "w")
        assert isinstance(held, Claimed)
        assert (await client.last_segment(held.capability_token, 0)).cursor is None
        body = output(held, cursor=0)
        request = CommitRequest(**fence(held), outputs=[body])
        assert (await client.commit(held.capability_token, request)).committed == 1
        assert (await client.commit(held.capability_token, request)).repeated == 1
        last = await client.last_segment(held.capability_token, 0)
        assert (last.cursor, last.attempt) == (0, 1)
        assert len(dispatcher.nudges) >= 2
        forgotten(state, state_clock, held)
        with pytest.raises(LeaseLost):
            await client.commit(held.capability_token, request)
