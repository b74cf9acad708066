"""Attempts and rests of a pipeline task, what people do with it, and what an attempt reads."""

from __future__ import annotations

import pytest

from qo.api.contract.task import EventBody, EventsRequest, InputMode, Outcome
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts import running
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.errors import NotFound, Refused, UsageError
from support.dispatcher.pipeline_tasks import (
    all_of,
    beat,
    claimed,
    feed,
    fence,
    finish,
    manual_task,
    output,
    partition_task,
    row_of,
    succeed,
)
from support.dispatcher.pipelines import dag, deployed, job, live, loaded, source
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", max_attempts=2, timeout_seconds=100, heartbeat_timeout_seconds=60),
    job("daily", reads="clean"),
)


@pytest.fixture
def clean(state: State) -> LiveJob:
    return live(deployed(state, SHOP), "shop.clean")


def test_max_attempts_ends_a_task_that_always_fails(state: State, clean: LiveJob, state_clock: Clock) -> None:
    task = partition_task(state, clean, "p")
    first = finish(state, claimed(state, task), Outcome.RETRYABLE, error="first", traceback="tb")
    assert first.status == "pending"
    state_clock.advance(60)
    assert finish(state, claimed(state, task), Outcome.RETRYABLE, error="second").status == "failed"
    row = row_of(state, task)
    assert (row["last_error"], row["attempt"]) == ("second", 2)
    with state.read() as tx:
        shown = operator_actions.show_task(tx, task)
    assert [each.error for each in shown.attempts] == ["first", "second"]
    assert [each.outcome for each in shown.attempts] == ["retried", "failed"]


def test_backoff_lies_between_15_and_45_seconds_at_first(state: State, clean: LiveJob) -> None:
    task = partition_task(state, clean, "p")
    answer = finish(state, claimed(state, task), Outcome.RETRYABLE)
    row = row_of(state, task)
    assert answer.retry_at == row["available_at"]
    assert 15 <= (row["available_at"] - row["updated_at"]).total_seconds() <= 45
    assert row["released_at"] is None


def test_a_failure_may_say_when_to_try_again(state: State, clean: LiveJob) -> None:
    task = partition_task(state, clean, "p")
    finish(state, claimed(state, task), Outcome.RETRYABLE, retry_after_s=500)
    row = row_of(state, task)
    assert (row["available_at"] - row["updated_at"]).total_seconds() == pytest.approx(500)


def test_a_fatal_error_is_not_tried_again(state: State, clean: LiveJob) -> None:
    task = partition_task(state, clean, "p")
    assert finish(state, claimed(state, task), Outcome.FATAL).status == "failed"


def test_releasing_costs_no_attempt(state: State, clean: LiveJob) -> None:
    task = partition_task(state, clean, "p")
    for _ in range(4):
        assert finish(state, claimed(state, task), Outcome.RELEASED).status == "pending"
    assert row_of(state, task)["retry_count"] == 0
    succeed(state, claimed(state, task))


def test_a_running_task_that_is_cancelled_commits_nothing(state: State, clean: LiveJob) -> None:
    task = partition_task(state, clean, "p")
    held = claimed(state, task)
    with state.write() as tx:
        assert operator_actions.cancel(tx, task, "somebody", "wrong day").status == "running"
    assert beat(state, held).cancel_requested
    assert succeed(state, held).status == "cancelled"
    assert (all_of(state, schema.commits), all_of(state, schema.events)) == ([], [])
    with state.write() as tx:
        assert operator_actions.replay(tx, task, "somebody").status == "pending"
    assert succeed(state, claimed(state, task)).status == "completed"
    with state.write() as tx, pytest.raises(Refused):
        operator_actions.replay(tx, task, "somebody")


def test_a_worker_says_that_it_was_cancelled(state: State, clean: LiveJob) -> None:
    task = partition_task(state, clean, "p")
    assert finish(state, claimed(state, task), Outcome.CANCELLED, error="asked to").status == "cancelled"


