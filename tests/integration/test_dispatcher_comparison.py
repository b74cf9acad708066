"""A version that is staged once more makes again what it had made from less than there is now, before it serves."""

from __future__ import annotations

import pytest

from qo.api.contract.task import Claimed
from qo.core.pipeline.dag import Dag
from qo.dispatcher.commits import replacing
from qo.dispatcher.engine.loops import comparison, reaper
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover, side_inputs
from qo.errors import LeaseLost, Refused
from support.dispatcher.pipeline_tasks import append, feed, row_of, succeed, tasks_of
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.rebuilds import claim, cut_over, pieces, progress, released, run, run_loops
from support.dispatcher.states import Clock

DAYS = {f"2024-01-0{day}" for day in range(1, 7)}
MONTHS = dag(
    "shop",
    source("orders"),
    source("months"),
    job("day", reads="orders"),
    job("month", reads=["months", {"job": "day", "trigger": False}]),
    job("year", reads=["months", {"job": "month", "trigger": False}]),
)
EDITED = edited(MONTHS, "day", config={"v": 2})


def of(ran: list[Claimed], name: str) -> list[Claimed]:
    return [each for each in ran if each.work.job == name]


def serving(state: State, wanted: Dag = MONTHS) -> None:
    deployed(state, wanted)
    for day in sorted(DAYS):
        feed(state, live(loaded(state), "shop.orders"), day)
    feed(state, live(loaded(state), "shop.months"), "2024-01")
    run(state)


def forced_and_rolled_back(state: State) -> None:
    """Version 2 served while half of its days were made, and its month was made of those."""
    serving(state)
    staged(state, EDITED)
    run_loops(state)
    for each in released(state, "day")[:3]:
        succeed(state, claim(state, each))
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests", force=True)
    run_loops(state)
    [month] = released(state, "month")
    taken = claim(state, month)
    assert len(pieces(taken, "day")) == 3
    succeed(state, taken)
    with state.write() as tx:
        cutover.rollback(tx, "shop", "tests")


def test_what_was_made_of_incomplete_inputs_is_made_again_before_the_version_serves(state: State) -> None:
    forced_and_rolled_back(state)
    staged(state, EDITED, again=True)
    assert not progress(state, "shop", 2).caught_up
    with (
        state.write() as tx,
        pytest.raises(Refused, match="still being rebuilt: month waits for side inputs"),
    ):
        cutover.mark_ready(tx, "shop", 2, "tests")
    ran = run(state)
    assert [each.work.job for each in ran] == ["day", "day", "day", "month", "year"]
    assert pieces(of(ran, "month")[0], "day") == DAYS
    assert progress(state, "shop", 2).caught_up
    cut_over(state, "shop", 2)


def test_a_version_that_is_staged_again_is_compared_even_if_it_has_nothing_to_do(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    run(state)
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "tests")
    # Of all who read days, only those of the first version hear of this one.
    feed(state, live(loaded(state), "shop.orders"), "2024-01-07")
    run(state)
    staged(state, EDITED)
    assert not progress(state, "shop", 2).caught_up
    ran = run(state)
    assert [each.work.job for each in ran] == ["day", "month", "year"]
    assert pieces(of(ran, "month")[0], "day") == DAYS | {"2024-01-07"}
    assert progress(state, "shop", 2).caught_up


def test_what_was_made_of_all_there_is_is_not_made_again(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    run(state)
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "tests")
    staged(state, EDITED)
    found = progress(state, "shop", 2)
    assert ([each.job for each in found.waits], found.caught_up) == (["month", "year"], False)
    assert found.waits[0].reason == "its earlier output is being compared with its side inputs"
    assert run(state) == []
    assert progress(state, "shop", 2).caught_up


def test_it_is_compared_once_for_each_time_that_it_is_staged(state: State) -> None:
    """Later changes are to it as to a version that serves: inputs that keep changing do not keep it from serving."""
    serving(state)
    staged(state, EDITED)
    run(state)
    feed(state, live(loaded(state), "shop.orders"), "2024-01-07")
    ran = [each for each in run(state) if each.work.version == 2]
    assert [each.work.job for each in ran] == ["day"]
    assert progress(state, "shop", 2).caught_up


def test_an_attempt_that_began_before_is_waited_for_and_then_made_again(state: State) -> None:
    serving(state)
    staged(state, EDITED)
    run_loops(state)
    for each in released(state, "day"):
        succeed(state, claim(state, each))
    run_loops(state)
    [began] = [claim(state, each) for each in released(state, "month")]
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "tests")
    feed(state, live(loaded(state), "shop.orders"), "2024-01-07")
    run(state)
    staged(state, EDITED)  # Takes back that the attempt should stop.
    assert [each.work.job for each in run(state)] == ["day"]
    assert not progress(state, "shop", 2).caught_up
    succeed(state, began)
    [month] = of(run(state), "month")
    assert pieces(month, "day") == DAYS | {"2024-01-07"}


