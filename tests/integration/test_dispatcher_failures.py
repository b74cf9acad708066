"""A failure is open until another task has done its work, or no live version wants it: then it is superseded."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import Outcome
from qo.api.contract.task_view import TaskRow
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.engine.loops import invalidation
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import creation, failures, operator_actions
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.versions import cutover, overview, rebuilding
from qo.dispatcher.views.why.answer import why
from qo.errors import Refused
from support.dispatcher.pipeline_tasks import (
    append,
    claimed,
    cursor_task,
    feed,
    finish,
    partition_task,
    route_all,
    row_of,
    settle,
    succeed,
    tasks_of,
)
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("orders"),
    source("log", update_strategy="append"),
    job("clean", reads="orders"),
    job("both", reads=["orders", "clean"], update_strategy="append"),
    job("sums", reads="log", execution_strategy="PerUpdate"),
)


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def fail(state: State, task_id: str) -> str:
    finish(state, claimed(state, task_id), Outcome.FATAL, error="it is broken")
    return task_id


def failed(state: State, **how: Any) -> list[TaskRow]:
    with state.read() as tx:
        return operator_actions.list_tasks(tx, status="failed", **how).tasks


def ids(found: list[TaskRow]) -> set[str]:
    return {each.id for each in found}


def corrected(state: State, orders: LiveJob, clean: LiveJob, key: str, run: str = "2") -> str:
    """The partition is committed once more, and its reader gets a task of its own for that; which succeeds."""
    known = {each["id"] for each in tasks_of(state, clean)}
    feed(state, orders, key, run)
    route_all(state)
    while invalidation.tick(state):
        pass
    [new] = {each["id"] for each in tasks_of(state, clean)} - known
    succeed(state, claimed(state, new))
    return new


def test_a_failure_is_open_until_its_partition_is_committed_by_another_task(
    state: State, shop: Topology, state_clock: Clock
) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    for key in ("d1", "d2"):
        feed(state, orders, key)
    first = fail(state, partition_task(state, clean, "d1"))
    other = fail(state, partition_task(state, clean, "d2"))
    assert ids(failed(state)) == {first, other}
    assert [each.superseded for each in failed(state)] == [None, None]
    state_clock.advance(1)
    mended = corrected(state, orders, clean, "d1")
    assert ids(failed(state)) == ids(failed(state, dag="shop")) == {other}
    assert ids(failed(state, dag="shop", job="clean")) == {other}
    both = {each.id: each for each in failed(state, superseded=True)}
    assert both.keys() == {first, other}
    said = both[first].superseded
    assert said is not None
    assert (said.by_task, said.text) == (mended, f"committed later by task {mended}")
    with state.read() as tx:
        assert operator_actions.show_task(tx, first).superseded == said
        assert [each.superseded for each in operator_actions.list_tasks(tx).tasks if each.id == first] == [said]
        assert failures.counts(tx, {clean.edition_id})[clean.edition_id]["failed"] == 1
        told = why(tx, first)
        assert f"committed later by task {mended}" in "\n".join(told.lines)
        assert told.do is None
        assert other in "\n".join(why(tx, "shop.clean").lines)


def test_a_task_that_read_an_older_state_mends_nothing(state: State, shop: Topology, state_clock: Clock) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    feed(state, orders, "d1")
    slow = claimed(state, partition_task(state, clean, "d1"))
    state_clock.advance(1)
    feed(state, orders, "d1", "2")
    route_all(state)
    while invalidation.tick(state):
        pass
    [new] = {each["id"] for each in tasks_of(state, clean)} - {slow.work.task_id}
    fail(state, new)
    succeed(state, slow)
    assert ids(failed(state)) == {new}


def test_of_a_job_that_appends_only_the_same_input_mends_a_partition(
    state: State, shop: Topology, state_clock: Clock
) -> None:
    orders, clean, both = (live(shop, f"shop.{name}") for name in ("orders", "clean", "both"))
    feed(state, orders, "d1")
    mine = fail(state, partition_task(state, both, "d1"))
    state_clock.advance(1)
    succeed(state, claimed(state, partition_task(state, clean, "d1")))
    route_all(state)
    [other] = [each["id"] for each in tasks_of(state, both) if each["dataset_id"] == clean.outputs[0].dataset_id]
    succeed(state, claimed(state, other))
    assert ids(failed(state)) == {mine}


def test_a_cursor_is_mended_by_who_reads_beyond_it(state: State, shop: Topology, state_clock: Clock) -> None:
    log, sums = live(shop, "shop.log"), live(shop, "shop.sums")
    append(state, log, 1)
    first = fail(state, cursor_task(state, sums, 1))
    assert ids(failed(state)) == {first}
    state_clock.advance(1)
    append(state, log, 2)
    later = cursor_task(state, sums, 2)
    succeed(state, claimed(state, later))
    assert failed(state) == []
    [both] = failed(state, superseded=True)
    assert both.superseded is not None
    assert both.superseded.by_task == later


def test_failures_of_a_version_that_was_given_up_are_superseded(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.orders"), "d1")
    settle(state)
    number = staged(state, edited(SHOP, "clean", config={"v": 2})).version
    task = fail(state, partition_task(state, live(loaded(state), "shop.clean", number), "d1"))
    assert ids(failed(state)) == {task}
    with state.write() as tx:
        cutover.abandon(tx, "shop", number, "ada")
    assert failed(state) == failed(state, dag="shop") == failed(state, dag="shop", job="clean") == []
    [gone] = failed(state, superseded=True)
    assert gone.superseded is not None
    assert (gone.superseded.version, gone.superseded.text) == (number, f"its version {number} was abandoned")


def test_a_task_that_no_live_version_has_is_not_replayed(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.orders"), "d1")
    settle(state)
    number = staged(state, edited(SHOP, "clean", config={"v": 2})).version
    clean = live(loaded(state), "shop.clean", number)
    task = fail(state, partition_task(state, clean, "d1"))
    with state.write() as tx:
        cutover.abandon(tx, "shop", number, "ada")
    with state.write() as tx, pytest.raises(Refused, match=f"version {number} was abandoned.*deploy"):
        operator_actions.replay(tx, task, "ada")
    assert row_of(state, task)["status"] == "failed"
    again = staged(state, edited(SHOP, "clean", config={"v": 2}))
    assert again.version == number
    with state.write() as tx:
        assert operator_actions.replay(tx, task, "ada").status == "pending"


def test_a_version_whose_failures_were_mended_may_take_over(
    state: State, shop: Topology, state_clock: Clock
) -> None:
    orders = live(shop, "shop.orders")
    feed(state, orders, "d1")
    settle(state)
    number = staged(state, edited(SHOP, "clean", config={"v": 2})).version
    clean = live(loaded(state), "shop.clean", number)
    fail(state, partition_task(state, clean, "d1"))
    with state.write() as tx, pytest.raises(Refused, match="1 of its tasks failed"):
        cutover.mark_ready(tx, "shop", number, "ada")
    state_clock.advance(1)
    feed(state, orders, "d1", "2")
    settle(state)
    with state.read() as tx:
        assert rebuilding.rebuild(tx, "shop", number).tasks.get("failed", 0) == 0
        lines = {each.name: each for each in overview.show(tx, "shop", number).jobs}
        assert lines["clean"].tasks.get("failed", 0) == 0
    with state.write() as tx:
        assert cutover.mark_ready(tx, "shop", number, "ada").changed


def test_pages_of_open_failures_leave_none_out_and_end(
    state: State, shop: Topology, state_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many superseded ones lie between them: a page looks at so many rows, and says where to go on."""
    monkeypatch.setattr(failures, "LOOKED_AT_MAX", 4)
    orders, clean, sums = (live(shop, f"shop.{name}") for name in ("orders", "clean", "sums"))
    wanted: set[str] = set()
    for number in range(12):
        key = f"d{number}"
        feed(state, orders, key)
        task = fail(state, partition_task(state, clean, key))
        state_clock.advance(1)
        if number % 5:
            corrected(state, orders, clean, key)
        else:
            wanted.add(task)
        state_clock.advance(1)
    append(state, live(shop, "shop.log"), 1)
    wanted.add(fail(state, cursor_task(state, sums, 1)))
    seen: list[str] = []
    after: str | None = None
    for _ in range(20):
        with state.read() as tx:
            page = operator_actions.list_tasks(tx, status="failed", after=after, limit=2)
        seen += [each.id for each in page.tasks]
        after = page.after
        if after is None:
            break
    assert after is None
    assert len(seen) == len(wanted)
    assert set(seen) == wanted


def test_a_failed_task_is_held_against_those_of_its_own_partition_alone(state: State, shop: Topology) -> None:
    """By an index, however many tasks of its job have ended."""
    clean = live(shop, "shop.clean")
    with state.write() as tx:
        of = clean.inputs[0]
        wanted = [
            NewTask(job=clean, dedupe_key=str(n), dataset_id=of.dataset_id, partition_key=str(n))
            for n in range(3_000)
        ]
        creation.create(tx, wanted)
        tx.execute(sa.update(schema.tasks).values(status="completed", started_at=tx.now, completed_at=tx.now))
    with state.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ANALYZE")
        query = failures.open_of(shop, clean.edition_id, None, 100)
        text = str(query.compile(connection.engine, compile_kwargs={"literal_binds": True}))
        explain = "EXPLAIN" if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
        plan = "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"{explain} {text}"))
    assert "ix_tasks_partition" in plan, plan
    assert "SCAN tasks" not in plan
    assert "SCAN later" not in plan
    assert "Seq Scan on tasks" not in plan
