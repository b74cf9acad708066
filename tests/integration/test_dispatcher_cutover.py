"""Which version serves: ready, activate, roll back, abandon, and what becomes of the tasks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.dag import CutoverAnswer
from qo.core.lifecycle import Cancel, Claim, Replay
from qo.core.pipeline.topology import LiveJob, VersionStatus
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import backlog, rows
from qo.dispatcher.tasks.backlog import Cancellation
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import cutover, pausing
from qo.errors import NotFound, Refused
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders"),
    job("daily", reads="clean"),
    publish={"clean_orders": "clean"},
)
EDITED = edited(SHOP, "clean", config={"sql": "select 2"})


def task(tx: Tx, of: LiveJob, key: str, *, released: bool = False, running: bool = False) -> str:
    made = create(tx, [NewTask(job=of, dedupe_key=f"manual:{key}")])[0].task_id
    if released or running:
        tx.execute(sa.update(schema.tasks).where(schema.tasks.c.id == made).values(released_at=tx.now, wakes=1))
    if running:
        rows.move(tx, rows.load(tx, made), Claim(token=f"claim {key}", lease_id=f"lease {key}", worker_id="w"))
    return made


def tasks(state: State) -> dict[str, dict[str, Any]]:
    with state.read() as tx:
        return {row["id"]: dict(row) for row in tx.all(sa.select(schema.tasks))}


def moved(state: State, step: Any, *args: Any, **options: Any) -> CutoverAnswer:
    with state.write() as tx:
        return step(tx, *args, "tests", **options)


def statuses(state: State) -> dict[int, str]:
    with state.read() as tx:
        return {row.number: row.status for row in tx.execute(sa.select(schema.dag_versions))}


def two_versions(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    moved(state, cutover.mark_ready, "shop", 2)
    moved(state, cutover.activate, "shop", 2)


def test_a_staged_version_serves_only_after_somebody_called_it_ready(state: State) -> None:
    before = deployed(state, SHOP)
    staged(state, EDITED)
    with state.write() as tx, pytest.raises(Refused, match="mark it ready"):
        cutover.activate(tx, "shop", 2, "tests")
    assert moved(state, cutover.mark_ready, "shop", 2).status == "ready"
    assert not moved(state, cutover.mark_ready, "shop", 2).changed
    assert dict(loaded(state).current) == dict(before.current)
    answer = moved(state, cutover.activate, "shop", 2)
    assert (answer.status, answer.active, answer.replaced, answer.changed) == ("active", 2, 1, True)
    assert not moved(state, cutover.activate, "shop", 2).changed
    assert statuses(state) == {1: "retired", 2: "active"}


def test_force_activates_what_nobody_called_ready(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    with state.write() as tx:
        assert cutover.activate(tx, "shop", 2, "tests", force=True).active == 2


def test_a_cutover_moves_all_pointers_at_once_and_keeps_what_is_unchanged(state: State) -> None:
    before = deployed(state, SHOP)
    two_versions_of_names(state)
    after = loaded(state)
    for name in ("shop.clean", "shop.daily"):
        dataset = live(before, name).outputs[0].dataset_id
        assert after.current[dataset] == live(after, name).outputs[0].generation_id != before.current[dataset]
    orders = live(before, "shop.orders").outputs[0]
    assert after.current[orders.dataset_id] == orders.generation_id
    assert {each.version_number for each in after.jobs.values()} == {2}
    with state.read() as tx:
        names = tx.execute(sa.select(schema.publications.c.name)).scalars().all()
    assert names == ["daily_orders"]


def two_versions_of_names(state: State) -> None:
    staged(state, dag("shop", *EDITED.jobs, publish={"daily_orders": "daily"}))
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests", force=True)


def test_a_rollback_restores_exactly_what_was(state: State) -> None:
    before = deployed(state, SHOP)
    two_versions_of_names(state)
    answer = moved(state, cutover.rollback, "shop")
    assert (answer.version, answer.active, answer.replaced) == (1, 1, 2)
    after = loaded(state)
    assert dict(after.current) == dict(before.current)
    assert dict(after.jobs) == dict(before.jobs)
    assert after.epoch > before.epoch
    assert statuses(state) == {1: "active", 2: "rolled_back"}
    with state.read() as tx:
        names = tx.execute(sa.select(schema.publications.c.name)).scalars().all()
    assert names == ["clean_orders"]


def test_rollbacks_go_back_step_by_step_and_then_no_further(state: State) -> None:
    two_versions(state)
    staged(state, edited(SHOP, "clean", config={"sql": "select 3"}))
    with state.write() as tx:
        cutover.activate(tx, "shop", 3, "tests", force=True)
    assert moved(state, cutover.rollback, "shop").active == 2
    assert moved(state, cutover.rollback, "shop").active == 1
    with state.write() as tx, pytest.raises(Refused, match="no earlier version"):
        cutover.rollback(tx, "shop", "tests")
    assert statuses(state) == {1: "active", 2: "rolled_back", 3: "rolled_back"}


def test_of_two_who_roll_back_the_same_version_one_is_refused(state: State) -> None:
    two_versions(state)
    staged(state, edited(SHOP, "clean", config={"sql": "select 3"}))
    with state.write() as tx:
        cutover.activate(tx, "shop", 3, "tests", force=True)
        assert cutover.rollback(tx, "shop", "one", replaces=3).active == 2
    with state.write() as tx, pytest.raises(Refused, match="version 2 of 'shop' is active by now, not 3"):
        cutover.rollback(tx, "shop", "the other", replaces=3)
    assert statuses(state) == {1: "retired", 2: "active", 3: "rolled_back"}


def test_a_version_that_was_rolled_back_is_never_rolled_back_to(state: State) -> None:
    two_versions(state)
    moved(state, cutover.rollback, "shop")
    staged(state, edited(SHOP, "clean", config={"sql": "select 3"}))
    with state.write() as tx:
        cutover.activate(tx, "shop", 3, "tests", force=True)
    assert moved(state, cutover.rollback, "shop").active == 1


def test_only_a_live_version_can_be_marked_activated_or_abandoned(state: State) -> None:
    two_versions(state)
    for step in (cutover.mark_ready, cutover.activate, cutover.abandon):
        with state.write() as tx, pytest.raises(Refused, match="retired"):
            step(tx, "shop", 1, "tests")
    with state.write() as tx, pytest.raises(Refused, match="active"):
        cutover.abandon(tx, "shop", 2, "tests")


def test_what_does_not_exist_is_not_found(state: State) -> None:
    deployed(state, SHOP)
    for step, args in (
        (cutover.mark_ready, ("shop", 9)),
        (cutover.activate, ("shop", 9)),
        (cutover.abandon, ("nothing", 1)),
        (cutover.rollback, ("nothing",)),
    ):
        with state.write() as tx, pytest.raises(NotFound):
            step(tx, *args, "tests")


# Tasks


def test_tasks_of_the_replaced_version_wait_and_go_on_after_a_rollback(state: State) -> None:
    found = deployed(state, SHOP)
    with state.write() as tx:
        waits = task(tx, live(found, "shop.clean"), "waits", released=True)
        runs = task(tx, live(found, "shop.clean"), "runs", running=True)
        shared = task(tx, live(found, "shop.orders"), "shared", released=True)
    staged(state, EDITED)
    assert tasks(state)[waits]["released_at"] is not None
    with state.write() as tx:
        answer = cutover.activate(tx, "shop", 2, "tests", force=True)
    after = tasks(state)
    assert answer.withheld == 1
    assert (after[waits]["status"], after[waits]["released_at"]) == ("pending", None)
    assert (after[runs]["status"], after[runs]["cancel_requested"]) == ("running", False)
    assert after[shared]["released_at"] is not None
    assert moved(state, cutover.rollback, "shop").cancelled == 0
    assert tasks(state)[waits]["status"] == "pending"


def test_a_rollback_cancels_what_the_version_had_of_its_own_and_nothing_else(state: State) -> None:
    two_versions(state)
    found = loaded(state)
    with state.write() as tx:
        waits = task(tx, live(found, "shop.clean"), "waits", released=True)
        runs = task(tx, live(found, "shop.clean"), "runs", running=True)
        shared = task(tx, live(found, "shop.orders"), "shared", released=True)
    answer = moved(state, cutover.rollback, "shop")
    after = tasks(state)
    assert (answer.cancelled, answer.cancel_requested) == (1, 1)
    assert (after[waits]["status"], after[waits]["cancelled_by"]) == ("cancelled", "tests")
    assert after[waits]["cancel_reason"] == "version 2 of shop was rolled back"
    assert (after[runs]["status"], after[runs]["cancel_requested"]) == ("running", True)
    assert (after[shared]["status"], after[shared]["cancel_requested"]) == ("pending", False)


def test_a_rollback_leaves_alone_what_a_staged_version_shares(state: State) -> None:
    two_versions(state)
    staged(state, edited(EDITED, "daily", config={"x": 1}))  # Its "clean" is that of version 2.
    found = loaded(state)
    with state.write() as tx:
        shared = task(tx, live(found, "shop.clean"), "shared")
        own = task(tx, live(found, "shop.daily", 2), "own")
        next_ = task(tx, live(found, "shop.daily", 3), "next")
    moved(state, cutover.rollback, "shop")
    after = tasks(state)
    assert [after[each]["status"] for each in (shared, own, next_)] == ["pending", "cancelled", "pending"]
    assert live(loaded(state), "shop.clean", 3).edition_id == after[shared]["edition_id"]


def test_an_abandoned_version_has_no_tasks_left_to_do(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    with state.write() as tx:
        own = task(tx, live(topology.load(tx), "shop.clean", 2), "own")
        old = task(tx, live(topology.load(tx), "shop.clean", 1), "old")
    assert moved(state, cutover.abandon, "shop", 2).cancelled == 1
    assert not moved(state, cutover.abandon, "shop", 2).changed
    after = tasks(state)
    assert (after[own]["status"], after[own]["cancel_reason"]) == ("cancelled", "version 2 of shop was abandoned")
    assert after[old]["status"] == "pending"
    assert {each.version_number for each in loaded(state).jobs.values()} == {1}


def test_deploying_again_takes_up_what_a_rollback_cancelled(state: State) -> None:
    two_versions(state)
    found = loaded(state)
    with state.write() as tx:
        waits = task(tx, live(found, "shop.clean"), "waits")
        runs = task(tx, live(found, "shop.clean"), "runs", running=True)
        by_hand = task(tx, live(found, "shop.clean"), "by hand")
        rows.move(tx, rows.load(tx, by_hand), Cancel(token="x", by="ann", reason="not wanted"))
    moved(state, cutover.rollback, "shop")
    staged(state, edited(EDITED, "daily", config={"x": 1}))  # Another version, with the same "clean".
    after = tasks(state)
    assert (after[waits]["status"], after[waits]["cancel_requested"]) == ("pending", False)
    assert after[waits]["released_at"] is None
    assert (after[runs]["status"], after[runs]["cancel_requested"]) == ("running", False)
    assert after[by_hand]["status"] == "cancelled"


def test_tasks_are_cancelled_in_bulk_as_the_rules_cancel_them_one_by_one(state: State) -> None:
    clean, daily = (live(deployed(state, SHOP), f"shop.{name}") for name in ("clean", "daily"))
    with state.write() as tx:
        made = [task(tx, clean, f"{n}", released=n % 2 == 1, running=n > 1) for n in range(4)]
        tx.execute(sa.update(schema.tasks).where(schema.tasks.c.id == made[0]).values(late_lease_id="late"))
        rows.move(tx, rows.load(tx, made[3]), Cancel(token="asked", by="ann", reason="first"))
        other = task(tx, daily, "other")
    with state.write() as tx:
        expected = {}
        for each in made:
            rows.move(tx, rows.load(tx, each), Cancel(token="token", by="bob", reason="given up"))
            expected[each] = rows.load(tx, each)
        now = tx.now
        tx.connection.get_transaction().rollback()
    with State(state.engine, clock=lambda _: now).write() as tx:  # At the same instant.
        stopped = backlog.cancel(tx, {clean.edition_id}, Cancellation("bob", "given up"), token="token")
        assert {each: rows.load(tx, each) for each in made} == expected
    assert (stopped.cancelled, stopped.requested) == (2, 1)
    assert tasks(state)[other]["status"] == "pending"


def test_tasks_are_taken_up_in_bulk_as_the_rules_replay_them_one_by_one(state: State) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    with state.write() as tx:
        made = [task(tx, clean, f"{n}", released=True) for n in range(2)]
        tx.execute(sa.update(schema.tasks).values(retry_count=2, deliveries=1))
        given_up = backlog.version_given_up("shop", 7, VersionStatus.ABANDONED, "b")
        backlog.cancel(tx, {clean.edition_id}, given_up, token="t")
    with state.write() as tx:
        expected = {}
        for each in made:
            rows.move(tx, rows.load(tx, each), Replay(token="again"))
            expected[each] = rows.load(tx, each)
        now = tx.now
        tx.connection.get_transaction().rollback()
    with State(state.engine, clock=lambda _: now).write() as tx:  # At the same instant.
        assert backlog.revive(tx, {clean.edition_id}, token="again") == 2
        assert {each: rows.load(tx, each) for each in made} == expected
        assert backlog.revive(tx, {clean.edition_id}, token="again") == 0


# At once, and interrupted


def test_a_cutover_that_breaks_off_leaves_nothing(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    two_versions(state)
    staged(state, edited(EDITED, "clean", config={"n": 3}))
    moved(state, cutover.mark_ready, "shop", 3)
    before, was = loaded(state), statuses(state)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    for step, stops_in, args in (
        (cutover.activate, "withhold", ("shop", 3)),
        (cutover.abandon, "cancel", ("shop", 3)),
        (cutover.rollback, "cancel", ("shop",)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(backlog, stops_in, broken)
            with pytest.raises(ZeroDivisionError):
                moved(state, step, *args)
        assert statuses(state) == was
        assert loaded(state) == before
    assert moved(state, cutover.activate, "shop", 3).active == 3


def test_threads_that_activate_at_once_activate_once(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    moved(state, cutover.mark_ready, "shop", 2)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: moved(state, cutover.activate, "shop", 2), range(4)))
    assert [each.changed for each in answers].count(True) == 1
    assert {each.active for each in answers} == {2}


def test_threads_that_roll_back_at_once_go_back_one_step(state: State) -> None:
    two_versions(state)

    def back(_: int) -> str:
        try:
            return str(moved(state, cutover.rollback, "shop").active)
        except Refused:
            return "refused"

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(back, range(4))) == ["1", "refused", "refused", "refused"]


def test_nobody_routes_by_a_topology_that_is_being_replaced(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    order: list[str] = []
    holds, may_end = threading.Event(), threading.Event()

    def router() -> None:
        with state.write() as tx:
            assert live(topology.load(tx), "shop.clean", 1)
            holds.set()
            assert may_end.wait(30)
            order.append("routed")

    def operator() -> None:
        with state.write() as tx:
            cutover.activate(tx, "shop", 2, "tests", force=True)
            order.append("activated")

    with ThreadPoolExecutor(2) as threads:
        routed = threads.submit(router)
        assert holds.wait(30)
        activated = threads.submit(operator)
        with pytest.raises(TimeoutError):
            activated.result(0.3)  # Waits for the router, however long that takes.
        may_end.set()
        routed.result(30)
        activated.result(30)
    assert order == ["routed", "activated"]
    assert {each.version_number for each in loaded(state).jobs.values()} == {2}


def test_readers_never_see_half_a_cutover(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    found = loaded(state)
    sets = [
        {live(found, f"shop.{name}", version).outputs[0].generation_id for name in ("clean", "daily")}
        for version in (1, 2)
    ]
    datasets = [live(found, f"shop.{name}", 1).outputs[0].dataset_id for name in ("clean", "daily")]
    stop = threading.Event()

    def look() -> int:
        looks = 0
        while not stop.is_set():
            now = loaded(state).current
            assert {now[each] for each in datasets} in sets
            looks += 1
        return looks

    with ThreadPoolExecutor(2) as threads:
        looking = [threads.submit(look) for _ in range(2)]
        for _ in range(5):
            with state.write() as tx:
                cutover.activate(tx, "shop", 2, "tests", force=True)
            moved(state, cutover.rollback, "shop")
            staged(state, EDITED, again=True)
        stop.set()
        assert all(each.result(30) for each in looking)


def test_a_pause_outlives_a_cutover(state: State) -> None:
    deployed(state, SHOP)
    with state.write() as tx:
        pausing.pause(tx, "shop", "the warehouse burns", "ann")
    staged(state, EDITED)
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests", force=True)
    found = loaded(state)
    assert found.pause_reason(live(found, "shop.clean")) == "the warehouse burns"
