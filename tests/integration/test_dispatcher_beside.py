"""A version that is built beside the active one reads inputs with ``trigger: false`` only when they are complete."""

from __future__ import annotations

from typing import Any

import pytest

from qo.api.contract.task import Claimed
from qo.core.pipeline.dag import Dag
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import cutover, overview, rebuilding, side_inputs
from qo.dispatcher.views.why import answer
from qo.errors import Refused
from support.dispatcher.pipeline_tasks import feed, manual_task, row_of, succeed, tasks_of
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.rebuilds import claim, cut_over, fail, holds, pieces, progress, released, run, run_loops

DAYS = {f"2024-01-0{day}" for day in range(1, 7)}

MONTHS = dag(
    "shop",
    source("orders"),
    source("months"),
    job("day", reads="orders"),
    job("month", reads=["months", {"job": "day", "trigger": False}]),
)
EDITED = edited(MONTHS, "day", config={"v": 2})

# A reference table that is made from a reference table.
LEVELS = dag(
    "shop",
    source("orders"),
    source("months"),
    job("day", reads="orders"),
    job("rates", reads=["months", {"job": "day", "trigger": False}]),
    job("month", reads=["months", {"job": "rates", "trigger": False}]),
)


def serving(state: State, wanted: Dag = MONTHS) -> None:
    """The first version, with six days and a month that was made of all of them."""
    deployed(state, wanted)
    for day in sorted(DAYS):
        feed(state, live(loaded(state), "shop.orders"), day)
    run(state)
    feed(state, live(loaded(state), "shop.months"), "2024-01")
    run(state)


def of(ran: list[Claimed], name: str) -> list[Claimed]:
    return [each for each in ran if each.work.job == name]


