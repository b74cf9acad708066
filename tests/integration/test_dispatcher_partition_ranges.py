"""The grid of a pipeline with very many partitions: ranges of keys, with counts by state."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.first_pages import GridRangesAnswer
from qo.api.contract.task import Claimed, ClaimRequest, Outcome, OutputBody
from qo.dispatcher.attempts import claiming
from qo.dispatcher.engine.loops import invalidation, router
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.views import partition_grid, partition_ranges
from qo.errors import NotFound
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, edited, job, source, staged
from support.dispatcher.shop_tasks import emit, finish, tasks
from support.dispatcher.statement_counts import counted
from support.dispatcher.wide_pipelines import fill_wide, key

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", max_attempts=1),
    job("tell", reads="clean", outputs=0),
)
DAYS = [f"2024-01-{day:02}" for day in range(1, 11)]


def ranges_of(state: State, name: str = "shop", **which: Any) -> GridRangesAnswer:
    with state.read() as tx:
        return partition_ranges.show_ranges(tx, name, **which)


def counts(answer: GridRangesAnswer, of: str, status: str) -> list[int]:
    (row,) = [each for each in answer.rows if each.job == of] or [None]
    return [0] * len(answer.ranges) if row is None else getattr(row, status)


@pytest.fixture
def shop(state: State) -> State:
    """Ten days: the first three are clean and told of, the fourth runs, the fifth has failed, the others wait."""
    deployed(state, SHOP)
    for day in DAYS:
        emit(state, "shop.orders", day, partition_key=day)
    by_key = {each["partition_key"]: each["id"] for each in tasks(state, "shop.clean")}
    for day in DAYS[:3]:
        finish(state, by_key[day], outputs=[OutputBody(output=0, rows=1)])
    router.tick(state)
    for each in tasks(state, "shop.tell"):
        finish(state, each["id"])
    with state.write() as tx:
        woken(tx, by_key[DAYS[3]])
        assert isinstance(
            claiming.claim(tx, ClaimRequest(task_id=by_key[DAYS[3]], worker_id="w"), "file:/data"), Claimed
        )
    finish(state, by_key[DAYS[4]], outcome=Outcome.FATAL, error="no")
    return state


def test_ranges_count_what_is_done_runs_waits_and_has_failed(shop: State) -> None:
    answer = ranges_of(shop, ranges=5)
    assert [(each.first, each.last, each.keys) for each in answer.ranges] == [
        (DAYS[n], DAYS[n + 1], 2) for n in range(0, 10, 2)
    ]
    assert (answer.keys, answer.older, answer.version) == (10, None, 1)
    assert [each.job for each in answer.rows] == ["orders", "clean", "tell"]
    assert counts(answer, "orders", "done") == [2, 2, 2, 2, 2]
    assert counts(answer, "clean", "done") == [2, 1, 0, 0, 0]
    assert counts(answer, "clean", "running") == [0, 1, 0, 0, 0]
    assert counts(answer, "clean", "failed") == [0, 0, 1, 0, 0]
    assert counts(answer, "clean", "waiting") == [0, 0, 1, 2, 2]
    assert counts(answer, "tell", "done") == [2, 1, 0, 0, 0]
    assert not any(each.at_least for each in answer.rows)


def test_a_range_can_be_split_further_down_to_single_keys(shop: State) -> None:
    (first, second) = ranges_of(shop, ranges=2).ranges
    inner = ranges_of(shop, ranges=5, from_key=first.from_key, before=first.before)
    assert [(each.first, each.last) for each in inner.ranges] == [(day, day) for day in DAYS[:5]]
    last = ranges_of(shop, ranges=5, from_key=second.from_key, before=second.before)
    assert [each.first for each in last.ranges] == DAYS[5:]
    with shop.read() as tx:
        grid = partition_grid.show_grid(tx, "shop", from_key=first.from_key, before=first.before)
    assert grid.keys == DAYS[4::-1]


def test_every_key_is_in_exactly_one_range(state: State) -> None:
    """Also keys of jobs whose keys are not those of the longest one, before and after them all."""
    deployed(state, SHOP)
    for day in DAYS[1:-1]:
        emit(state, "shop.orders", day, partition_key=day)
    router.tick(state)
    (one,) = tasks(state, "shop.clean")[:1]
    with state.write() as tx:
        for key_, id_ in (("0000", "a"), ("2024-01-03T12", "b"), ("zzzz", "c")):
            copy = {**one, "id": id_, "dedupe_key": id_, "partition_key": key_}
            tx.insert(schema.tasks, [copy])
    for ranges in (1, 3, 4, 100):
        assert sum(counts(ranges_of(state, ranges=ranges), "clean", "waiting")) == 11
    parts = ranges_of(state, ranges=3).ranges
    zoomed = [ranges_of(state, ranges=2, from_key=each.from_key, before=each.before) for each in parts]
    assert sum(sum(counts(each, "clean", "waiting")) for each in zoomed) == 11


def test_a_failure_that_was_mended_is_counted_as_done(shop: State) -> None:
    emit(shop, "shop.orders", "again", partition_key=DAYS[4])
    while invalidation.tick(shop):
        pass
    again = [each for each in tasks(shop, "shop.clean") if each["partition_key"] == DAYS[4]]
    (pending,) = [each for each in again if each["status"] == "pending"]
    finish(shop, pending["id"], outputs=[OutputBody(output=0)])
    answer = ranges_of(shop, ranges=5)
    assert counts(answer, "clean", "failed") == [0] * 5
    assert counts(answer, "clean", "done") == [2, 1, 1, 0, 0]


def test_open_work_beyond_the_bound_is_said_to_be_more(shop: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_ranges, "OPEN_MAX", 2)
    answer = ranges_of(shop, ranges=1)
    assert counts(answer, "clean", "waiting") == [2]
    assert [each.at_least for each in answer.rows] == [False, True, True]


def test_older_keys_follow_where_the_counted_ones_begin(shop: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_ranges, "COUNTED_MAX", 3 * 4)
    newest = ranges_of(shop, ranges=2)
    assert ([each.first for each in newest.ranges], newest.older) == ([DAYS[6], DAYS[8]], DAYS[6])
    older = ranges_of(shop, ranges=2, before=newest.older)
    assert ([each.first for each in older.ranges], older.older) == ([DAYS[2], DAYS[4]], DAYS[2])
    oldest = ranges_of(shop, ranges=2, before=older.older)
    assert ([each.first for each in oldest.ranges], oldest.older) == (DAYS[:2], None)


def test_a_pipeline_without_partitions_has_no_ranges(state: State) -> None:
    deployed(state, SHOP)
    answer = ranges_of(state)
    assert (answer.keys, answer.ranges, answer.rows) == (0, [], [])
    with pytest.raises(NotFound, match="there is no DAG 'nothing'"):
        ranges_of(state, "nothing")


def test_a_version_that_is_being_built_has_ranges_of_its_own(shop: State) -> None:
    number = staged(shop, edited(SHOP, "clean", config={"v": 2})).version
    answer = ranges_of(shop, version=number, ranges=1)
    assert counts(answer, "orders", "done") == [10]
    assert counts(answer, "clean", "done") == [0]


def test_what_ranges_cost_depends_on_jobs_and_not_on_partitions(state: State) -> None:
    fill_wide(state, 3_000, jobs=4, lag=500)
    statements: list[int] = []
    sizes: list[int] = []
    for which in ({}, {"from_key": key(1_000), "before": key(1_100)}):
        ranges_of(state, "wide", ranges=50, **which)
        with counted(state) as counts_:
            answer = ranges_of(state, "wide", ranges=50, **which)
        statements.append(counts_.statements)
        sizes.append(len(answer.model_dump_json()))
    assert statements[0] == statements[1] <= 20
    assert max(sizes) < 12_000
    assert [sum(counts(ranges_of(state, "wide"), name, "done")) for name in ("orders", "step_03")] == [
        3_000,
        1_500,
    ]


def test_partitions_are_counted_from_the_primary_key_alone(state: State) -> None:
    fill_wide(state, 2_000, jobs=2)
    asked: list[tuple[str, Any]] = []
    sa.event.listen(state.engine, "before_cursor_execute", lambda *a: asked.append((a[2], a[3])))
    ranges_of(state, "wide")
    plans: list[str] = []
    with state.read() as tx:
        explain = "EXPLAIN" if tx.on_postgres else "EXPLAIN QUERY PLAN"
        for text, values in [each for each in asked if "UNION ALL SELECT b.n" in each[0]]:
            plans += [str(row) for row in tx.connection.exec_driver_sql(f"{explain} {text}", values)]
    plan = "\n".join(plans)
    assert (
        "Index Only Scan using pk_partitions" in plan
        if state.engine.dialect.name == "postgresql"
        else ("USING COVERING INDEX" in plan)
    ), plan
    assert "SCAN partitions" not in plan
