"""Routing against a real database: one task per dependent job, and books that add up after every step."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.event import Event
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.engine.loops import router
from qo.dispatcher.events.event_log import accept, settle
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover
from support.dispatcher import accounting
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders"),
    job("count", reads="orders", execution_strategy="PerUpdate"),
    publish={"clean_orders": "clean"},
)
JOIN = dag("j", source("left"), source("right"), job("both", reads=["left", "right"], join="all"))


def event(of: LiveJob, **fields: Any) -> Event:
    made = of.outputs[0]
    return Event(dataset_id=made.dataset_id, generation_id=made.generation_id, **fields)


def send(state: State, producer: str, *events: Event) -> None:
    with state.write() as tx:
        accept(tx, producer, events)


def balanced(state: State, *jobs: LiveJob) -> dict[str, dict[str, int]]:
    """The counts of the first job's output, after all books were checked."""
    with state.read() as tx:
        books = [accounting.check(tx, each.outputs[0].dataset_id) for each in jobs]
    assert [each.problems for each in books] == [()] * len(books)
    return {edition: dict(counts) for edition, counts in books[0].tallied.items()}


def rows(state: State, table: sa.Table) -> Sequence[sa.RowMapping]:
    with state.read() as tx:
        return tx.all(sa.select(table).order_by(*table.primary_key))


def test_an_event_makes_one_task_per_dependent_job_and_repeats_are_merged(state: State) -> None:
    topology = deployed(state, SHOP)
    orders, clean, count = (live(topology, f"shop.{name}") for name in ("orders", "clean", "count"))
    send(state, "p1", event(orders, partition_key="a", start=0, end=10, attributes={"x": 1}))
    send(state, "p2", event(orders, partition_key="a"), event(orders, partition_key="b"), event(orders, cursor=5))
    assert balanced(state, orders) == {"": {"pending": 4}}
    assert router.tick(state, limit=2) == 2
    balanced(state, orders)
    assert router.tick(state) == 2
    assert router.tick(state) == 0
    counts = balanced(state, orders)
    assert counts[""] == {"routed": 4}
    assert counts[clean.edition_id] == {"consumed": 2, "merged": 1, "filtered": 1}
    assert counts[count.edition_id] == {"consumed": 1, "filtered": 3}
    tasks = {(row["job"], row["partition_key"], row["cursor"]): row for row in rows(state, schema.tasks)}
    assert set(tasks) == {("clean", "a", None), ("clean", "b", None), ("count", None, 5)}
    first = tasks["clean", "a", None]
    assert (first["start"], first["end"], first["attributes"], first["status"]) == (0, 10, {"x": 1}, "pending")
    reasons = {row["reason"] for row in rows(state, schema.deliveries) if row["outcome"] == "filtered"}
    assert len(reasons) == 2
    assert all(reason.startswith("not routable: shop.") for reason in reasons)


def test_only_current_and_staged_generations_are_routed_and_each_to_its_own_readers(state: State) -> None:
    old = deployed(state, SHOP)
    number = staged(state, edited(SHOP, "orders", config={"v": 2})).version
    both = loaded(state)
    first, second = (live(both, "shop.orders", version) for version in (1, number))
    send(state, "p", event(first, partition_key="a"), event(second, partition_key="a"))
    router.tick(state)
    made = {(row["edition_id"], row["generation_id"]) for row in rows(state, schema.tasks)}
    cleans = {version: live(both, "shop.clean", version).edition_id for version in (1, number)}
    assert made == {
        (cleans[1], first.outputs[0].generation_id),
        (cleans[number], second.outputs[0].generation_id),
    }
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "ada", force=True)
    send(state, "late", event(first, partition_key="b"))
    router.tick(state)
    newest = rows(state, schema.events)[-1]
    assert newest["state"] == "superseded"
    assert second.outputs[0].generation_id in newest["reason"]
    assert newest["fanout"] == 0
    assert len(rows(state, schema.tasks)) == 2
    balanced(state, live(old, "shop.orders"))


def test_an_event_that_nobody_reads_is_kept_with_the_reason(state: State) -> None:
    quiet = dag("q", source("a"), job("b", reads="a"), job("c", reads=["a", {"job": "b", "trigger": False}]))
    topology = deployed(state, quiet)
    send(
        state,
        "p",
        event(live(topology, "q.b"), partition_key="x"),
        event(live(topology, "q.c"), partition_key="x"),
    )
    router.tick(state)
    found = [(row["state"], row["reason"]) for row in rows(state, schema.events)]
    assert found == [
        ("filtered", "it starts nothing: q.c reads it with trigger: false"),
        ("filtered", "no live job reads this dataset"),
    ]
    balanced(state, live(topology, "q.b"), live(topology, "q.c"))