def test_the_late_reply_of_an_attempt_that_began_before_does_not_count(state: State, state_clock: Clock) -> None:
    serving(state)
    staged(state, EDITED)
    run_loops(state)
    for each in released(state, "day"):
        succeed(state, claim(state, each))
    run_loops(state)
    [began] = [claim(state, each) for each in released(state, "month")]
    state_clock.advance(120)
    assert reaper.tick(state) == 1
    feed(state, live(loaded(state), "shop.orders"), "2024-01-07")
    with state.write() as tx:
        edition = live(loaded(state), "shop.month", 2).edition_id
        side_inputs.forget(tx, [edition])  # As if it were staged once more.
    run(state)
    assert row_of(state, began.work.task_id)["late_lease_id"] is None
    with pytest.raises(LeaseLost):
        succeed(state, began)


def test_many_are_compared_page_by_page(state: State) -> None:
    deployed(state, MONTHS)
    feed(state, live(loaded(state), "shop.orders"), "2024-01-01")
    for month in range(1, 8):
        feed(state, live(loaded(state), "shop.months"), f"2024-0{month}")
    run(state)
    staged(state, EDITED)
    run(state)
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "tests")
    feed(state, live(loaded(state), "shop.orders"), "2024-01-02")
    run(state)
    staged(state, EDITED)
    while not progress(state, "shop", 2).caught_up:
        comparison.tick(state, limit=2)
        run(state, rounds=1)
    months = tasks_of(state, live(loaded(state), "shop.month", 2))
    assert [each["status"] for each in months] == ["completed"] * 14


def test_who_follows_a_cursor_reads_its_whole_range_again(state: State) -> None:
    wanted = dag(
        "shop",
        source("ticks"),
        source("orders"),
        job("day", reads="orders"),
        job("follow", reads=["ticks", {"job": "day", "trigger": False}], execution_strategy="PerUpdate"),
    )
    changed = edited(wanted, "day", config={"v": 2})
    deployed(state, wanted)
    feed(state, live(loaded(state), "shop.orders"), "2024-01-01")
    for cursor in (3, 7):
        append(state, live(loaded(state), "shop.ticks"), cursor)
        run(state, commit_cursor)
    staged(state, changed)
    run(state, commit_cursor)
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "tests")
    feed(state, live(loaded(state), "shop.orders"), "2024-01-02")
    run(state, commit_cursor)
    staged(state, changed)
    ran = run(state, commit_cursor)
    [follow] = of(ran, "follow")
    assert pieces(follow, "day") == {"2024-01-01", "2024-01-02"}
    [ticks] = [each for each in follow.work.inputs if each.name == "ticks"]
    assert (ticks.cursor_after, ticks.cursor_upto) == (None, 7)
    with state.read() as tx:
        made = live(loaded(state), "shop.follow", 2).outputs[0].generation_id
        assert [each["task_id"] for each in tx.all(replacing.stands(made))] == [follow.work.task_id]
    assert progress(state, "shop", 2).caught_up


def commit_cursor(state: State, held: Claimed) -> None:
    succeed(state, held, **({} if held.work.cursor is None else {"cursor": held.work.cursor}))


# Inputs that start a job, and are read beside by tasks that another one has started


ANY = dag(
    "shop",
    source("orders"),
    source("months"),
    job("day", reads="orders"),
    job("both", reads=["months", "day"]),
)


def test_of_inputs_with_the_same_partitions_the_last_task_has_read_both(state: State) -> None:
    wanted = dag("shop", source("a"), source("b"), job("left", reads="a"), job("right", reads="b"))
    wanted = dag("shop", *wanted.jobs, job("both", reads=["left", "right"]))
    deployed(state, wanted)
    for key in ("k", "l"):
        feed(state, live(loaded(state), "shop.a"), key)
        feed(state, live(loaded(state), "shop.b"), key)
    run(state)
    staged(state, edited(edited(wanted, "left", config={"v": 2}), "right", config={"v": 2}))
    run_loops(state)
    for name in ("left", "right"):
        for each in released(state, name):
            succeed(state, claim(state, each))
        run_loops(state)
        for each in released(state, "both"):  # Those of left read before there is anything of right.
            succeed(state, claim(state, each))
    assert run(state) == []
    assert progress(state, "shop", 2).caught_up
    done = tasks_of(state, live(loaded(state), "shop.both", 2))
    assert sorted(each["partition_key"] for each in done) == ["k", "k", "l", "l"]


def test_of_inputs_with_other_partitions_what_was_read_too_early_is_read_again(state: State) -> None:
    deployed(state, ANY)
    feed(state, live(loaded(state), "shop.months"), "2024-01")
    for day in sorted(DAYS):
        feed(state, live(loaded(state), "shop.orders"), day)
    run(state)
    staged(state, edited(ANY, "day", config={"v": 2}))
    ran = [each for each in run(state) if each.work.partition_key == "2024-01"]
    assert [len(pieces(each, "day")) for each in ran] == [0, 6]
    assert progress(state, "shop", 2).caught_up
