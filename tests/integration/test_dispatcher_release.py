"""Release: who is due gets one wake-up, within every limit, also with two dispatchers at it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import ClaimRequest
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts.claiming import claim
from qo.dispatcher.engine.loops import reaper, release
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.outbox import outbox
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import pausing
from qo.pipeline.registry import DEFAULT, Registry
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

NONE = Limits()

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", runtime="spark", operator="sql"),
    job("daily", reads="clean", runtime="spark", operator="sql"),
    job("split", reads="orders", runtime="dispatcher", operator="range_splitter"),
    job("alert", reads="daily", outputs=0),
)


def wanted(state: State, of: LiveJob, keys: Iterable[Any]) -> list[str]:
    with state.write() as tx:
        return [each.task_id for each in create(tx, [NewTask(job=of, dedupe_key=f"manual:{key}") for key in keys])]


def rows(state: State, table: sa.Table, *where: Any) -> Sequence[sa.RowMapping]:
    with state.read() as tx:
        return tx.all(sa.select(table).where(*where).order_by(*table.primary_key))


def released(state: State) -> set[str]:
    return {row["id"] for row in rows(state, schema.tasks, schema.tasks.c.released_at.is_not(None))}


def held(state: State) -> dict[str, str]:
    return {row["edition_id"]: row["reason"] for row in rows(state, schema.holds)}


def claimed(state: State, task_id: str) -> None:
    with state.write() as tx:
        woken(tx, task_id)
        answer = claim(tx, ClaimRequest(task_id=task_id, worker_id="w"), "file:/data")
    assert answer.status == "claimed"


def test_a_due_task_is_released_with_one_wake_up_and_only_once(state: State) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    [task] = wanted(state, clean, [1])
    assert release.tick(state, NONE) == 1
    assert release.tick(state, NONE) == 0
    [row] = rows(state, schema.outbox)
    assert (row["kind"], row["queue"], row["task_id"], row["state"]) == ("wake", "spark", task, "pending")
    assert row["id"] == outbox.wake_id(task, 0, 1)
    assert released(state) == {task}


def test_the_runtime_decides_what_its_wake_up_is(state: State) -> None:
    split = live(deployed(state, SHOP), "shop.split")
    wanted(state, split, [1])
    release.tick(state, NONE)
    assert [row["kind"] for row in rows(state, schema.outbox)] == ["run"]


def test_what_is_not_due_waits_and_a_retry_passes_the_same_gate(state: State, state_clock: Clock) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    [task] = wanted(state, clean, [1])
    release.tick(state, NONE)
    claimed(state, task)
    state_clock.advance(61)
    assert reaper.tick(state) == 1
    assert release.tick(state, NONE) == 0, "it rests first"
    assert held(state) == {}
    state_clock.advance(60)
    assert release.tick(state, NONE) == 1
    assert {row["id"] for row in rows(state, schema.outbox)} == {
        outbox.wake_id(task, 0, 1),
        outbox.wake_id(task, 1, 2),
    }


def test_a_backlog_of_one_job_does_not_keep_another_waiting(state: State, state_clock: Clock) -> None:
    topology = deployed(state, SHOP)
    wanted(state, live(topology, "shop.clean"), range(50))
    state_clock.advance(1)
    [late] = wanted(state, live(topology, "shop.daily"), [1])
    assert release.tick(state, NONE, limit=10) == 10
    assert late in released(state)


def test_max_concurrency_counts_released_and_running_tasks_and_says_why(state: State) -> None:
    limited = edited(SHOP, "clean", scaling={"max_concurrency": 2})
    clean = live(deployed(state, limited), "shop.clean")
    wanted(state, clean, range(5))
    assert release.tick(state, NONE) == 2
    assert held(state) == {clean.edition_id: "max_concurrency: 2 of this job are under way"}
    claimed(state, sorted(released(state))[0])
    assert release.tick(state, NONE) == 0, "one runs, one is on its way"


def test_a_slot_that_becomes_free_is_filled_and_the_hold_ends_with_the_last(state: State) -> None:
    limited = edited(SHOP, "clean", scaling={"max_concurrency": 2})
    clean = live(deployed(state, limited), "shop.clean")
    wanted(state, clean, range(3))
    release.tick(state, NONE)
    with state.write() as tx:
        tx.execute(
            sa.update(schema.tasks)
            .where(schema.tasks.c.id == sorted(released(state))[0])
            .values(status="completed")
        )
    assert release.tick(state, NONE) == 1
    assert held(state) == {}


def test_an_operator_limit_counts_over_all_jobs(state: State) -> None:
    topology = deployed(state, SHOP)
    wanted(state, live(topology, "shop.clean"), range(3))
    wanted(state, live(topology, "shop.daily"), range(3))
    assert release.tick(state, Limits({"sql": 4})) == 4
    assert release.tick(state, Limits({"sql": 4})) == 0
    assert set(held(state).values()) == {"operator limit: 4 of sql are under way"}


@pytest.mark.parametrize("scope", ["shop", "shop.clean"])
def test_a_paused_job_keeps_its_tasks_and_goes_on_when_resumed(state: State, scope: str) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    wanted(state, clean, [1])
    with state.write() as tx:
        pausing.pause(tx, scope, "bad data", "ada")
    assert release.tick(state, NONE) == 0
    assert held(state) == {clean.edition_id: "paused: bad data"}
    with state.write() as tx:
        pausing.resume(tx, scope, "ada")
    assert release.tick(state, NONE) == 1
    assert held(state) == {}


def test_a_hold_is_written_once_and_not_again_while_it_stays(state: State, state_clock: Clock) -> None:
    wanted(state, live(deployed(state, SHOP), "shop.clean"), [1])
    with state.write() as tx:
        pausing.pause(tx, "shop", "bad data", "ada")
    release.tick(state, NONE)
    [before] = rows(state, schema.holds)
    state_clock.advance(100)
    release.tick(state, NONE)
    assert rows(state, schema.holds) == [before]


def test_effects_outside_of_a_staged_version_wait_for_the_cutover(state: State) -> None:
    deployed(state, SHOP)
    staged(state, edited(SHOP, "alert", config={"to": "ada"}))
    alert = live(loaded(state), "shop.alert", version=2)
    wanted(state, alert, [1])
    assert release.tick(state, NONE) == 0
    assert held(state)[alert.edition_id].startswith("waits for cutover")


def test_a_runtime_that_this_dispatcher_does_not_know_holds_its_jobs(state: State) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    wanted(state, clean, [1])
    assert release.tick(state, NONE, registry=Registry({})) == 0
    assert held(state)[clean.edition_id].startswith("this dispatcher has no runtime 'spark': add [runtimes.spark]")
    assert release.tick(state, NONE, registry=DEFAULT) == 1


def test_two_dispatchers_release_each_task_once_and_never_more_than_the_limit(state: State) -> None:
    topology = deployed(state, edited(SHOP, "clean", scaling={"max_concurrency": 7}))
    wanted(state, live(topology, "shop.clean"), range(40))
    free = wanted(state, live(topology, "shop.daily"), range(40))
    start, counts = threading.Barrier(4), []

    def dispatcher() -> None:
        start.wait()
        counts.extend(release.tick(state, NONE, limit=5) for _ in range(10))

    threads = [threading.Thread(target=dispatcher) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(counts) == 47
    assert len(released(state)) == 47
    assert set(free) <= released(state)
    effects = rows(state, schema.outbox)
    assert len({row["task_id"] for row in effects}) == len(effects) == 47


def test_a_transaction_that_fails_releases_nothing(state: State) -> None:
    wanted(state, live(deployed(state, SHOP), "shop.clean"), [1])
    with pytest.raises(ZeroDivisionError), state.write() as tx:
        _ = len(release.release(tx, NONE, 10)) / 0
    assert released(state) == set()
    assert rows(state, schema.outbox) == []
    assert release.tick(state, NONE) == 1


@pytest.mark.parametrize(
    ("index", "question", "along"),
    [
        ("ix_tasks_withheld", (scans.withheld(), schema.tasks.c.edition_id == "e"), "available_at"),
        ("ix_tasks_released", (scans.released(), schema.tasks.c.queue == "q"), "released_at"),
    ],
)
def test_questions_about_tasks_are_answered_from_their_partial_index(
    state: State, index: str, question: Sequence[Any], along: str
) -> None:
    query = sa.select(schema.tasks.c.id).where(*question).order_by(schema.tasks.c[along]).limit(10)
    with state.write() as tx:
        if tx.on_postgres:
            # An empty table is cheapest read in full, or by any index and sorted: only this one has the order.
            for way in ("seqscan", "bitmapscan", "sort"):
                tx.execute(sa.text(f"SET LOCAL enable_{way} = off"))
        text = query.compile(tx.connection, compile_kwargs={"literal_binds": True})
        explain = "EXPLAIN" if tx.on_postgres else "EXPLAIN QUERY PLAN"
        plan = str(tx.execute(sa.text(f"{explain} {text}")).all())
    assert index in plan, plan


def test_the_values_of_a_column_are_found_step_by_step(state: State) -> None:
    topology = deployed(state, SHOP)
    chosen = [live(topology, f"shop.{name}") for name in ("clean", "daily", "alert")]
    for each in chosen:
        wanted(state, each, range(3))
    with state.read() as tx:
        assert scans.distinct(tx, scans.WITHHELD_EDITIONS) == sorted(each.edition_id for each in chosen)
        assert scans.distinct(tx, scans.RELEASED_QUEUES) == []
        assert scans.counted(tx, scans.withheld(), along="available_at", most=100) == 9
        assert scans.counted(tx, scans.withheld(), along="available_at", most=4) == 4