def test_a_rebuild_reads_what_the_same_version_makes_only_when_all_of_it_is_made(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    run_loops(state)
    assert {row_of(state, each)["job"] for each in released(state)} == {"day"}
    [month] = of(run(state), "month")
    assert pieces(month, "day") == DAYS
    assert progress(state, "shop", 2).caught_up
    cut_over(state, "shop", 2)


def test_who_waits_is_told_for_what(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    run_loops(state)
    assert holds(state) == ["waits for side inputs: day"]
    for each in released(state)[:2]:
        succeed(state, claim(state, each))
    run_loops(state)
    found = progress(state, "shop", 2)
    reason = "waits for side inputs: day has 4 tasks left"
    assert [(each.job, each.reason) for each in found.waits] == [("month", reason)]
    assert not found.caught_up
    [month] = tasks_of(state, live(loaded(state), "shop.month", 2))
    with state.read() as tx:
        assert answer.why(tx, month["id"]).blocked_by == f"task {month['id']} of shop.month waits: {reason}"
        lines = {each.name: each.hold for each in overview.show(tx, "shop", 2).jobs}
    assert lines["month"] == reason
    with state.write() as tx, pytest.raises(Refused, match=f"still being rebuilt: month {reason}"):
        cutover.mark_ready(tx, "shop", 2, "tests")


def test_before_tasks_are_made_it_is_told_how_many_are_to_come(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    assert [each.reason for each in progress(state, "shop", 2).waits] == [
        "waits for side inputs: day has 6 tasks left"
    ]


def test_reference_tables_of_reference_tables_are_built_one_after_the_other(state: State) -> None:
    serving(state, LEVELS)
    staged(state, edited(LEVELS, "day", config={"v": 2}))
    run_loops(state)
    assert {row_of(state, each)["job"] for each in released(state)} == {"day"}
    ran = run(state)
    assert [each.work.job for each in ran][-2:] == ["rates", "month"]
    assert pieces(of(ran, "rates")[0], "day") == DAYS
    assert pieces(of(ran, "month")[0], "rates") == {"2024-01"}
    cut_over(state, "shop", 2)


def test_the_active_version_waits_for_nobody(state: State) -> None:
    found = deployed(state, MONTHS)
    feed(state, live(found, "shop.orders"), "2024-01-01")
    feed(state, live(found, "shop.months"), "2024-01")
    run_loops(state)
    assert {row_of(state, each)["job"] for each in released(state)} == {"day", "month"}
    with state.read() as tx:
        assert side_inputs.rebuilds(tx, loaded(state)) == {}


def test_what_is_carried_over_is_waited_for_while_it_is_on_its_first_build(state: State) -> None:
    found = deployed(state, MONTHS)
    for day in sorted(DAYS):
        feed(state, live(found, "shop.orders"), day)
    feed(state, live(found, "shop.months"), "2024-01")
    staged(state, edited(MONTHS, "month", config={"v": 2}))
    run_loops(state)
    second = live(loaded(state), "shop.month", 2)
    assert {each["released_at"] for each in tasks_of(state, second)} == {None}
    ran = run(state)
    [month] = [each for each in of(ran, "month") if each.work.version == 2]
    assert pieces(month, "day") == DAYS


def test_what_failed_of_jobs_that_are_carried_over_keeps_nobody(state: State) -> None:
    found = deployed(state, MONTHS)
    for day in sorted(DAYS):
        feed(state, live(found, "shop.orders"), day)
    run(state, lambda state, held: (fail if held.work.partition_key == "2024-01-01" else succeed)(state, held))
    feed(state, live(found, "shop.months"), "2024-01")
    run(state)
    staged(state, edited(MONTHS, "month", config={"v": 2}))
    [month] = of(run(state), "month")
    assert pieces(month, "day") == DAYS - {"2024-01-01"}
    cut_over(state, "shop", 2)


def _fail_first(state: State, held: Claimed) -> Any:
    return (fail if held.work.partition_key == "2024-01-01" else succeed)(state, held)


def test_what_failed_keeps_who_reads_it_until_it_is_replayed(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    assert of(run(state, _fail_first), "month") == []
    [wait] = progress(state, "shop", 2).waits
    assert wait.reason.startswith("waits for side inputs: 1 task of day failed (replay what qo run list shop")
    assert holds(state) == ["waits for side inputs: day"]
    [failed] = [each for each in tasks_of(state, live(loaded(state), "shop.day", 2)) if each["status"] == "failed"]
    with state.write() as tx:
        operator_actions.replay(tx, failed["id"], "tests")
    [month] = of(run(state), "month")
    assert pieces(month, "day") == DAYS
    cut_over(state, "shop", 2)


def test_a_version_that_waits_only_for_what_failed_is_stuck(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    run(state, _fail_first, rounds=1)
    run_loops(state)
    found = progress(state, "shop", 2)
    assert (found.stuck, found.blocked, found.caught_up) == (True, 1, False)
    feed(state, live(loaded(state), "shop.orders"), "2024-01-07")
    run_loops(state)
    assert not progress(state, "shop", 2).stuck, "there is a day to be made"


def test_who_calls_a_version_ready_by_force_has_it_built_from_what_there_is(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    run(state, _fail_first)
    with state.write() as tx, pytest.raises(Refused, match="1 of its tasks failed"):
        cutover.mark_ready(tx, "shop", 2, "tests")
    with state.write() as tx:
        assert cutover.mark_ready(tx, "shop", 2, "tests", force=True).left == 1
    [month] = of(run(state), "month")
    assert pieces(month, "day") == DAYS - {"2024-01-01"}
    assert progress(state, "shop", 2).waits == []


def test_events_that_come_while_it_is_built_are_waited_for(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    run(state, rounds=1)
    feed(state, live(loaded(state), "shop.orders"), "2024-01-07")
    with state.read() as tx:
        found = loaded(state)
        rebuild = side_inputs.rebuilds(tx, found)[live(found, "shop.month", 2).edition_id]
        assert rebuilding.explain(tx, rebuild) == (
            "waits for side inputs: events that day reads are not routed yet"
        )
    ran = run(state)
    assert pieces(of(ran, "month")[-1], "day") == DAYS | {"2024-01-07"}
    feed(state, live(loaded(state), "shop.orders"), "2024-01-08")
    feed(state, live(loaded(state), "shop.months"), "2024-02")
    [february] = [each for each in of(run(state), "month") if each.work.version == 2]
    assert "2024-01-08" in pieces(february, "day")


def test_a_version_that_takes_the_place_of_a_staged_one_waits_again(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    run(state, rounds=1)
    run_loops(state)
    assert {row_of(state, each)["job"] for each in released(state)} == {"month"}
    # Its month is another one, and so is its day, of which nothing is there.
    staged(state, edited(MONTHS, "day", config={"v": 3}))
    run_loops(state)
    assert {row_of(state, each)["job"] for each in released(state)} == {"day"}
    [month] = of(run(state), "month")
    assert (month.work.version, pieces(month, "day")) == (3, DAYS)


def test_inputs_of_other_dags_are_never_waited_for(state: State) -> None:
    """Data go from one DAG to the other and back: new versions of both do not wait for each other."""
    first = dag("one", source("a"), job("left", reads="a"), publish={"left": "left"})
    deployed(state, first)
    second = dag(
        "two",
        source("b"),
        job("right", reads=["b", {"dataset": "left", "trigger": False}]),
        publish={"right": "right"},
    )
    deployed(state, second)
    back = job("back", reads=["a", {"dataset": "right", "trigger": False}])
    feed(state, live(loaded(state), "one.a"), "k")
    feed(state, live(loaded(state), "two.b"), "k")
    run(state)
    staged(state, edited(dag("one", *first.jobs, back, publish={"left": "left"}), "left", config={"v": 2}))
    staged(state, edited(second, "right", config={"v": 2}))
    run_loops(state)
    assert {row_of(state, each)["job"] for each in released(state)} == {"left", "right", "back"}
    run(state)
    cut_over(state, "one", 2)
    cut_over(state, "two", 2)


def test_an_always_on_source_is_not_waited_for(state: State) -> None:
    wanted = dag(
        "shop",
        source("ticks", "always_on"),
        source("months"),
        job("follow", reads="ticks", execution_strategy="PerUpdate"),
        job("month", reads=["months", {"job": "follow", "trigger": False}]),
    )
    found = deployed(state, wanted)
    claim(state, manual_task(state, live(found, "shop.ticks"), "runs for ever"))
    feed(state, live(found, "shop.months"), "2024-01")
    run(state)
    staged(state, edited(wanted, "follow", config={"v": 2}))
    assert [each.work.version for each in of(run(state), "month")] == [2]