def test_a_list_is_walked_page_by_page_and_misses_nothing(state: State, clean: LiveJob) -> None:
    made = {partition_task(state, clean, f"p{n}") for n in range(7)}
    done = partition_task(state, clean, "done")
    succeed(state, claimed(state, done))

    def walk(**filters: str) -> list[str]:
        seen: list[str] = []
        after: str | None = None
        while True:
            with state.read() as tx:
                found = operator_actions.list_tasks(tx, after=after, limit=3, **filters)
            seen += [each.id for each in found.tasks]
            after = found.after
            if after is None:
                return seen

    everything = walk()
    assert sorted(everything) == sorted([*made, done])
    assert walk(dag="shop") == everything
    assert walk(dag="shop", job="clean") == everything
    assert walk(dag="shop", job="daily") == []
    assert walk(status="completed") == walk(dag="shop", job="clean", status="completed") == [done]
    assert set(walk(dag="shop", job="clean", status="pending")) == made
    with state.read() as tx, pytest.raises(UsageError):
        operator_actions.list_tasks(tx, after="nonsense")


def test_fetch_tells_whether_to_go_on(state: State, clean: LiveJob) -> None:
    task = partition_task(state, clean, "p", attributes={"why": "test"})
    held = claimed(state, task)
    with state.read() as tx:
        told = running.fetch(tx, task, "file:/data")
    assert (told.status, told.attempt, told.cancel_requested) == ("running", 1, False)
    assert told.work == held.work
    assert held.work.attributes == {"why": "test"}
    with state.read() as tx, pytest.raises(NotFound):
        running.fetch(tx, "nothing")


def live_source(state: State) -> LiveJob:
    return live(loaded(state), "shop.orders")


def test_a_partition_task_reads_its_partition_as_it_was_when_claimed(state: State, clean: LiveJob) -> None:
    orders = live_source(state)
    first = feed(state, orders, "p", "1")
    feed(state, orders, "q", "1")
    held = claimed(state, partition_task(state, clean, "p"))
    read = held.work.inputs[0]
    assert (read.mode, [each.partition_key for each in read.pieces]) == (InputMode.PARTITION, ["p"])
    assert read.pieces[0].location == first.work.outputs[0].prefix
    feed(state, orders, "p", "2")
    with state.read() as tx:
        again = running.fetch(tx, held.work.task_id, "file:/data").work
    assert again is not None
    assert again.inputs == held.work.inputs


def test_a_partition_that_was_only_announced_has_no_pieces(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    assert (held.work.inputs[0].mode, held.work.inputs[0].pieces) == (InputMode.PARTITION, [])


def test_a_side_input_is_read_whole_and_in_pages(state: State) -> None:
    wanted = dag(
        "side",
        source("orders"),
        source("prices"),
        job("join", reads=["orders", {"job": "prices", "trigger": False}]),
    )
    topology = deployed(state, wanted)
    prices, join = live(topology, "side.prices"), live(topology, "side.join")
    for n in range(5):
        feed(state, prices, f"k{n}")
    feed(state, prices, "k1", "again")
    held = claimed(state, manual_task(state, prices, "segment"))
    finish(state, held, outputs=[output(held, cursor=3)])
    held = claimed(state, partition_task(state, join, "p"))
    side = held.work.inputs[1]
    assert side.mode is InputMode.WHOLE
    feed(state, prices, "k0", "later")
    feed(state, prices, "later")
    seen: list[tuple[str | None, int | None]] = []
    after: str | None = None
    fenced = EventsRequest(**fence(held), events=[EventBody(cursor=1)])
    while True:
        with state.read() as tx:
            page = running.page(tx, fenced, 1, after, 2)
        seen += [(each.partition_key, each.cursor) for each in page.pieces]
        after = page.after
        if after is None:
            break
    assert seen == [*((f"k{n}", None) for n in range(5)), (None, 3)]
    assert [(each.partition_key, each.cursor) for each in side.pieces] == seen
    with state.read() as tx:
        assert [each.revision for each in running.page(tx, fenced, 1, None).pieces] == [
            each.revision for each in side.pieces
        ]


def test_a_side_input_with_the_same_partition_is_read_by_it(state: State) -> None:
    wanted = dag(
        "side",
        source("orders"),
        source("prices"),
        job("join", reads=["orders", {"job": "prices", "trigger": False}]),
    )
    topology = deployed(state, wanted)
    feed(state, live(topology, "side.prices"), "p")
    feed(state, live(topology, "side.prices"), "q")
    held = claimed(state, partition_task(state, live(topology, "side.join"), "p"))
    assert [each.partition_key for each in held.work.inputs[1].pieces] == ["p"]
