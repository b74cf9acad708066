"""A partition that was removed is as if it had never come: for readers now, and for versions to come."""

from __future__ import annotations

from typing import Any

import pytest

from qo.api.contract.removal import RemovedAnswer
from qo.api.contract.task import Outcome
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.commits import removals
from qo.dispatcher.engine.loops import invalidation, reconciler
from qo.dispatcher.events import tallies
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.versions import cutover, rebuilding
from qo.dispatcher.views import history
from qo.dispatcher.views.why import answer as reasons
from qo.errors import NotFound, Refused, UsageError
from support.dispatcher.pipeline_tasks import (
    all_of,
    claimed,
    feed,
    finish,
    made,
    route_all,
    row_of,
    settle,
    succeed,
    tasks_of,
)
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders"),
    job("daily", reads="clean"),
    job("alert", reads="daily", outputs=0),
)


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def remove(state: State, name: str, *keys: str, key: str = "k", reason: str | None = None) -> RemovedAnswer:
    with state.write() as tx:
        return removals.remove(tx, datasets.resolve(tx, name), keys, by="ann", key=key, reason=reason)


def keys_of(state: State, made: LiveJob) -> set[str]:
    generation = made.outputs[0].generation_id
    return {
        each["partition_key"] for each in all_of(state, schema.partitions) if each["generation_id"] == generation
    }


def generation_of(state: State, made: LiveJob) -> dict[str, Any]:
    return next(each for each in all_of(state, schema.generations) if each["id"] == made.outputs[0].generation_id)


def spread(state: State) -> None:
    while invalidation.tick(state):
        pass


def catch_up(state: State) -> None:
    while reconciler.tick(state):
        pass


def explanation(state: State, target: str) -> str:
    with state.read() as tx:
        return "\n".join(reasons.why(tx, target).lines)


def test_what_was_made_of_a_removed_partition_alone_is_removed_to_the_end(state: State, shop: Topology) -> None:
    orders, clean, daily = (live(shop, f"shop.{name}") for name in ("orders", "clean", "daily"))
    for key in ("p", "q"):
        feed(state, orders, key)
    settle(state)
    assert remove(state, "shop.orders", "p").removed == ["p"]
    assert settle(state) == 0  # Nothing has to run for it.
    for each in (orders, clean, daily):
        assert keys_of(state, each) == {"q"}
        generation = generation_of(state, each)
        assert (generation["partitions"], generation["rows"], generation["bytes"]) == (1, 10, 100)
    assert [each for each in all_of(state, schema.invalidations) if each["processed_at"] is None] == []
    catch_up(state)
    assert settle(state) == 0
    assert keys_of(state, clean) == {"q"}


