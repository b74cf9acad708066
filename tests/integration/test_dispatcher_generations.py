"""Readers follow when what they read becomes another generation, by a cutover or a rollback."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import sqlalchemy as sa

from qo.api.contract.task import Claimed, EventBody
from qo.config.settings import Settings
from qo.core.pipeline.dag import Dag
from qo.dispatcher.effects import external_effects
from qo.dispatcher.engine.loops import invalidation, reconciler, release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.service import Dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import cutover, marks
from support.dispatcher import accounting
from support.dispatcher.pipeline_tasks import claimed, row_of, succeed
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock
from support.stores.queues import until

UP = dag("up", source("orders"), job("clean", reads="orders"), publish={"clean": "clean"})


SHOP = dag("shop", source("orders"), job("clean", reads="orders"), job("alert", reads="clean", outputs=0))


Ran = list[tuple[str, str | None]]


def say(state: State, name: str, key: str, **event: object) -> None:
    dag_, _, job_ = name.partition(".")
    with state.write() as tx:
        emission.emit(tx, dag_, job_, key=key, events=[EventBody.model_validate(event)], by="tests")


def settle(state: State) -> Ran:
    """Loops and workers until nothing is left to do; job and partition of every task that ran."""
    ran: Ran = []
    for _ in range(60):
        did = turn(state)
        for row in waiting(state):
            succeed(state, claimed(state, row["id"]))
            ran.append((f"{row['dag']}.{row['job']}", row["partition_key"]))
            did += 1
        if not did:
            check_books(state)
            return ran
    raise AssertionError("it never comes to rest")


def turn(state: State) -> int:
    did = invalidation.tick(state) + router.tick(state) + reconciler.tick(state)
    return did + release.tick(state, Limits(operators={}))


def waiting(state: State, name: str | None = None) -> Sequence[sa.RowMapping]:
    tasks = schema.tasks
    query = sa.select(tasks).where(tasks.c.status == "pending", tasks.c.released_at.is_not(None))
    with state.read() as tx:
        return tx.all(query if name is None else query.where(tasks.c.job == name))


def begin(state: State, name: str) -> Claimed:
    """The one task of the job that may begin now."""
    while turn(state):
        pass
    [row] = waiting(state, name)
    return claimed(state, row["id"])


def check_books(state: State) -> None:
    with state.read() as tx:
        for dataset in tx.execute(sa.select(schema.datasets.c.id)).scalars().all():
            assert accounting.check(tx, dataset).problems == ()


def cut_over(state: State, name: str, number: int) -> None:
    with state.write() as tx:
        cutover.activate(tx, name, number, "tests", force=True)


def roll_back(state: State, name: str) -> None:
    with state.write() as tx:
        cutover.rollback(tx, name, "tests")


def rebuilt(state: State, before: Dag, name: str, number: int = 2) -> None:
    """The next version, in which that job does something else; built, and serving."""
    staged(state, edited(before, name, config={"sql": f"number {number}"}), again=True)
    settle(state)
    cut_over(state, before.name, number)


def made_by(state: State, name: str) -> str:
    """The task that made the one partition of the job."""
    made = live(loaded(state), name).outputs[0]
    with state.read() as tx:
        return tx.value(
            sa.select(schema.partitions.c.task_id).where(schema.partitions.c.generation_id == made.generation_id)
        )


def reasons(state: State, name: str) -> set[str | None]:
    """Why events did not start the job."""
    deliveries = schema.deliveries
    query = sa.select(deliveries.c.reason).where(
        deliveries.c.edition_id == live(loaded(state), name).edition_id, deliveries.c.outcome == "filtered"
    )
    with state.read() as tx:
        return set(tx.execute(query).scalars())


@pytest.mark.parametrize("join", ["any", "all"])
def test_a_join_reads_again_when_another_dag_cuts_over(state: State, join: str) -> None:
    deployed(state, UP)
    reads = [{"dataset": "clean", "as": "c"}, "prices"]
    deployed(state, dag("down", source("prices"), job("both", reads=reads, join=join)))
    say(state, "up.orders", "1", partition_key="p")
    say(state, "down.prices", "1", partition_key="p")
    assert ("down.both", "p") in settle(state)
    rebuilt(state, UP, "clean")
    assert settle(state) == [("down.both", "p")]


@pytest.mark.parametrize("join", ["any", "all"])
def test_readers_in_other_dags_follow_a_rollback_and_every_one_after_it(state: State, join: str) -> None:
    deployed(state, UP)
    deployed(state, dag("down", job("sum", reads={"dataset": "clean"}, join=join), job("last", reads="sum")))
    say(state, "up.orders", "1", partition_key="p")
    settle(state)
    again = [("down.sum", "p"), ("down.last", "p")]
    rebuilt(state, UP, "clean")
    assert settle(state) == again
    roll_back(state, "up")
    assert settle(state) == again
    rebuilt(state, UP, "clean")
    assert settle(state) == again
    roll_back(state, "up")
    assert settle(state) == again
    assert settle(state) == []


def test_what_was_replaced_while_a_version_was_retired_is_read_again_after_a_rollback(state: State) -> None:
    before = dag("shop", source("orders"), job("clean", reads="orders"))
    deployed(state, before)
    for key in ("p", "q"):
        say(state, "shop.orders", key, partition_key=key)
    settle(state)
    rebuilt(state, before, "clean")
    settle(state)
    say(state, "shop.orders", "correction", partition_key="p")
    assert settle(state) == [("shop.clean", "p")]
    roll_back(state, "shop")
    assert settle(state) == [("shop.clean", "p")]


def test_what_is_being_read_anew_already_gets_no_second_task(state: State) -> None:
    deployed(state, dag("shop", source("orders"), job("clean", reads="orders")))
    say(state, "shop.orders", "1", partition_key="p")
    settle(state)
    say(state, "shop.orders", "2", partition_key="p")
    reconciler.tick(state)  # Before the invalidation has been spread, and after.
    assert settle(state) == [("shop.clean", "p")]
    say(state, "shop.orders", "3", partition_key="p")
    held = begin(state, "clean")
    assert settle(state) == []
    succeed(state, held)
    assert settle(state) == []


def test_what_people_cancelled_is_not_read_anew_behind_their_backs(state: State, state_clock: Clock) -> None:
    deployed(state, dag("shop", source("orders"), job("clean", reads="orders")))
    say(state, "shop.orders", "1", partition_key="p")
    settle(state)
    state_clock.advance(1)
    say(state, "shop.orders", "2", partition_key="p")
    while turn(state):
        pass
    [row] = waiting(state, "clean")
    with state.write() as tx:
        operator_actions.cancel(tx, row["id"], "somebody")
    state_clock.advance(marks.FULL_PASS_S)
    assert settle(state) == [] == settle(state)


def test_a_slow_reader_of_the_old_generation_does_not_replace_what_was_made_of_the_new_one(state: State) -> None:
    deployed(state, UP)
    deployed(state, dag("down", job("sum", reads={"dataset": "clean"})))
    say(state, "up.orders", "1", partition_key="p")
    succeed(state, begin(state, "clean"))
    slow = begin(state, "sum")
    staged(state, edited(UP, "clean", config={"sql": "other"}))
    succeed(state, begin(state, "clean"))
    cut_over(state, "up", 2)
    quick = begin(state, "sum")
    succeed(state, quick)
    succeed(state, slow)
    settle(state)
    assert made_by(state, "down.sum") == quick.work.task_id


def test_what_was_made_of_the_old_generation_is_replaced_even_if_it_read_something_else_later(
    state: State,
) -> None:
    deployed(state, UP)
    reads = [{"dataset": "clean", "as": "c"}, {"job": "prices", "trigger": False}]
    deployed(state, dag("down", source("prices"), job("sum", reads=reads)))
    say(state, "down.prices", "1", partition_key="p")
    say(state, "up.orders", "1", partition_key="p")
    succeed(state, begin(state, "clean"))
    while turn(state):
        pass
    [old] = waiting(state, "sum")
    staged(state, edited(UP, "clean", config={"sql": "other"}))
    succeed(state, begin(state, "clean"))
    cut_over(state, "up", 2)
    while turn(state):
        pass
    [new] = [row for row in waiting(state, "sum") if row["id"] != old["id"]]
    right = claimed(state, new["id"])
    say(state, "down.prices", "2", partition_key="p")
    succeed(state, claimed(state, old["id"]))
    succeed(state, right)
    settle(state)
    assert made_by(state, "down.sum") == right.work.task_id


def test_what_is_appended_of_a_new_generation_takes_the_place_of_the_old_ones(state: State) -> None:
    deployed(state, UP)
    deployed(state, dag("down", job("log", reads={"dataset": "clean"}, update_strategy="append")))
    say(state, "up.orders", "1", partition_key="p")
    settle(state)
    rebuilt(state, UP, "clean")
    assert settle(state) == [("down.log", "p")]
    made = live(loaded(state), "down.log").outputs[0]
    with state.read() as tx:
        rows = tx.value(
            sa.select(schema.partitions.c.rows).where(schema.partitions.c.generation_id == made.generation_id)
        )
    assert rows == 10  # As one task writes.


def test_a_rebuild_repeats_no_effects_outside(state: State) -> None:
    deployed(state, SHOP)
    for key in ("a", "b", "c"):
        say(state, "shop.orders", key, partition_key=key)
    assert ("shop.alert", "a") in settle(state)
    rebuilt(state, SHOP, "clean")
    assert settle(state) == []
    assert reasons(state, "shop.alert") == {external_effects.REASON}
    roll_back(state, "shop")
    assert settle(state) == []


def test_a_cutover_of_another_dag_repeats_no_effects_outside(state: State) -> None:
    deployed(state, UP)
    deployed(state, dag("down", job("alert", reads={"dataset": "clean"}, outputs=0)))
    for key in ("a", "b", "c"):
        say(state, "up.orders", key, partition_key=key)
    settle(state)
    rebuilt(state, UP, "clean")
    assert settle(state) == []
    say(state, "up.orders", "new", partition_key="new")
    assert ("down.alert", "new") in settle(state)


def test_a_new_job_has_no_effects_for_history_that_is_made_anew_beside_it(
    state: State, state_clock: Clock
) -> None:
    before = dag("shop", source("orders"), job("clean", reads="orders"))
    deployed(state, before)
    say(state, "shop.orders", "old", partition_key="old")
    settle(state)
    state_clock.advance(1)
    staged(state, edited(SHOP, "clean", config={"sql": "other"}))
    settle(state)
    cut_over(state, "shop", 2)
    assert settle(state) == []
    assert reasons(state, "shop.alert") == {external_effects.HISTORY}
    say(state, "shop.orders", "new", partition_key="new")
    assert ("shop.alert", "new") in settle(state)


def test_effects_that_the_version_before_has_made_meanwhile_are_not_made_at_the_cutover(state: State) -> None:
    deployed(state, SHOP)
    staged(state, edited(SHOP, "clean", config={"sql": "other"}))
    for key in ("made", "missing"):
        say(state, "shop.orders", key, partition_key=key)
    for _ in range(2):
        while turn(state):
            pass
        for row in waiting(state, "clean"):
            succeed(state, claimed(state, row["id"]))
    while turn(state):
        pass
    for row in waiting(state, "alert"):
        if row["partition_key"] == "made":
            succeed(state, claimed(state, row["id"]))
    cut_over(state, "shop", 2)
    assert [each for each in settle(state) if each[0] == "shop.alert"] == [("shop.alert", "missing")]
    roll_back(state, "shop")
    assert [each for each in settle(state) if each[0] == "shop.alert"] == []


def test_what_is_replaced_after_a_cutover_has_its_effects_again(state: State) -> None:
    deployed(state, SHOP)
    say(state, "shop.orders", "1", partition_key="p")
    settle(state)
    rebuilt(state, SHOP, "clean")
    settle(state)
    say(state, "shop.orders", "2", partition_key="p")
    assert settle(state) == [("shop.clean", "p"), ("shop.alert", "p")]


def test_a_join_without_outputs_that_has_had_its_effects_leaves_no_event_waiting(state: State) -> None:
    shop = dag(
        "shop",
        source("orders"),
        source("prices"),
        job("clean", reads="orders"),
        job("alert", reads=["clean", "prices"], outputs=0, join="all"),
    )
    deployed(state, shop)
    say(state, "shop.orders", "1", partition_key="p")
    say(state, "shop.prices", "1", partition_key="p")
    assert ("shop.alert", "p") in settle(state)
    rebuilt(state, shop, "clean")
    assert settle(state) == []
    with state.read() as tx:
        assert tx.all(sa.select(schema.deliveries).where(schema.deliveries.c.outcome == "pending")) == []


def test_a_cursor_is_followed_on_from_where_the_editions_before_have_read_to(state: State) -> None:
    follow = job("alert", reads="copy", outputs=0, execution_strategy="PerUpdate")
    copy = job("copy", reads="ticks", execution_strategy="PerUpdate")
    shop = dag("shop", source("ticks"), copy, follow)
    deployed(state, shop)
    say(state, "shop.ticks", "1", cursor=5)
    assert settle(state) == [("shop.copy", None), ("shop.alert", None)]
    rebuilt(state, shop, "copy")
    assert settle(state) == []
    say(state, "shop.ticks", "2", cursor=7)
    succeed(state, begin(state, "copy"))
    held = begin(state, "alert")
    assert (held.work.inputs[0].cursor_after, held.work.inputs[0].cursor_upto) == (5, 7)


def test_the_reconciler_goes_on_while_there_is_something_it_has_not_looked_at(state: State) -> None:
    topology = deployed(state, dag("shop", source("orders"), job("clean", reads="orders")))
    for n in range(7):
        say(state, "shop.orders", str(n), partition_key=f"{n}")
    while router.tick(state):
        pass
    tasks = schema.tasks
    lost = sa.and_(tasks.c.edition_id == live(topology, "shop.clean").edition_id, tasks.c.partition_key == "6")
    with state.write() as tx:
        tx.execute(sa.delete(tasks).where(lost))
    while reconciler.tick(state, limit=2):
        pass
    with state.read() as tx:
        assert tx.one(sa.select(tasks.c.id).where(lost)) is not None


def test_a_reconciler_with_nothing_to_do_keeps_no_writer_waiting(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(state, SHOP)
    follow = job("follow", reads="ticks", execution_strategy="PerUpdate")
    deployed(state, dag("t", source("ticks"), follow))
    say(state, "shop.orders", "1", partition_key="p")
    say(state, "t.ticks", "1", cursor=1)
    settle(state)

    def refuse() -> None:
        raise AssertionError("it writes")

    monkeypatch.setattr(state, "write", refuse)
    assert reconciler.tick(state) == 0


def test_a_job_without_outputs_looks_at_history_once(state: State, state_clock: Clock) -> None:
    deployed(state, dag("shop", source("orders"), job("clean", reads="orders")))
    for key in ("a", "b"):
        say(state, "shop.orders", key, partition_key=key)
    settle(state)
    state_clock.advance(1)
    staged(state, SHOP)
    settle(state)
    alert = live(loaded(state), "shop.alert")
    with state.read() as tx:
        [each] = [marks.Input(alert, of, of.generation_id) for of in alert.inputs if of.generation_id is not None]
        last = tx.value(
            sa.select(sa.func.max(schema.partitions.c.revision)).where(
                schema.partitions.c.generation_id == each.generation_id
            )
        )
        mark = marks.load(tx, each)
        assert mark is not None
        assert mark.revision == last
        assert marks.behind(tx, [each]) == []


async def test_a_rollback_is_reconciled_at_once(state: State) -> None:
    deployed(state, UP)
    deployed(state, dag("down", job("sum", reads={"dataset": "clean"})))
    say(state, "up.orders", "1", partition_key="p")
    settle(state)
    rebuilt(state, UP, "clean")
    settle(state)
    woken = asyncio.Event()

    class Queues:
        async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
            if any(row_of(state, wake.task_id)["job"] == "sum" for wake in wakes):
                woken.set()

    settings = Settings()
    settings = replace(settings, dispatcher=replace(settings.dispatcher, reconcile_s=3600.0))
    dispatcher, stop = Dispatcher(state, Queues(), settings), asyncio.Event()
    running = asyncio.create_task(dispatcher.run(stop))
    reconciles = next(loop for loop in dispatcher.loops if loop.name == "reconciler")

    async def has_looked() -> bool:
        return reconciles.health.ticks >= 2  # Because it began, and because of a topology that was new to it.

    try:
        await until(has_looked)
        await asyncio.to_thread(roll_back, state, "up")
        dispatcher.nudge()
        async with asyncio.timeout(30):
            await woken.wait()
    finally:
        stop.set()
        await running
