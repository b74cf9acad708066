"""A plan says what deploying would build anew; deploying then builds exactly that."""

from __future__ import annotations

from typing import Any

import pytest

from qo.api.contract.planning import PlanAnswer
from qo.core.pipeline.dag import Dag
from qo.dispatcher.engine.loops import invalidation, reconciler
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover, planning
from qo.errors import NotFound
from qo.pipeline.registry import DEFAULT
from support.dispatcher.pipeline_tasks import all_of, append, claimed, feed, route_all, succeed, tasks_of
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

SHOP = dag(
    "shop",
    source("orders"),
    source("stock"),
    job("clean", reads="orders"),
    job("daily", reads=["clean", {"job": "stock", "trigger": False}]),
    job("other", reads="orders"),
    job("totals", reads="stock", execution_strategy="PerUpdate"),
    job("alert", reads="daily", outputs=0),
)


@pytest.fixture
def shop(state: State) -> None:
    topology = deployed(state, SHOP)
    for key in "abc":
        feed(state, live(topology, "shop.orders"), key)
    append(state, live(topology, "shop.stock"), 7)
    run_all(state)


def run_all(state: State) -> None:
    for _ in range(30):
        route_all(state)
        while invalidation.tick(state) or reconciler.tick(state):
            pass
        waiting = [
            each for each in all_of(state, schema.tasks) if each["status"] == "pending" and each["job"] != "alert"
        ]
        if not waiting:
            return
        for each in waiting:
            succeed(state, claimed(state, each["id"]))


def plan(state: State, wanted: Dag, **how: Any) -> PlanAnswer:
    with state.read() as tx:
        return planning.forecast(tx, wanted, DEFAULT, **how)


def test_a_plan_names_the_partitions_of_every_job_that_would_be_rebuilt(state: State, shop: None) -> None:
    before = {table.name: all_of(state, table) for table in (schema.dag_versions, schema.tasks, schema.jobs)}
    found = plan(state, edited(SHOP, "clean", config={"v": 2}))
    assert [(each.job, each.why, each.tasks, each.estimated) for each in found.rebuilds] == [
        ("clean", "edited: config.v", 3, False),
        ("daily", "reads clean, which is edited", 3, True),
        ("alert", "reads daily, which is rebuilt", 0, False),
    ]
    assert sorted(found.diff.carried_over) == ["orders", "other", "stock", "totals"]
    clean, daily, _ = found.rebuilds
    assert [each.partition_key for each in clean.first] == ["a", "b", "c"]
    assert (clean.rows, clean.bytes) == (30, 300)
    assert daily.rows == 30 + 3 * 10  # Each of its tasks reads all of what it reads beside.
    assert (found.tasks, found.rows) == (6, 90)
    assert before == {
        table.name: all_of(state, table) for table in (schema.dag_versions, schema.tasks, schema.jobs)
    }


def test_what_was_planned_is_what_is_done(state: State, shop: None) -> None:
    wanted = edited(SHOP, "clean", config={"v": 2})
    planned = {each.job: each.tasks for each in plan(state, wanted).rebuilds}
    number = staged(state, wanted).version
    run_all(state)
    done = {name: len(tasks_of(state, live(loaded(state), f"shop.{name}", number))) for name in ("clean", "daily")}
    assert done == {"clean": planned["clean"], "daily": planned["daily"]}
    with state.write() as tx:
        cutover.abandon(tx, "shop", number, "ann")
    assert [each.done for each in plan(state, wanted).rebuilds] == [3, 3, 0]


def test_partitions_come_in_pages_of_one_job(state: State, shop: None) -> None:
    wanted = edited(SHOP, "clean", config={"v": 2})
    first = plan(state, wanted, job="daily", limit=2).rebuilds[0]
    rest = plan(state, wanted, job="daily", limit=2, after=first.next).rebuilds[0]
    assert [each.partition_key for each in (*first.first, *rest.first)] == ["a", "b", "c"]
    assert rest.next is None
    with pytest.raises(NotFound):
        plan(state, wanted, job="other")


def test_new_jobs_are_planned_from_what_those_before_them_read(state: State, shop: None) -> None:
    jobs = (*SHOP.jobs, job("first", reads="orders", config={"x": 1}), job("second", reads="first"))
    found = plan(state, dag("shop", *jobs))
    assert [(each.job, each.tasks, each.estimated) for each in found.rebuilds] == [
        ("first", 3, False),
        ("second", 3, True),
    ]


def test_cursors_and_sources_say_what_becomes_of_them(state: State, shop: None) -> None:
    found = plan(state, edited(SHOP, "totals", config={"v": 2})).rebuilds
    assert [(each.job, each.tasks, each.partitions, each.rows) for each in found] == [("totals", 1, 0, 10)]
    sources = plan(state, edited(SHOP, "stock", config={"v": 2})).rebuilds
    assert next(each for each in sources if each.job == "stock").note is not None
    assert plan(state, SHOP).rebuilds == []


def test_a_dag_that_was_never_deployed_is_all_new(state: State) -> None:
    found = plan(state, SHOP)
    assert {each.why for each in found.rebuilds} == {"is new"}
    assert (found.tasks, found.diff.against) == (0, None)
