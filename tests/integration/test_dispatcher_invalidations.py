"""What was read and is no longer true is read again, by those who read it and by nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from qo.api.contract.task import Claimed
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.commits import replacing
from qo.dispatcher.engine.loops import invalidation
from qo.dispatcher.events import invalidations
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import NotFound, UsageError
from support.dispatcher.pipeline_tasks import (
    all_of,
    append,
    ask,
    claimed,
    cursor_task,
    feed,
    partition_task,
    route_all,
    settle,
    succeed,
    tasks_of,
)
from support.dispatcher.pipelines import dag, deployed, job, live, source

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders"),
    job("daily", reads="clean"),
    job("other", reads="orders"),
    job("alert", reads="daily", outputs=0),
)


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def open_ones(state: State) -> list[dict[str, object]]:
    return [each for each in all_of(state, schema.invalidations) if each["processed_at"] is None]


def test_a_replaced_partition_cascades_to_the_end_and_no_further(state: State, shop: Topology) -> None:
    orders = live(shop, "shop.orders")
    feed(state, orders, "p", "1")
    feed(state, orders, "q", "1")
    assert settle(state) == 8
    feed(state, orders, "p", "2")
    assert settle(state) == 4  # Each job once more, for one partition.
    assert open_ones(state) == []
    again = [each for each in all_of(state, schema.tasks) if each["invalidation_id"] is not None]
    assert {each["partition_key"] for each in again} == {"p"}
    assert {each["dedupe_key"] for each in again} == {f"invalidation:{each['invalidation_id']}" for each in again}
    assert settle(state) == 0


def test_a_reader_that_has_not_read_the_old_state_gets_no_second_task(state: State, shop: Topology) -> None:
    orders = live(shop, "shop.orders")
    feed(state, orders, "p", "1")
    route_all(state)
    feed(state, orders, "p", "2")
    assert settle(state) == 4
    readers = all_of(state, schema.invalidation_readers)
    assert {each["task_id"] for each in readers} == {None}
    assert open_ones(state) == []


def test_a_reader_in_the_middle_of_the_old_state_runs_again(state: State, shop: Topology) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    feed(state, orders, "p", "1")
    held = claimed(state, partition_task(state, clean, "p"))
    feed(state, orders, "p", "2")
    invalidation.tick(state)
    assert len(tasks_of(state, clean)) == 2
    succeed(state, held)
    settle(state)
    assert open_ones(state) == []


def test_it_is_open_until_all_readers_are_done(state: State, shop: Topology) -> None:
    orders = live(shop, "shop.orders")
    feed(state, orders, "p", "1")
    settle(state)
    feed(state, orders, "p", "2")
    invalidation.tick(state)
    [id_] = [str(each["id"]) for each in open_ones(state)]
    waiting = [each for each in all_of(state, schema.tasks) if each["status"] == "pending"]
    assert {each["job"] for each in waiting} == {"clean", "other"}
    succeed(state, claimed(state, waiting[0]["id"]))
    assert id_ in {each["id"] for each in open_ones(state)}
    succeed(state, claimed(state, waiting[1]["id"]))
    assert id_ not in {each["id"] for each in open_ones(state)}
    readers = [each for each in all_of(state, schema.invalidation_readers) if each["invalidation_id"] == id_]
    assert [each["processed_at"] is not None for each in readers] == [True, True]


def test_one_commit_more_while_the_last_is_being_read_again_is_not_lost(state: State, shop: Topology) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    feed(state, orders, "p", "1")
    settle(state)
    feed(state, orders, "p", "2")
    invalidation.tick(state)
    [again] = [each for each in tasks_of(state, clean) if each["status"] == "pending"]
    held = claimed(state, again["id"])
    feed(state, orders, "p", "3")
    invalidation.tick(state)
    succeed(state, held)
    settle(state)
    [current] = [
        each for each in all_of(state, schema.partitions) if each["dataset_id"] == orders.outputs[0].dataset_id
    ]
    made = [each for each in all_of(state, schema.partitions) if each["dataset_id"] == clean.outputs[0].dataset_id]
    read = [each for each in all_of(state, schema.task_inputs) if each["task_id"] == made[0]["task_id"]]
    assert [each["revision"] for each in read] == [current["revision"]]
    assert open_ones(state) == []


def test_whoever_writes_and_reads_at_once_in_the_end_all_have_read_the_latest(
    state: State, shop: Topology
) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    keys = ["p", "q", "r"]

    def write(turn: int) -> None:
        for round_ in range(4):
            feed(state, orders, keys[(turn + round_) % 3], f"{turn}-{round_}")

    def work(_: int) -> None:
        for _ in range(6):
            route_all(state)
            invalidation.tick(state)
            for each in tasks_of(state, clean):
                if each["status"] == "pending" and isinstance(held := ask(state, each["id"]), Claimed):
                    succeed(state, held)

    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(write, turn) for turn in range(3)] + [pool.submit(work, turn) for turn in range(3)]
    for each in running:
        each.result()
    settle(state)
    partitions = all_of(state, schema.partitions)
    current = {each["partition_key"]: each["revision"] for each in of(partitions, orders)}
    makers = {each["task_id"]: each["partition_key"] for each in of(partitions, clean)}
    read = [each for each in all_of(state, schema.task_inputs) if each["task_id"] in makers]
    assert {each["partition_key"]: each["revision"] for each in read} == current
    assert set(current) == set(keys)
    assert open_ones(state) == []


def of(rows: list[dict[str, Any]], maker: LiveJob) -> list[dict[str, Any]]:
    return [each for each in rows if each["dataset_id"] == maker.outputs[0].dataset_id]


def test_a_range_is_split_into_the_partitions_it_touches(
    state: State, shop: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invalidation, "SPLIT_MAX", 2)
    orders = live(shop, "shop.orders")
    for n in range(5):
        feed(state, orders, f"k{n}", start=n * 10, end=n * 10 + 10)
    settle(state)
    made = orders.outputs[0]
    with state.write() as tx:
        invalidations.invalidate(
            tx, made.dataset_id, made.generation_id, start=15, end=30, reason="reorg", by="me", row_filter={"a": 1}
        )
    while invalidation.tick(state):
        pass
    waiting = [each for each in all_of(state, schema.tasks) if each["status"] == "pending"]
    assert {(each["job"], each["partition_key"], each["start"], each["end"]) for each in waiting} == {
        (name, key, start, start + 10) for name in ("clean", "other") for key, start in (("k1", 10), ("k2", 20))
    }
    held = claimed(state, waiting[0]["id"])
    assert held.work.row_filter == {"a": 1}
    succeed(state, held)
    settle(state)
    assert open_ones(state) == []
    assert all_of(state, schema.operator_state) == []


def test_a_job_that_follows_a_cursor_makes_the_range_once_more_and_so_do_those_behind_it(state: State) -> None:
    wanted = dag(
        "t",
        source("ticks"),
        job("follow", reads="ticks", execution_strategy="PerUpdate"),
        job("behind", reads="follow", execution_strategy="PerUpdate"),
    )
    topology = deployed(state, wanted)
    feeder, follow, behind = (live(topology, f"t.{name}") for name in ("ticks", "follow", "behind"))
    for cursor in (1, 2, 3, 4, 5):
        append(state, feeder, cursor)
    for cursor in (1, 3, 4):
        succeed(state, claimed(state, cursor_task(state, follow, cursor)))
        succeed(state, claimed(state, cursor_task(state, behind, cursor)))
    made = feeder.outputs[0]
    with state.write() as tx:
        invalidations.invalidate(tx, made.dataset_id, made.generation_id, start=3, end=4)
    while invalidation.tick(state):
        pass
    [again] = [each for each in tasks_of(state, follow) if each["invalidation_id"] is not None]
    held = claimed(state, again["id"])
    assert [each.cursor for each in held.work.inputs[0].pieces] == [2, 3]  # As it had read them together.
    with state.read() as tx:
        compared = replacing.others(tx, held.work.task_id, 0, None, None, limit=10)
    assert [each.cursor for each in compared.pieces] == [1, 4]  # It takes the place of the one between them.
    succeed(state, held)
    while invalidation.tick(state):
        pass
    [last] = [each for each in tasks_of(state, behind) if each["invalidation_id"] is not None]
    held = claimed(state, last["id"])
    assert [each.cursor for each in held.work.inputs[0].pieces] == [3]
    succeed(state, held)
    while invalidation.tick(state):
        pass
    assert open_ones(state) == []
    assert sorted(each["value"] for each in all_of(state, schema.cursors)) == [4, 4]
    segments = {each["id"]: (each["segments"], each["rows"]) for each in all_of(state, schema.generations)}
    assert segments[follow.outputs[0].generation_id] == segments[behind.outputs[0].generation_id] == (3, 30)


def test_a_cursor_task_that_was_overtaken_by_its_own_repetition_commits_nothing(state: State) -> None:
    wanted = dag("t", source("ticks"), job("follow", reads="ticks", execution_strategy="PerUpdate"))
    topology = deployed(state, wanted)
    feeder, follow = live(topology, "t.ticks"), live(topology, "t.follow")
    append(state, feeder, 1)
    slow = claimed(state, cursor_task(state, follow, 1))
    append(state, feeder, 2)
    made = feeder.outputs[0]
    with state.write() as tx:
        invalidations.invalidate(tx, made.dataset_id, made.generation_id, start=1, end=2)
    while invalidation.tick(state):
        pass
    [again] = [each for each in tasks_of(state, follow) if each["invalidation_id"] is not None]
    quick = claimed(state, again["id"])
    succeed(state, quick)
    succeed(state, slow)
    makers = {each["task_id"] for each in all_of(state, schema.commits) if each["dataset_id"] != made.dataset_id}
    assert makers == {quick.work.task_id}
    assert [each["value"] for each in all_of(state, schema.cursors)] == [1]


def test_said_again_with_its_key_it_is_the_same(state: State, shop: Topology) -> None:
    made = live(shop, "shop.orders").outputs[0]
    ids = set()
    for _ in range(2):
        with state.write() as tx:
            ids.add(
                invalidations.invalidate(tx, made.dataset_id, made.generation_id, partition_key="p", key="once")
            )
    assert len(ids) == len(all_of(state, schema.invalidations)) == 1


def test_a_scope_that_makes_no_sense_is_refused(state: State, shop: Topology) -> None:
    made = live(shop, "shop.orders").outputs[0]
    with state.write() as tx:
        for wrong in ({"start": 1}, {"start": 2, "end": 2}, {"partition_key": "not a key"}, {"reason": "whim"}):
            with pytest.raises(UsageError):
                invalidations.invalidate(tx, made.dataset_id, made.generation_id, **wrong)
        with pytest.raises(NotFound):
            invalidations.invalidate(tx, made.dataset_id, "nothing")
