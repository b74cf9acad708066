"""An invalidation stays open exactly as long as a reader has still to read again."""

from __future__ import annotations

from typing import Any

import pytest

from qo.api.contract.task import Outcome
from qo.core.pipeline.topology import Topology
from qo.dispatcher.engine.loops import invalidation
from qo.dispatcher.events import invalidations
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import cutover
from support.dispatcher.pipeline_tasks import all_of, claimed, feed, finish, lapse, partition_task, row_of, succeed
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

SHOP = dag("shop", source("orders"), job("clean", reads="orders", max_attempts=1), job("other", reads="orders"))


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def read_again(state: State, shop: Topology, *names: str) -> list[str]:
    """A partition that these jobs have read is replaced; the tasks that read it again."""
    feed(state, live(shop, "shop.orders"), "p")
    for name in names:
        succeed(state, claimed(state, partition_task(state, live(shop, f"shop.{name}"), "p")))
    feed(state, live(shop, "shop.orders"), "p", run="2")
    while invalidation.tick(state):
        pass
    made = [each for each in all_of(state, schema.tasks) if each["invalidation_id"] is not None]
    return [each["id"] for name in names for each in made if each["job"] == name]


def only(state: State) -> dict[str, Any]:
    """The one that has readers."""
    read_by = {each["invalidation_id"] for each in all_of(state, schema.invalidation_readers)}
    (found,) = [each for each in all_of(state, schema.invalidations) if each["id"] in read_by]
    return found


def open_readers(state: State) -> int:
    return sum(each["processed_at"] is None for each in all_of(state, schema.invalidation_readers))


def test_a_reader_that_was_cancelled_keeps_nothing_open_until_it_is_replayed(state: State, shop: Topology) -> None:
    (task,) = read_again(state, shop, "clean")
    assert only(state)["processed_at"] is None
    with state.write() as tx:
        operator_actions.cancel(tx, task, "ada")
    assert only(state)["processed_at"] is not None
    with state.write() as tx:
        operator_actions.replay(tx, task, "ada")
    assert (only(state)["processed_at"], open_readers(state)) == (None, 1)
    succeed(state, claimed(state, task))
    assert only(state)["processed_at"] is not None


def test_a_reader_that_failed_for_good_keeps_nothing_open(state: State, shop: Topology) -> None:
    failed, other = read_again(state, shop, "clean", "other")
    finish(state, claimed(state, failed), Outcome.FATAL, error="no")
    assert (row_of(state, failed)["status"], open_readers(state)) == ("failed", 1)
    assert only(state)["processed_at"] is None
    finish(state, claimed(state, other), Outcome.RETRYABLE, error="once more")
    assert only(state)["processed_at"] is None, "it will be tried again"
    with state.write() as tx:
        operator_actions.cancel(tx, other, "ada")
    assert only(state)["processed_at"] is not None


def test_a_reader_that_died_once_too_often_keeps_nothing_open(
    state: State, shop: Topology, state_clock: Clock
) -> None:
    (task,) = read_again(state, shop, "clean")
    held = claimed(state, task)
    state_clock.advance(61)
    lapse(state, held)
    assert (row_of(state, task)["status"], open_readers(state)) == ("failed", 0)
    assert only(state)["processed_at"] is not None
    assert succeed(state, held).status == "completed", "it was only late"
    assert open_readers(state) == 0


def test_readers_of_editions_that_no_version_has_any_more_are_given_up(state: State, shop: Topology) -> None:
    read_again(state, shop, "clean", "other")
    with state.read() as tx:
        assert invalidations.forsaken(tx, shop) == []
    staged(state, edited(SHOP, "clean", config={"a": 1}))
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "ada", force=True)
    gone = live(shop, "shop.clean").edition_id
    with state.read() as tx:
        assert invalidations.forsaken(tx, loaded(state)) == [gone]
    assert invalidation.tick(state) == 1
    assert invalidation.tick(state) == 0
    assert open_readers(state) == 1
    (waits,) = [
        each for each in all_of(state, schema.tasks) if each["job"] == "other" and each["status"] == "pending"
    ]
    with state.write() as tx:
        assert invalidations.forsaken(tx, loaded(state)) == []
        operator_actions.cancel(tx, waits["id"], "ada")
    assert only(state)["processed_at"] is not None
