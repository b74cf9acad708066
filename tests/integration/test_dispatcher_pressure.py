"""Backpressure on a real state: a full queue withholds the wake-ups of those who feed it, until it has drained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import EventBody, EventsRequest
from qo.core.pipeline.pressure import Thresholds
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.attempts import running
from qo.dispatcher.engine.loops import pressure, release
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.tasks import dedupe_keys
from qo.dispatcher.tasks.creation import NewTask, create, task_id
from qo.dispatcher.versions import cutover
from support.dispatcher.pipeline_tasks import beat, claimed, fence, woken
from support.dispatcher.pipelines import dag, deployed, job, live, loaded, source, staged
from support.dispatcher.states import Clock

# orders (python) -> split (dispatcher) -> left (spark), right (lambda) -> join (python)
DIAMOND = dag(
    "shop",
    source("orders", "always_on"),
    job("split", reads="orders", runtime="dispatcher", operator="range_splitter"),
    job("left", reads="split", runtime="spark", operator="sql"),
    job("right", reads="split", runtime="lambda", operator="udf", udf={"bundle_id": "b", "entrypoint": "m:f"}),
    job("join", reads=["left", "right"]),
)
LIMITS = Thresholds(depth=4, age_s=60.0, clear_ratio=0.5)


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, DIAMOND)


def wanted(state: State, of: LiveJob, keys: Iterable[Any]) -> None:
    with state.write() as tx:
        create(tx, [NewTask(job=of, dedupe_key=f"manual:{key}") for key in keys])


def drained(state: State, queue: str, leave: int = 0) -> None:
    """Workers have claimed all but so many of what waits in a queue."""
    tasks = schema.tasks
    with state.write() as tx:
        waiting = sa.and_(tasks.c.queue == queue, tasks.c.status == "pending", tasks.c.released_at.is_not(None))
        ids = tx.execute(sa.select(tasks.c.id).where(waiting).order_by(tasks.c.id)).scalars().all()
        gone = ids[: len(ids) - leave]
        tx.execute(sa.update(tasks).where(tasks.c.id.in_(gone)).values(status="completed"))


def holds(state: State) -> dict[str, str]:
    with state.read() as tx:
        return {row["edition_id"]: row["reason"] for row in tx.all(sa.select(schema.holds))}


def tripped(state: State) -> dict[str, str]:
    with state.read() as tx:
        rows = tx.all(sa.select(schema.queues).where(schema.queues.c.tripped_at.is_not(None)))
        return {row["name"]: row["reason"] for row in rows}


def overfill(state: State, shop: Topology, name: str, count: int = 5) -> None:
    wanted(state, live(shop, name), [f"{name}-{number}" for number in range(count)])
    release.tick(state, Limits())
    pressure.tick(state, LIMITS)


def test_depth_trips_a_queue_and_withholds_the_wake_ups_of_all_who_feed_it(state: State, shop: Topology) -> None:
    overfill(state, shop, "shop.left")
    assert tripped(state) == {"spark": "5 wake-ups wait in it, more than 4"}
    for name in ("shop.orders", "shop.split", "shop.left", "shop.right", "shop.join"):
        wanted(state, live(shop, name), ["more"])
    assert release.tick(state, Limits()) == 3, "the consumer, and who is not upstream, go on"
    reason = "queue spark, which it feeds, is overfull: 5 wake-ups wait in it, more than 4"
    assert holds(state) == {live(shop, name).edition_id: reason for name in ("shop.orders", "shop.split")}


def test_age_trips_a_queue_too(state: State, shop: Topology, state_clock: Clock) -> None:
    overfill(state, shop, "shop.left", count=1)
    assert tripped(state) == {}
    state_clock.advance(61)
    assert pressure.tick(state, LIMITS) == 1
    assert "longer than 60 s" in tripped(state)["spark"]


def test_it_clears_only_well_below_and_what_was_withheld_is_released(state: State, shop: Topology) -> None:
    overfill(state, shop, "shop.left")
    wanted(state, live(shop, "shop.split"), ["more"])
    drained(state, "spark", leave=3)
    assert pressure.tick(state, LIMITS) == 0
    assert release.tick(state, Limits()) == 0, "not yet: it would flutter"
    drained(state, "spark", leave=2)
    assert pressure.tick(state, LIMITS) == 1
    assert tripped(state) == {}
    assert release.tick(state, Limits()) == 1
    assert holds(state) == {}


def test_a_shared_producer_goes_on_only_when_both_branches_have_drained(state: State, shop: Topology) -> None:
    overfill(state, shop, "shop.left")
    overfill(state, shop, "shop.right")
    assert set(tripped(state)) == {"spark", "lambda"}
    wanted(state, live(shop, "shop.split"), ["more"])
    assert release.tick(state, Limits()) == 0
    assert holds(state)[live(shop, "shop.split").edition_id].count("overfull") == 2
    drained(state, "spark")
    pressure.tick(state, LIMITS)
    assert release.tick(state, Limits()) == 0, "the other branch is still full"
    assert holds(state)[live(shop, "shop.split").edition_id].count("overfull") == 1
    drained(state, "lambda")
    pressure.tick(state, LIMITS)
    assert release.tick(state, Limits()) == 1


def test_pressure_survives_a_restart(state: State, state_url: str, state_clock: Clock, shop: Topology) -> None:
    overfill(state, shop, "shop.left")
    drained(state, "spark", leave=3)
    wanted(state, live(shop, "shop.split"), ["more"])
    restarted = open_state(state_url, clock=state_clock)
    assert pressure.tick(restarted, LIMITS) == 0, "between the thresholds, what was tripped stays so"
    assert set(tripped(restarted)) == {"spark"}
    assert release.tick(restarted, Limits()) == 0
    restarted.close()


def test_measuring_twice_at_once_trips_once(state: State, shop: Topology) -> None:
    overfill(state, shop, "shop.left")
    with state.read() as tx:
        before = tx.one(sa.select(schema.queues.c.tripped_at))
    assert pressure.tick(state, LIMITS) == 0
    with state.read() as tx:
        assert tx.one(sa.select(schema.queues.c.tripped_at)) == before


def test_the_last_job_of_a_chain_on_one_queue_drains_it(state: State) -> None:
    chain = dag(
        "chain",
        source("orders"),
        job("clean", reads="orders", runtime="spark", operator="sql"),
        job("report", reads="clean", runtime="spark", operator="sql"),
    )
    topology = deployed(state, chain)
    overfill(state, topology, "chain.clean")
    wanted(state, live(topology, "chain.clean"), ["more"])
    wanted(state, live(topology, "chain.report"), ["more"])
    assert release.tick(state, Limits()) == 1
    assert set(holds(state)) == {live(topology, "chain.clean").edition_id}


def test_an_empty_dispatcher_measures_without_writing(state: State, shop: Topology) -> None:
    assert pressure.tick(state, LIMITS) == 0
    with state.read() as tx:
        assert tx.all(sa.select(schema.queues)) == []


def test_a_drained_queue_is_stored_as_empty_and_then_left_alone(
    state: State, shop: Topology, state_clock: Clock
) -> None:
    overfill(state, shop, "shop.left", count=2)
    drained(state, "spark")
    pressure.tick(state, LIMITS)
    with state.read() as tx:
        before = tx.one(sa.select(schema.queues))
    assert before is not None
    assert (before["depth"], before["oldest_s"]) == (0, 0.0)
    state_clock.advance(5)
    pressure.tick(state, LIMITS)
    with state.read() as tx:
        assert tx.one(sa.select(schema.queues)) == before


def test_a_running_source_is_told_to_hold_back_while_a_queue_behind_it_is_full(
    state: State, shop: Topology
) -> None:
    orders = live(shop, "shop.orders")
    with state.write() as tx:
        create(tx, [NewTask(job=orders, dedupe_key=dedupe_keys.SOURCE)])
    with state.write() as tx:
        woken(tx, task_id(orders.edition_id, dedupe_keys.SOURCE))
    held = claimed(state, task_id(orders.edition_id, dedupe_keys.SOURCE))

    def emitted(cursor: int) -> bool:
        body = EventsRequest(**fence(held), events=[EventBody(cursor=cursor)])
        with state.write() as tx:
            return running.emit(tx, body).paused

    assert (beat(state, held).paused, emitted(1)) == (False, False)
    overfill(state, shop, "shop.left")
    pressure.tick(state, LIMITS)
    assert (beat(state, held).paused, emitted(2)) == (True, True)
    drained(state, "spark")
    pressure.tick(state, LIMITS)
    assert (beat(state, held).paused, emitted(3)) == (False, False)


# Thresholds of single queues and jobs


def overfill_job(state: State, top: Topology, name: str, count: int) -> None:
    wanted(state, live(top, name), [f"{name}-{number}" for number in range(count)])
    pressure.tick(state, LIMITS)


LIMITED = dag(
    "shop",
    source("orders", "always_on"),
    job("clean", reads="orders", scaling={"max_concurrency": 1}, max_queue_depth=2),
    job("report", reads="clean"),
)


def test_a_job_over_its_own_depth_holds_back_what_feeds_it_until_it_has_drained(state: State) -> None:
    top = deployed(state, LIMITED)
    overfill_job(state, top, "shop.clean", 3)
    wanted(state, live(top, "shop.orders"), ["more"])
    assert release.tick(state, Limits()) == 1, "the job itself goes on, as far as its concurrency lets it"
    orders = live(top, "shop.orders").edition_id
    assert holds(state)[orders] == "job shop.clean, which it feeds, is overfull: 3 tasks of it wait, more than 2"
    with state.write() as tx:
        clean = live(top, "shop.clean").edition_id
        first = sa.select(schema.tasks.c.id).where(schema.tasks.c.edition_id == clean).order_by(schema.tasks.c.id)
        done = tx.execute(first.limit(2)).scalars().all()
        tx.execute(sa.update(schema.tasks).where(schema.tasks.c.id.in_(done)).values(status="completed"))
    assert pressure.tick(state, LIMITS) == 1
    release.tick(state, Limits())
    assert orders not in holds(state)


def test_a_job_over_its_own_age_holds_back_what_feeds_it(state: State, state_clock: Clock) -> None:
    limited = dag("shop", source("orders"), job("clean", reads="orders", max_queue_age="2m"))
    top = deployed(state, limited)
    overfill_job(state, top, "shop.clean", 1)
    state_clock.advance(121)
    assert pressure.tick(state, LIMITS) == 1, "whether or not a wake-up was sent"
    with state.read() as tx:
        [row] = tx.all(sa.select(schema.job_pressure))
    assert row["reason"] == "its oldest task waits for 121 s, longer than 120 s"


def test_a_threshold_that_was_removed_holds_nobody_back(state: State) -> None:
    top = deployed(state, LIMITED)
    overfill_job(state, top, "shop.clean", 3)
    without = dag(
        "shop",
        source("orders", "always_on"),
        job("clean", reads="orders", scaling={"max_concurrency": 1}),
        job("report", reads="clean"),
    )
    staged(state, without)
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests", force=True)
    assert live(loaded(state), "shop.clean").edition_id == live(top, "shop.clean").edition_id
    assert pressure.tick(state, LIMITS) == 1
    with state.read() as tx:
        assert tx.all(sa.select(schema.job_pressure)) == []


def test_a_queue_has_thresholds_of_its_own(state: State, shop: Topology) -> None:
    limits = replace(LIMITS, queues={"spark": replace(LIMITS, depth=1)})
    for name in ("shop.left", "shop.right"):
        wanted(state, live(shop, name), range(2))
    release.tick(state, Limits())
    pressure.tick(state, limits)
    assert tripped(state) == {"spark": "2 wake-ups wait in it, more than 1"}


def test_a_dispatcher_without_waiting_tasks_measures_its_jobs_without_writing(state: State) -> None:
    deployed(state, LIMITED)
    assert pressure.tick(state, LIMITS) == 0
    with state.read() as tx:
        assert tx.all(sa.select(schema.job_pressure)) == []