def test_readers_in_other_dags_follow_the_current_generation(state: State) -> None:
    deployed(state, SHOP)
    topology = deployed(state, dag("report", job("sum", reads={"dataset": "clean_orders"})))
    number = staged(state, edited(SHOP, "clean", config={"v": 2})).version
    both = loaded(state)
    old, new = (live(both, "shop.clean", version) for version in (1, number))
    send(state, "p", event(old, partition_key="a"), event(new, partition_key="a"))
    router.tick(state)
    assert [row["generation_id"] for row in rows(state, schema.tasks)] == [old.outputs[0].generation_id]
    assert rows(state, schema.events)[1]["reason"].startswith("this generation is not current")
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "ada", force=True)
    send(state, "q", event(new, partition_key="a"))
    router.tick(state)
    assert len(rows(state, schema.tasks)) == 2
    assert balanced(state, new)[live(topology, "report.sum").edition_id] == {"consumed": 2}


def test_a_join_makes_one_task_when_every_input_has_the_partition(state: State) -> None:
    topology = deployed(state, JOIN)
    left, right, both = (live(topology, f"j.{name}") for name in ("left", "right", "both"))
    send(state, "l", event(left, partition_key="a"), event(left, partition_key="b"))
    router.tick(state)
    assert rows(state, schema.tasks) == []
    assert balanced(state, left)[both.edition_id] == {"pending": 2}
    assert {row["reason"] for row in rows(state, schema.deliveries)} == {
        "waits for partition a on input right",
        "waits for partition b on input right",
    }
    send(state, "r", event(right, partition_key="a"), event(right, partition_key="c"))
    send(state, "l2", event(left, partition_key="c"))
    router.tick(state)
    assert sorted(row["partition_key"] for row in rows(state, schema.tasks)) == ["a", "c"]
    assert balanced(state, left, right)[both.edition_id] == {"pending": 1, "merged": 2}
    assert balanced(state, right)[both.edition_id] == {"consumed": 2}
    outcomes = Counter(row["outcome"] for row in rows(state, schema.deliveries))
    assert outcomes == {"consumed": 2, "merged": 2, "pending": 1}


def test_a_join_that_somebody_else_made_the_task_of_is_settled(state: State) -> None:
    topology = deployed(state, JOIN)
    left, both = live(topology, "j.left"), live(topology, "j.both")
    send(state, "l", event(left, partition_key="a"), event(left, partition_key="b"))
    router.tick(state)
    with state.write() as tx:
        assert settle(tx, {(both.edition_id, "a"): "made", (both.edition_id, "z"): "other"}) == 1
        assert settle(tx, {(both.edition_id, "a"): "made"}) == 0
    assert balanced(state, left)[both.edition_id] == {"pending": 1, "merged": 1}


def test_who_waits_at_an_edition_that_is_gone_is_superseded_bit_by_bit(state: State) -> None:
    topology = deployed(state, JOIN)
    left, both = live(topology, "j.left"), live(topology, "j.both")
    send(state, "l", *(event(left, partition_key=f"p{n}") for n in range(5)))
    assert router.tick(state) == 5
    number = staged(state, edited(JOIN, "both", config={"v": 2})).version
    with state.write() as tx:
        cutover.activate(tx, "j", number, "ada", force=True)
    assert [router.tick(state, limit=3) for _ in range(3)] == [3, 2, 0]
    assert balanced(state, left)[both.edition_id] == {"superseded": 5}


def test_routers_side_by_side_lose_nothing_and_make_nothing_twice(state: State) -> None:
    topology = deployed(state, JOIN)
    left, right, both = (live(topology, f"j.{name}") for name in ("left", "right", "both"))
    problems: list[BaseException] = []

    def send_and_route(side: LiveJob, name: str) -> None:
        try:
            for n in range(12):
                send(state, f"{name}{n}", *(event(side, partition_key=f"p{n}-{m}") for m in range(3)))
                router.tick(state, limit=4)
            while router.tick(state, limit=4):
                pass
        except BaseException as error:
            problems.append(error)

    threads = [
        threading.Thread(target=send_and_route, args=(side, f"{side.job.name}{copy}"))
        for side in (left, right)
        for copy in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    while router.tick(state):
        pass
    assert len(rows(state, schema.tasks)) == 36
    totals = Counter(row["outcome"] for row in rows(state, schema.deliveries))
    assert totals == {"consumed": 36, "merged": 108}
    balanced(state, left, right)
    assert both.edition_id in balanced(state, left)