def test_a_removal_counts_once_and_only_of_what_is_there(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.orders"), "p")
    settle(state)
    first = remove(state, "shop.orders", "p")
    again = remove(state, "shop.orders", "p")
    assert (first.removed, again.removed, again.already) == (["p"], [], ["p"])
    assert len([each for each in all_of(state, schema.commits) if each["replaced_by"] == each["revision"]]) == 1
    with pytest.raises(NotFound, match="no partition x: see which there are"):
        remove(state, "shop.orders", "x")
    with pytest.raises(UsageError, match="named twice"):
        remove(state, "shop.orders", "p", "p")


def test_a_partition_that_is_being_made_is_not_removed(state: State, shop: Topology) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    feed(state, orders, "p", "1")
    settle(state)
    feed(state, orders, "p", "2")
    spread(state)
    with pytest.raises(Refused, match="would bring it back"):
        remove(state, "shop.clean", "p")
    settle(state)
    assert remove(state, "shop.clean", "p").removed == ["p"]
    settle(state)
    catch_up(state)
    assert settle(state) == 0
    assert keys_of(state, clean) == set()  # The input is there; this generation has it no more all the same.
    assert keys_of(state, orders) == {"p"}


def test_a_reader_at_work_on_a_removed_partition_commits_nothing(state: State, shop: Topology) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    feed(state, orders, "p")
    route_all(state)
    held = claimed(state, tasks_of(state, clean)[0]["id"])
    remove(state, "shop.orders", "p")
    spread(state)
    assert row_of(state, held.work.task_id)["cancel_requested"]
    succeed(state, held)
    assert keys_of(state, clean) == set()
    assert row_of(state, held.work.task_id)["status"] == "cancelled"


def test_what_was_announced_and_not_routed_starts_nothing(state: State, shop: Topology) -> None:
    orders = live(shop, "shop.orders")
    feed(state, orders, "p")
    remove(state, "shop.orders", "p")
    assert settle(state) == 0
    with state.read() as tx:
        assert tallies.counts(tx, orders.outputs[0].dataset_id)[tallies.EVENTS] == {"superseded": 1}


def test_a_partition_that_comes_back_is_read_again(state: State, shop: Topology) -> None:
    orders, clean, daily = (live(shop, f"shop.{name}") for name in ("orders", "clean", "daily"))
    feed(state, orders, "p", "1")
    settle(state)
    remove(state, "shop.orders", "p")
    settle(state)
    feed(state, orders, "p", "2")
    assert settle(state) == 3
    for each in (orders, clean, daily):
        assert keys_of(state, each) == {"p"}
        assert generation_of(state, each)["partitions"] == 1


def test_a_task_for_a_removed_partition_reads_nothing_and_does_not_wait(state: State, shop: Topology) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    feed(state, orders, "p")
    settle(state)
    remove(state, "shop.orders", "p")
    spread(state)
    of = clean.inputs[0]
    about = {"dataset_id": of.dataset_id, "generation_id": of.generation_id}
    for key, known in {"p": True, "never there": False}.items():
        task = made(state, NewTask(job=clean, dedupe_key=f"by hand {key}", partition_key=key, **about))
        [read] = claimed(state, task).work.inputs
        assert (read.pieces, read.revision is not None) == ([], known)


def test_a_reader_that_has_the_partition_from_another_input_reads_again(state: State) -> None:
    both = dag(
        "shop", source("a"), source("b"), job("either", reads=["a", "b"]), job("all", reads=["a", "b"], join="all")
    )
    shop = deployed(state, both)
    a, b, either, joined = (live(shop, f"shop.{name}") for name in ("a", "b", "either", "all"))
    feed(state, a, "p")
    feed(state, b, "p")
    settle(state)
    remove(state, "shop.a", "p")
    assert settle(state) == 1
    assert keys_of(state, either) == {"p"}
    assert keys_of(state, joined) == set()
    remove(state, "shop.b", "p", key="k2")
    settle(state)
    assert keys_of(state, either) == set()
    feed(state, b, "p", "2")
    settle(state)
    assert keys_of(state, joined) == set()  # It waits for the other side.
    feed(state, a, "p", "2")
    settle(state)
    assert keys_of(state, either) == keys_of(state, joined) == {"p"}


def test_of_what_was_appended_only_the_part_of_a_removed_partition_goes(state: State) -> None:
    appending = dag(
        "shop",
        source("a"),
        source("b"),
        job("log", reads=["a", "b"], update_strategy="append", unique_key=["id"]),
    )
    shop = deployed(state, appending)
    a, b, log = (live(shop, f"shop.{name}") for name in ("a", "b", "log"))
    feed(state, a, "p")
    feed(state, b, "p")
    settle(state)
    assert generation_of(state, log)["rows"] == 20
    remove(state, "shop.a", "p")
    settle(state)
    [partition] = [
        each for each in all_of(state, schema.partitions) if each["generation_id"] == log.outputs[0].generation_id
    ]
    assert (partition["rows"], generation_of(state, log)["rows"], generation_of(state, log)["partitions"]) == (
        10,
        10,
        1,
    )
    remove(state, "shop.b", "p", key="k2")
    settle(state)
    assert keys_of(state, log) == set()
    assert generation_of(state, log)["rows"] == 0


def test_later_versions_do_not_build_it_and_one_that_failed_only_there_takes_over(
    state: State, shop: Topology
) -> None:
    orders = live(shop, "shop.orders")
    for key in ("p", "q"):
        feed(state, orders, key)
    settle(state)
    number = staged(state, edited(SHOP, "clean", config={"n": 2})).version
    catch_up(state)
    new = live(loaded(state), "shop.clean", number)
    for task in tasks_of(state, new):
        held = claimed(state, task["id"])
        if task["partition_key"] == "p":
            finish(state, held, Outcome.FATAL, error="the file is gone")
        else:
            succeed(state, held)
    with state.write() as tx, pytest.raises(Refused, match="1 of its tasks failed"):
        cutover.mark_ready(tx, "shop", number, "ann")
    remove(state, "shop.orders", "p", reason="deleted by retention")
    settle(state)
    catch_up(state)
    settle(state)
    with state.read() as tx:
        found = rebuilding.rebuild(tx, "shop", number)
    assert found.caught_up
    assert found.tasks.get("failed", 0) == 0
    with state.write() as tx:
        cutover.mark_ready(tx, "shop", number, "ann")
        assert cutover.activate(tx, "shop", number, "ann").active == number
    assert keys_of(state, live(loaded(state), "shop.daily")) == {"q"}
    with state.write() as tx:
        cutover.rollback(tx, "shop", "ann")
    settle(state)
    assert keys_of(state, live(loaded(state), "shop.daily")) == {"q"}  # Removed from both while both were live.
    later = edited(SHOP, "clean", config={"n": 3})
    number = staged(state, later).version
    catch_up(state)
    assert {each["partition_key"] for each in tasks_of(state, live(loaded(state), "shop.clean", number))} == {"q"}


def test_history_keeps_what_was_removed_and_why_says_who_did_it(state: State, shop: Topology) -> None:
    orders = live(shop, "shop.orders")
    feed(state, orders, "p")
    settle(state)
    before = generation_of(state, orders)["revision"]
    remove(state, "shop.orders", "p", reason="deleted by retention")
    settle(state)
    after = generation_of(state, orders)["revision"]
    with state.read() as tx:
        commits = history.list_commits(tx, "shop.orders", partition_key="p").commits
        changes = history.list_changes(tx, "shop.orders", before, after).changes
        whole = history.list_changes(tx, "shop.orders", 0, after).changes
    assert [(each.removed, each.replaced_by) for each in commits] == [(True, None), (False, after)]
    assert [(each.change, each.partition_key, each.rows) for each in changes] == [("removed", "p", -10)]
    assert whole == []
    said = explanation(state, "shop.orders@p")
    assert "shop.orders@p is not there: removed at" in said
    assert "by ann: deleted by retention" in said
    said = explanation(state, "shop.daily@p")
    assert "removed at" in said
    assert "by ann: partition p of shop.clean was removed" in said
    feed(state, orders, "p", "2")
    settle(state)
    assert "is there" in explanation(state, "shop.orders@p")
    with state.read() as tx:
        changes = history.list_changes(tx, "shop.orders", before, generation_of(state, orders)["revision"]).changes
    assert [each.change for each in changes] == ["removed", "added"]
