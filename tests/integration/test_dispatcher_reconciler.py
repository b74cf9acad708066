"""Missed events and history: what is committed gets its tasks in the end, each once."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from qo.api.contract.task import Outcome
from qo.dispatcher.engine.loops import reconciler
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import cutover, marks
from support.dispatcher.pipeline_tasks import (
    all_of,
    append,
    claimed,
    feed,
    finish,
    partition_task,
    route_all,
    row_of,
    succeed,
    tasks_of,
)
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders"),
    job("alert", reads="clean", outputs=0),
)


def lose_events(state: State) -> None:
    """As if nobody had ever heard of them."""
    with state.write() as tx:
        tx.execute(sa.update(schema.events).values(state="filtered"))


def test_a_lost_event_is_made_good(state: State) -> None:
    topology = deployed(state, SHOP)
    orders, clean = live(topology, "shop.orders"), live(topology, "shop.clean")
    feed(state, orders, "p", start=1, end=2)
    lose_events(state)
    assert reconciler.tick(state) == 1
    [task] = tasks_of(state, clean)
    assert (task["partition_key"], task["start"], task["end"]) == ("p", 1, 2)
    assert task["id"] == partition_task(state, clean, "p")  # The one that the event would have made.
    assert reconciler.tick(state) == 0


def test_an_event_that_is_still_to_be_routed_is_left_to_the_router(state: State) -> None:
    topology = deployed(state, SHOP)
    orders, clean = live(topology, "shop.orders"), live(topology, "shop.clean")
    feed(state, orders, "p")
    assert reconciler.tick(state) == 0
    route_all(state)
    assert len(tasks_of(state, clean)) == 1
    assert reconciler.tick(state) == 0
    assert {each["outcome"] for each in all_of(state, schema.deliveries)} == {"consumed"}


def test_a_pass_goes_on_where_the_last_one_ended(state: State) -> None:
    topology = deployed(state, SHOP)
    orders, clean = live(topology, "shop.orders"), live(topology, "shop.clean")
    for n in range(7):
        feed(state, orders, f"p{n}")
    lose_events(state)
    assert [reconciler.tick(state, limit=3) for _ in range(4)] == [3, 3, 1, 0]
    assert len(tasks_of(state, clean)) == 7


def test_a_mark_counts_the_partitions_that_it_has_passed_and_no_others(state: State) -> None:
    topology = deployed(state, SHOP)
    orders, clean = live(topology, "shop.orders"), live(topology, "shop.clean")
    feed(state, orders, "p0")
    lose_events(state)
    for n in range(1, 4):
        feed(state, orders, f"p{n}")  # The router has not come to these.
    reconciler.tick(state)
    with state.read() as tx:
        [mark] = marks.settled(tx, [clean.edition_id]).values()
    assert mark.passed == 1


def test_everything_is_compared_once_more_from_time_to_time(state: State, state_clock: Clock) -> None:
    topology = deployed(state, SHOP)
    orders, clean = live(topology, "shop.orders"), live(topology, "shop.clean")
    feed(state, orders, "p")
    lose_events(state)
    assert reconciler.tick(state) == 1
    with state.write() as tx:
        tx.execute(sa.delete(schema.tasks).where(schema.tasks.c.edition_id == clean.edition_id))
    assert reconciler.tick(state) == 0
    state_clock.advance(marks.FULL_PASS_S)
    assert [reconciler.tick(state) for _ in range(2)] == [0, 1]


def test_a_staged_version_catches_up_on_history_beside_the_active_one(state: State) -> None:
    topology = deployed(state, SHOP)
    orders = live(topology, "shop.orders")
    for key in ("p", "q"):
        feed(state, orders, key)
    route_all(state)
    for task in tasks_of(state, live(topology, "shop.clean")):
        succeed(state, claimed(state, task["id"]))
    route_all(state)
    staged(state, edited(SHOP, "clean", config={"a": 1}))
    new = live(loaded(state), "shop.clean", version=2)
    assert reconciler.tick(state) == 2
    assert {each["partition_key"] for each in tasks_of(state, new)} == {"p", "q"}
    assert reconciler.tick(state) == 0


def test_a_job_without_outputs_gets_no_history(state: State, state_clock: Clock) -> None:
    wanted = dag("shop", source("orders"), job("clean", reads="orders"))
    topology = deployed(state, wanted)
    feed(state, live(topology, "shop.orders"), "old")
    route_all(state)
    for task in tasks_of(state, live(topology, "shop.clean")):
        succeed(state, claimed(state, task["id"]))
    route_all(state)
    state_clock.advance(10)
    staged(state, SHOP)
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "me", force=True)
    topology = loaded(state)
    state_clock.advance(10)
    feed(state, live(topology, "shop.orders"), "new")
    route_all(state)
    for task in tasks_of(state, live(topology, "shop.clean")):
        if task["status"] == "pending":
            succeed(state, claimed(state, task["id"]))
    lose_events(state)
    reconciler.tick(state)
    assert {each["partition_key"] for each in tasks_of(state, live(topology, "shop.alert"))} == {"new"}


def test_join_all_waits_for_all_inputs(state: State) -> None:
    topology = deployed(state, dag("j", source("a"), source("b"), job("both", reads=["a", "b"], join="all")))
    a, b, both = (live(topology, f"j.{name}") for name in ("a", "b", "both"))
    feed(state, a, "p")
    feed(state, a, "q")
    lose_events(state)
    assert reconciler.tick(state) == 0
    feed(state, b, "p")
    lose_events(state)
    assert reconciler.tick(state) == 1
    assert [each["partition_key"] for each in tasks_of(state, both)] == ["p"]
    assert reconciler.tick(state) == 0


def test_a_cursor_that_was_missed_gets_one_task(state: State) -> None:
    topology = deployed(
        state, dag("t", source("ticks"), job("follow", reads="ticks", execution_strategy="PerUpdate"))
    )
    feeder, follow = live(topology, "t.ticks"), live(topology, "t.follow")
    for cursor in (1, 2, 3):
        append(state, feeder, cursor)
    lose_events(state)
    assert reconciler.tick(state) == 1
    [task] = tasks_of(state, follow)
    assert task["cursor"] == 3
    assert reconciler.tick(state) == 0
    held = claimed(state, task["id"])
    assert len(held.work.inputs[0].pieces) == 3
    succeed(state, held)
    assert reconciler.tick(state) == 0


def test_what_a_rollback_cancelled_is_taken_up_when_its_edition_lives_again(state: State) -> None:
    deployed(state, SHOP)
    second = edited(SHOP, "clean", config={"a": 1})
    staged(state, second)
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "me", force=True)
    topology = loaded(state)
    feed(state, live(topology, "shop.orders"), "p")
    route_all(state)
    [task] = tasks_of(state, live(topology, "shop.clean"))
    with state.write() as tx:
        cutover.rollback(tx, "shop", "me")
    assert row_of(state, task["id"])["status"] == "cancelled"
    staged(state, second, again=True)
    reconciler.tick(state)
    assert row_of(state, task["id"])["status"] == "pending"


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_what_people_cancelled_or_what_failed_stays_so(state: State, how: str) -> None:
    topology = deployed(state, SHOP)
    orders, clean = live(topology, "shop.orders"), live(topology, "shop.clean")
    feed(state, orders, "p")
    route_all(state)
    [task] = tasks_of(state, clean)
    if how == "cancelled":
        with state.write() as tx:
            operator_actions.cancel(tx, task["id"], "me")
    else:
        finish(state, claimed(state, task["id"]), Outcome.FATAL)
    assert reconciler.tick(state) == 0
    assert row_of(state, task["id"])["status"] == how
