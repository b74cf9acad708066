"""``refresh: on_change``: what a changed input made stale is made again, once, and nothing else is."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from qo.api.contract.task import Outcome
from qo.core.task import Status
from qo.dispatcher.engine.loops import invalidation, refresh
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import marks
from support.dispatcher.pipeline_tasks import claimed, finish, route_all, settle, succeed, tasks_of
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.stale_pipelines import (
    activate,
    announce,
    ask_why,
    calendar,
    open_tasks,
    partition,
    run_all,
    stale_keys,
)
from support.dispatcher.states import Clock


def built(state: State, how: str = "on_change", days: int = 3) -> None:
    """Days and their rates, and two months."""
    deployed(state, calendar(how))
    keys = [f"d{n}" for n in range(days)]
    announce(state, "shop.rates", *keys)
    announce(state, "shop.days", *keys)
    run_all(state)
    announce(state, "shop.months", "m1", "m2")
    run_all(state)
    assert refresh.tick(state) == 0


def test_by_default_inputs_read_beside_start_nothing(state: State) -> None:
    built(state, "manual")
    announce(state, "shop.rates", "d0")
    announce(state, "shop.days", "d1")
    run_all(state)
    assert refresh.tick(state) == 0
    assert stale_keys(state, "shop.month") == ["m1", "m2"]
    assert stale_keys(state, "shop.sales") == ["d0"]


def test_all_that_was_made_from_the_whole_input_is_made_again(state: State) -> None:
    built(state)
    announce(state, "shop.days", "d1")
    settle(state)
    assert refresh.tick(state) == 2
    assert open_tasks(state, "shop.month") == ["m1", "m2"]
    run_all(state)
    assert stale_keys(state, "shop.month") == []


def test_only_what_was_made_from_the_changed_partition_is_made_again(state: State) -> None:
    built(state)
    announce(state, "shop.rates", "d1")
    settle(state)
    assert refresh.tick(state) == 1
    assert open_tasks(state, "shop.sales") == ["d1"]
    run_all(state)
    assert stale_keys(state, "shop.sales") == []


def test_without_a_change_nothing_is_made_again(state: State) -> None:
    built(state)
    before = len(tasks_of(state, live(loaded(state), "shop.month")))
    announce(state, "shop.months", "m3")
    run_all(state)
    assert len(tasks_of(state, live(loaded(state), "shop.month"))) == before + 1
    with state.read() as tx:
        assert refresh.due_jobs(tx, topology.load(tx)) == []


def test_changes_are_gathered_while_a_task_waits(state: State) -> None:
    built(state)
    for _ in range(4):
        announce(state, "shop.days", "d1")
        settle_days(state)
        refresh.tick(state)
    assert open_tasks(state, "shop.month") == ["m1", "m2"]
    run_all(state)
    assert stale_keys(state, "shop.month") == []


def settle_days(state: State) -> None:
    """All but the months: their tasks go on waiting."""
    route_all(state)
    while invalidation.tick(state):
        pass
    for each in tasks_of(state, live(loaded(state), "shop.day")):
        if each["status"] == Status.PENDING:
            succeed(state, claimed(state, each["id"]))
    route_all(state)


def test_a_running_task_that_has_read_older_data_gets_a_successor(state: State) -> None:
    built(state)
    announce(state, "shop.days", "d1")
    settle_days(state)
    assert refresh.tick(state) == 2
    waiting = [t for t in tasks_of(state, live(loaded(state), "shop.month")) if t["status"] == Status.PENDING]
    held = [claimed(state, each["id"]) for each in waiting]
    assert refresh.tick(state) == 0  # They have read what is newest.
    announce(state, "shop.days", "d2")
    settle_days(state)
    assert refresh.tick(state) == 2
    assert open_tasks(state, "shop.month") == ["m1", "m1", "m2", "m2"]
    for each in held:
        succeed(state, each)
    assert stale_keys(state, "shop.month") == ["m1", "m2"]
    run_all(state)
    assert stale_keys(state, "shop.month") == []


def test_the_slower_of_two_does_not_bring_old_data_back(state: State) -> None:
    built(state)
    announce(state, "shop.days", "d1")
    settle_days(state)
    refresh.tick(state)
    first = next(t for t in tasks_of(state, live(loaded(state), "shop.month")) if t["status"] == Status.PENDING)
    slow = claimed(state, first["id"])
    announce(state, "shop.days", "d2")
    settle_days(state)
    run_all_but(state, slow.work.task_id)
    made = partition(state, "shop.month", first["partition_key"]).revision
    succeed(state, slow)
    assert partition(state, "shop.month", first["partition_key"]).revision == made
    run_all(state)
    assert stale_keys(state, "shop.month") == []


def run_all_but(state: State, task_id: str) -> None:
    for _ in range(5):
        refresh.tick(state)
        settle(state)
    assert [
        t["id"] for t in tasks_of(state, live(loaded(state), "shop.month")) if t["status"] == Status.RUNNING
    ] == [task_id]


def test_what_is_committed_stale_for_the_first_time_is_made_again(state: State) -> None:
    built(state)
    announce(state, "shop.months", "m3")
    settle_days(state)
    first = next(t for t in tasks_of(state, live(loaded(state), "shop.month")) if t["status"] == Status.PENDING)
    held = claimed(state, first["id"])
    announce(state, "shop.days", "d1")
    settle_days(state)
    while refresh.tick(state):
        settle(state)
    succeed(state, held)
    assert stale_keys(state, "shop.month") == ["m3"]
    run_all(state)
    assert stale_keys(state, "shop.month") == []


def test_changes_that_keep_arriving_starve_nobody(state: State) -> None:
    built(state)
    announce(state, "shop.months", *(f"n{n}" for n in range(9)))
    run_all(state)
    months = live(loaded(state), "shop.month")
    known = {each["id"] for each in tasks_of(state, months)}
    for _ in range(16):
        announce(state, "shop.days", "d1")
        settle_days(state)
        refresh.tick(state, limit=2)
    again = {each["partition_key"] for each in tasks_of(state, months) if each["id"] not in known}
    assert again == {"m1", "m2", *(f"n{n}" for n in range(9))}


def test_a_step_is_bounded_and_the_next_goes_on(state: State) -> None:
    built(state)
    announce(state, "shop.months", *(f"n{n}" for n in range(5)))
    run_all(state)
    announce(state, "shop.days", "d1")
    settle_days(state)
    made: list[int] = []
    while (did := refresh.tick(state, limit=3)) and len(made) < 20:
        made.append(did)
    assert max(made) <= 3
    assert len(open_tasks(state, "shop.month")) == 7


def test_two_levels_are_made_again_one_after_the_other(state: State) -> None:
    beside = {"trigger": False, "refresh": "on_change"}
    deployed(
        state,
        dag(
            "shop",
            *map(source, ("days", "months", "years")),
            job("day", reads="days"),
            job("month", reads=["months", {"job": "day", **beside}]),
            job("year", reads=["years", {"job": "month", **beside}]),
        ),
    )
    announce(state, "shop.days", "d1", "d2")
    run_all(state)
    announce(state, "shop.months", "m1", "m2")
    run_all(state)
    announce(state, "shop.years", "y1")
    run_all(state)
    before = partition(state, "shop.year", "y1").revision
    announce(state, "shop.days", "d2")
    run_all(state)
    assert partition(state, "shop.year", "y1").revision > before
    for name in ("shop.day", "shop.month", "shop.year"):
        assert stale_keys(state, name) == []


def test_joined_partitions_are_made_again_once(state: State) -> None:
    reads = ["left", "right", {"job": "rates", "trigger": False, "refresh": "on_change"}]
    deployed(state, dag("shop", *map(source, ("left", "right", "rates")), job("both", reads=reads, join="all")))
    announce(state, "shop.rates", "p")
    announce(state, "shop.left", "p", "q")
    announce(state, "shop.right", "p")
    run_all(state)
    announce(state, "shop.rates", "p")
    settle(state)
    assert refresh.tick(state) == 1
    assert open_tasks(state, "shop.both") == ["p"]
    run_all(state)
    assert stale_keys(state, "shop.both") == []


def test_each_part_that_was_appended_is_made_again(state: State) -> None:
    appending = {"update_strategy": "append", "unique_key": ["id"]}
    reads = ["left", "right", {"job": "rates", "trigger": False, "refresh": "on_change"}]
    deployed(state, dag("shop", *map(source, ("left", "right", "rates")), job("both", reads=reads, **appending)))
    announce(state, "shop.rates", "p")
    announce(state, "shop.left", "p")
    announce(state, "shop.right", "p")
    run_all(state)
    rows = partition(state, "shop.both", "p").rows
    announce(state, "shop.rates", "p")
    settle(state)
    assert refresh.tick(state) == 2
    run_all(state)
    assert stale_keys(state, "shop.both") == []
    assert partition(state, "shop.both", "p").rows == rows  # Each in place of what it had added before.


def test_a_refresh_that_failed_is_tried_again_with_the_next_change_and_not_before(state: State) -> None:
    built(state)
    announce(state, "shop.rates", "d1")
    settle(state)
    assert refresh.tick(state) == 1
    sales = live(loaded(state), "shop.sales")
    [task] = [each for each in tasks_of(state, sales) if each["status"] == Status.PENDING]
    finish(state, claimed(state, task["id"]), Outcome.FATAL, error="no")
    run_all(state)
    answer = ask_why(state, "shop.sales@d1")
    assert "should have been remade, but was not" in answer.lines[0]
    assert answer.do is not None
    assert f"qo run replay {task['id']}" in answer.do
    announce(state, "shop.rates", "d1")
    run_all(state)
    assert stale_keys(state, "shop.sales") == []


def test_what_was_stale_before_it_was_asked_for_is_made_again(state: State) -> None:
    built(state, "manual")
    announce(state, "shop.days", "d1")
    run_all(state)
    edition = live(loaded(state), "shop.month").edition_id
    staged(state, calendar("on_change"))
    activate(state, "shop", 2)
    assert live(loaded(state), "shop.month").edition_id == edition  # Nothing is built anew for it.
    run_all(state)
    assert stale_keys(state, "shop.month") == []


def test_another_generation_of_another_dag_has_all_made_again(state: State) -> None:
    prices = dag("prices", source("list"), job("clean", reads="list"), publish={"prices": "clean"})
    beside = {"dataset": "prices", "trigger": False, "refresh": "on_change"}
    deployed(state, prices)
    announce(state, "prices.list", "p")
    deployed(state, dag("shop", source("days"), job("sales", reads=["days", beside])))
    announce(state, "shop.days", "d1", "d2")
    run_all(state)
    staged(state, edited(prices, "clean", config={"a": 1}))
    run_all(state)
    activate(state, "prices", 2)
    assert stale_keys(state, "shop.sales") == ["d1", "d2"]
    run_all(state)
    assert stale_keys(state, "shop.sales") == []


def test_everything_is_compared_once_more_from_time_to_time(state: State, state_clock: Clock) -> None:
    built(state)
    announce(state, "shop.rates", "d1")
    settle(state)
    assert refresh.tick(state) == 1
    sales = live(loaded(state), "shop.sales")
    [task] = [each for each in tasks_of(state, sales) if each["status"] == Status.PENDING]
    with state.write() as tx:
        tx.execute(sa.delete(schema.tasks).where(schema.tasks.c.id == task["id"]))
    assert refresh.tick(state) == 0
    state_clock.advance(marks.FULL_PASS_S)
    assert refresh.tick(state) == 1


def test_who_has_no_such_inputs_is_asked_for_nothing(state: State) -> None:
    deployed(state, calendar("manual"))
    announce(state, "shop.days", "d1")
    refresh.tick(state)
    asked: list[str] = []

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    sa.event.listen(state.engine, "before_cursor_execute", note)
    refresh.tick(state)
    assert [each for each in asked if "FROM" in each and "topology" not in each] == []


def test_a_commit_wakes_the_loop_only_if_it_concerns_it(state: State) -> None:
    built(state)
    for name, woken in (("shop.days", False), ("shop.rates", True)):
        job_ = live(loaded(state), name)
        assert (job_.outputs[0].dataset_id in loaded(state).compared) is woken


@pytest.mark.parametrize("limit", [1, 500])
def test_marks_cost_as_much_as_is_new(state: State, limit: int) -> None:
    built(state)
    steps = 0
    announce(state, "shop.rates", "d1")
    settle(state)
    while refresh.tick(state, limit=limit):
        steps += 1
    assert steps <= 2
