"""The end of a task goes on by itself, as far as the loops would have taken it, and never at the cost of the end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from qo.api.contract.task import Claimed, CompleteRequest, EventBody, Outcome
from qo.config.settings import Settings
from qo.core.pipeline.topology import Topology
from qo.dispatcher.attempts import completion
from qo.dispatcher.engine import fast_path
from qo.dispatcher.engine.fast_path import FastPath, WakeUpBuffer
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.events import routed_here
from qo.dispatcher.outbox import outbox, publisher
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.service import SEARCH_S, Dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import dedupe_keys
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.tasks.dedupe_keys import KeyKind
from qo.errors import Unavailable
from support.dispatcher import accounting
from support.dispatcher.pipeline_tasks import ROOT, all_of, claimed, feed, fence, made, output, route_all, tasks_of
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", runtime="spark", max_attempts=2),
    job("daily", reads="clean", runtime="python"),
    job("pass", reads="clean", runtime="dispatcher", operator="noop"),
)


@dataclass
class Heard:
    wakes: dict[str, str] = field(default_factory=dict)

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        self.wakes.update({each.id: each.task_id for each in wakes})


@dataclass
class Ends:
    """Tasks that end, and who hears of what is to be done then."""

    state: State
    prepared: bool  # As the API does it: events are stored as routed.
    nudged: list[str] = field(default_factory=list)
    hand: WakeUpBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.hand = WakeUpBuffer(self.nudged.extend)

    def finish(self, held: Claimed, outcome: Outcome = Outcome.SUCCESS, **limited: Any) -> None:
        go_on = FastPath(Limits(**limited), self.hand, self.nudged.extend)
        outputs = [output(held)] if outcome is Outcome.SUCCESS else []
        with self.state.write() as tx:
            if self.prepared:
                go_on.prepare(tx)
            completion.complete(tx, CompleteRequest(**fence(held), outcome=outcome, outputs=outputs), ROOT)
            after = go_on(tx)
        after()


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


@pytest.fixture(params=[False, True], ids=["stored", "routed"])
def ends(state: State, request: pytest.FixtureRequest) -> Ends:
    return Ends(state, request.param)


def check_counts(state: State) -> None:
    with state.read() as tx:
        for dataset in tx.execute(sa.select(schema.datasets.c.id)).scalars().all():
            assert accounting.check(tx, dataset).problems == ()


def break_routing(monkeypatch: pytest.MonkeyPatch, error: Callable[[Tx], None]) -> None:
    """Have the fast path fail when it has routed everything."""
    for name in ("route", "route_stored"):
        route: Callable[[Tx, Any], object] = getattr(router, name)

        def fails(tx: Tx, what: Any, route: Callable[[Tx, Any], object] = route) -> None:
            route(tx, what)
            error(tx)

        monkeypatch.setattr(router, name, fails)


def clean(state: State, shop: Topology, *keys: str, run: str = "1") -> list[Claimed]:
    """Tasks of ``clean`` that run."""
    for key in keys:
        feed(state, live(shop, "shop.orders"), key, run)
    route_all(state)
    found = tasks_of(state, live(shop, "shop.clean"))
    return [claimed(state, each["id"]) for each in found if each["partition_key"] in keys]


def on_sqlite(state: State) -> bool:
    return state.engine.dialect.name == "sqlite"


def test_an_end_is_routed_and_released_in_its_own_transaction(state: State, shop: Topology, ends: Ends) -> None:
    [held] = clean(state, shop, "a")
    ends.finish(held)
    daily, passed = (tasks_of(state, live(shop, f"shop.{name}")) for name in ("daily", "pass"))
    assert [each["released_at"] is not None for each in (*daily, *passed)] == [True, True]
    assert [each.effect.task_id for each in ends.hand.take(10)] == [daily[0]["id"]]
    assert set(ends.nudged) == {"publisher", "in process"}, "nobody else has anything to do"
    assert router.tick(state) == release.tick(state, Limits()) == 0, "nothing was left"


def test_an_event_that_is_routed_where_it_is_stored_is_written_once(state: State, shop: Topology) -> None:
    [held] = clean(state, shop, "a")
    changes: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE events"):
            changes.append(statement)

    event.listen(state.engine, "before_cursor_execute", note)
    try:
        Ends(state, prepared=True).finish(held)
        assert changes == []
        by_loops = Ends(state, prepared=False)
        by_loops.finish(clean(state, shop, "b")[0])
    finally:
        event.remove(state.engine, "before_cursor_execute", note)
    assert len(changes) == 2, "one for the event of b, by the loop, and one for that of its end"
    ended = [each for each in all_of(state, schema.events) if each["producer_attempt"] == 1]
    assert [(each["state"], each["reason"]) for each in ended if each["fanout"] == 2] == [("routed", None)] * 2
    check_counts(state)


def test_an_event_that_starts_nothing_is_never_routed(state: State) -> None:
    top = deployed(state, dag("ends", source("feed"), job("last", reads="feed")))
    feed(state, live(top, "ends.feed"), "a")
    assert router.tick(state) == 1
    [task] = tasks_of(state, live(top, "ends.last"))
    Ends(state, prepared=False).finish(claimed(state, task["id"]))
    [made_event] = [each for each in all_of(state, schema.events) if each["producer_task_id"] == task["id"]]
    assert (made_event["state"], made_event["reason"]) == ("filtered", "no live job reads this dataset")
    assert router.tick(state) == 0
    check_counts(state)


def test_a_transaction_that_does_not_route_what_it_stores_as_routed_is_undone(
    state: State, shop: Topology
) -> None:
    [held] = clean(state, shop, "a")
    request = CompleteRequest(**fence(held), outcome=Outcome.SUCCESS, outputs=[output(held)])

    def end_without_routing() -> None:
        with state.write() as tx:
            routed_here.begin(tx, 10)
            completion.complete(tx, request, ROOT)

    with pytest.raises(AssertionError, match="stored as routed"):
        end_without_routing()
    [running] = tasks_of(state, live(shop, "shop.clean"))
    assert running["status"] == "running"


def test_an_end_that_makes_room_lets_others_pass(state: State, shop: Topology, ends: Ends) -> None:
    operator = live(shop, "shop.clean").job.operator
    [held] = clean(state, shop, "a")
    feed(state, live(shop, "shop.orders"), "b")
    route_all(state)
    assert release.tick(state, Limits({operator: 1})) == 0
    ends.finish(held, Outcome.FATAL, operators={operator: 1})
    [waiting] = [each for each in tasks_of(state, live(shop, "shop.clean")) if each["partition_key"] == "b"]
    assert waiting["released_at"] is not None


def test_what_cannot_be_routed_does_not_keep_a_task_from_ending(
    state: State, shop: Topology, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    [held] = clean(state, shop, "a")

    def fail(tx: Tx) -> None:
        raise KeyError("unforeseen")

    break_routing(monkeypatch, fail)
    ends.finish(held)
    [ended] = tasks_of(state, live(shop, "shop.clean"))
    assert ended["status"] == "completed"
    assert tasks_of(state, live(shop, "shop.daily")) == [], "half of it would be worse than nothing"
    assert set(ends.nudged) == {"router", "release"}
    [event] = [each for each in all_of(state, schema.events) if each["producer_task_id"] == ended["id"]]
    assert (event["state"], event["fanout"]) == ("pending", 0)
    check_counts(state)
    assert router.tick(state) == 1
    check_counts(state)


def test_a_database_that_has_undone_the_end_itself_does_not_let_it_be_taken_for_done(
    state: State, shop: Topology, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SQLite may when the disk is full: there is nothing left to commit, and committing it would not say so."""
    if not on_sqlite(state):
        pytest.skip("it never does that: a transaction with an error in it cannot be committed")
    [held] = clean(state, shop, "a")

    def fail(tx: Tx) -> None:
        tx.connection.exec_driver_sql("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        break_routing(patched, fail)
        with pytest.raises(Unavailable):
            ends.finish(held)
    [running] = tasks_of(state, live(shop, "shop.clean"))
    assert running["status"] == "running"
    ends.finish(held)
    [ended] = tasks_of(state, live(shop, "shop.clean"))
    assert ended["status"] == "completed"


def test_an_end_takes_only_so_many_with_it_and_leaves_the_rest_to_the_loops(
    state: State, shop: Topology, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "BATCH_MAX", 2)
    [held] = clean(state, shop, "a")
    for key in "bcde":
        feed(state, live(shop, "shop.orders"), key)
    ends.finish(held)
    # Events that others have stored are theirs to route, or the loop's, where it stores its own as routed.
    assert {"router", "release"} - set(ends.nudged) == ({"router"} if ends.prepared else set())
    assert len(ends.hand.take(10)) == (1 if ends.prepared else 2)


def test_only_so_many_events_are_stored_as_routed(
    state: State, shop: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "BATCH_MAX", 2)
    nudged: list[str] = []
    go_on = FastPath(Limits(), WakeUpBuffer(nudged.extend), nudged.extend)
    with state.write() as tx:
        go_on.prepare(tx)
        for key in ("ab", "cde"):
            events = [EventBody(partition_key=each) for each in key]
            emission.emit(tx, "shop", "orders", key=key, events=events, by="tests")
        after = go_on(tx)
    after()
    stored = all_of(state, schema.events)
    assert sorted(each["state"] for each in stored) == ["pending"] * 3 + ["routed"] * 2
    assert len(tasks_of(state, live(shop, "shop.clean"))) == 2
    assert "router" in nudged
    check_counts(state)
    assert router.tick(state) == 3


def on_postgres_only(state: State) -> None:
    if on_sqlite(state):
        pytest.skip("one writes at a time there: nobody has anything locked")


def test_an_end_leaves_what_another_dispatcher_is_releasing_to_the_loops(
    state: State, shop: Topology, ends: Ends
) -> None:
    on_postgres_only(state)
    first, second = clean(state, shop, "a", "b")
    with state.write() as other:
        names = {f"queue:{live(shop, f'shop.{name}').queue}" for name in ("daily", "pass")}
        release.lock_names(other, {"any": names})
        ends.finish(first)
        [daily] = tasks_of(state, live(shop, "shop.daily"))
        assert daily["released_at"] is None
        assert "release" in ends.nudged
        assert ends.hand.take(10) == []
    ends.finish(second)
    assert [each["released_at"] is not None for each in tasks_of(state, live(shop, "shop.daily"))] == [True, True]


def test_an_end_does_not_wait_for_a_task_that_another_transaction_creates(
    state: State, shop: Topology, ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on_postgres_only(state)
    monkeypatch.setattr(fast_path, "WAIT_MS", 1)
    [held] = clean(state, shop, "a")
    daily = live(shop, "shop.daily")
    of = daily.inputs[0]
    key = dedupe_keys.for_partition(daily, of.dataset_id, of.generation_id or "", "a", shop.current)
    same = NewTask(job=daily, dedupe_key=key, dataset_id=of.dataset_id, partition_key="a")
    with state.write() as other:
        create(other, [same])
        ends.finish(held)
        [ended] = tasks_of(state, live(shop, "shop.clean"))
        assert ended["status"] == "completed"
        assert set(ends.nudged) == {"router", "release"}
    assert not caplog.records, "that is nothing to worry about"
    route_all(state)
    assert len(tasks_of(state, daily)) == 1


def test_a_wake_up_that_is_lost_on_the_way_from_hand_to_hand_comes_from_the_outbox(
    state: State, state_clock: Clock, shop: Topology, ends: Ends
) -> None:
    [held] = clean(state, shop, "a")
    feed(state, live(shop, "shop.orders"), "b")
    route_all(state)
    assert release.tick(state, Limits(), on_release=ends.hand) == 1
    queues = Heard()
    assert asyncio.run(publisher.tick(state, queues)) == 0, "it is in somebody's hand"
    state_clock.advance(outbox.HANDED_S + 1)
    assert asyncio.run(publisher.tick(state, queues)) == 1
    assert asyncio.run(publisher.publish(state, queues, ends.hand.take(10))) == 1, "it was only late"
    assert len(queues.wakes) == 1
    assert {each["state"] for each in all_of(state, schema.outbox)} == {"done"}
    ends.finish(held)


def test_invalidations_and_backfills_are_looked_at_when_an_end_concerns_them(
    state: State, shop: Topology, ends: Ends
) -> None:
    [first] = clean(state, shop, "a")
    ends.finish(first)
    assert not {"invalidation", "backfill"} & set(ends.nudged)
    clean_ = live(shop, "shop.clean")
    of = clean_.inputs[0]
    again = NewTask(
        job=clean_,
        dedupe_key=f"{KeyKind.BACKFILL.prefix}one:a",
        dataset_id=of.dataset_id,
        generation_id=of.generation_id,
        partition_key="a",
    )
    ends.finish(claimed(state, made(state, again)))
    assert {"invalidation", "backfill"} <= set(ends.nudged)


def test_a_refresh_is_looked_for_when_an_end_concerns_it(state: State, shop: Topology, ends: Ends) -> None:
    [first] = clean(state, shop, "a")
    ends.finish(first)
    assert "refresh" not in ends.nudged
    beside = {"job": "orders", "trigger": False, "refresh": "on_change", "as": "all"}
    other = deployed(state, dag("other", source("orders"), job("clean", reads=["orders", beside])))
    feed(state, live(other, "other.orders"), "a")
    route_all(state)
    [task] = tasks_of(state, live(other, "other.clean"))
    ends.finish(claimed(state, task["id"]))
    assert "refresh" in ends.nudged


async def test_a_dispatcher_publishes_what_it_is_handed_and_looks_for_others_now_and_then(
    state: State, shop: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, searched = Heard(), list[int]()
    dispatcher = Dispatcher(state, queues, Settings())
    search, at = publisher.tick, [100.0]

    async def counted(*given: Any, **named: Any) -> int:
        searched.append(1)
        return await search(*given, **named)

    monkeypatch.setattr(publisher, "tick", counted)
    monkeypatch.setattr(type(state.ambient), "monotonic", lambda _: at[0])
    for number in range(3):
        feed(state, live(shop, "shop.orders"), f"k{number}")
        await dispatcher.step()
        assert len(queues.wakes) == number + 1
    assert len(searched) == 1
    at[0] += SEARCH_S
    await dispatcher.step()
    assert len(searched) == 2
    dispatcher.close()
