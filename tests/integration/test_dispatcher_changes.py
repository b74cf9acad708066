"""Jobs that work by changes: one task for all that is new, and nothing is lost, doubled or forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from qo.api.contract.garbage import JudgeRequest
from qo.api.contract.task import Claimed, InputMode, InputPart, Outcome, Piece
from qo.core.pipeline.topology import Topology
from qo.dispatcher.attempts import pins
from qo.dispatcher.commits import removals
from qo.dispatcher.engine import garbage
from qo.dispatcher.engine.loops import invalidation, reconciler
from qo.dispatcher.events import invalidations
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state import topology as topologies
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import failures
from qo.dispatcher.versions import cutover, rebuilding, remaining
from qo.dispatcher.views import staleness
from qo.errors import Refused
from support.dispatcher.pipeline_tasks import (
    all_of,
    claimed,
    feed,
    finish,
    output,
    partition_task,
    route_all,
    row_of,
    succeed,
    tasks_of,
)
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

CHANGE: dict[str, Any] = {
    "runtime": "spark",
    "operator": "latest",
    "execution_strategy": "PerChange",
    "config": {"keys": ["id"], "sequence_by": "at"},
}
SHOP = dag("shop", source("log"), job("customers", reads="log", **CHANGE), job("mail", reads="customers"))


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def spread(state: State) -> None:
    route_all(state)
    while invalidation.tick(state):
        pass
    route_all(state)


def waiting(state: State, topology: Topology, name: str = "shop.customers") -> list[str]:
    return [each["id"] for each in tasks_of(state, live(topology, name)) if each["status"] == "pending"]


def begin(state: State, topology: Topology) -> Claimed:
    spread(state)
    (task,) = waiting(state, topology)
    return claimed(state, task)


def commit(state: State, held: Claimed, *buckets: str) -> Any:
    return finish(state, held, outputs=[output(held, partition_key=each) for each in buckets])


def part(state: State, held: Claimed, which: InputPart) -> list[str]:
    listed: list[Piece] = []
    after: str | None = None
    while True:
        with state.read() as tx:
            page, after = pins.page(tx, held.work.task_id, 0, after, 1, which)
        listed += page
        if after is None:
            return [str(each.partition_key) for each in listed]


def parts(state: State, held: Claimed) -> tuple[list[str], list[str], list[str]]:
    added, removed, whole = (part(state, held, each) for each in InputPart)
    assert [each.partition_key for each in held.work.inputs[0].pieces] == added
    return added, removed, whole


def position(state: State, topology: Topology) -> int | None:
    edition = live(topology, "shop.customers").edition_id
    return next((each["value"] for each in all_of(state, schema.cursors) if each["edition_id"] == edition), None)


def test_all_that_is_new_is_one_task_and_what_comes_later_is_the_next(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    feed(state, log, "monday")
    spread(state)
    feed(state, log, "tuesday")
    held = begin(state, shop)
    assert held.work.inputs[0].mode is InputMode.CHANGES
    assert held.work.inputs[0].changed_after == 0
    feed(state, log, "wednesday")  # Too late for this one.
    assert parts(state, held) == (["monday", "tuesday"], [], ["monday", "tuesday"])
    assert commit(state, held, "0", "1").status == "completed"
    again = begin(state, shop)
    assert again.work.inputs[0].changed_after == held.work.inputs[0].revision
    assert parts(state, again) == (["wednesday"], [], ["monday", "tuesday", "wednesday"])
    commit(state, again, "1")
    spread(state)
    assert not waiting(state, shop)
    assert {each["partition_key"] for each in all_of(state, schema.partitions) if each["partition_key"] < "a"} == {
        "0",
        "1",
    }


def test_a_replaced_or_removed_partition_is_what_was_removed(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    feed(state, log, "monday")
    feed(state, log, "tuesday")
    commit(state, begin(state, shop), "0")
    feed(state, log, "monday", run="2")
    held = begin(state, shop)
    assert parts(state, held) == (["monday"], ["monday"], ["monday", "tuesday"])
    commit(state, held, "0")
    with state.write() as tx:
        removals.remove(tx, datasets.resolve(tx, "shop.log"), ["tuesday"], by="ann", key="1")
    held = begin(state, shop)
    assert parts(state, held) == ([], ["tuesday"], ["monday"])
    commit(state, held, "0")


def test_of_two_attempts_that_read_the_same_changes_one_commits(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    feed(state, log, "monday")
    first = begin(state, shop)
    feed(state, log, "tuesday")
    second = begin(state, shop)  # Its limit of one at a time is the release's; a claim knows none.
    assert parts(state, second)[0] == ["monday", "tuesday"]
    commit(state, second, "0")
    answer = commit(state, first, "0")
    assert answer.status == "completed"
    made = [each["task_id"] for each in all_of(state, schema.commits) if each["partition_key"] == "0"]
    assert made == [second.work.task_id]  # Of the first nothing is committed: the other has read as far.


def test_an_attempt_whose_ground_has_moved_reads_again_what_is_left(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    feed(state, log, "monday")
    first = begin(state, shop)
    feed(state, log, "tuesday")
    second = begin(state, shop)
    commit(state, first, "0")
    retry = commit(state, second, "0")
    assert retry.status == "pending"
    assert row_of(state, second.work.task_id)["retry_count"] == 0
    again = claimed(state, second.work.task_id)
    assert parts(state, again)[0] == ["tuesday"]
    commit(state, again, "0")
    made = [each["task_id"] for each in all_of(state, schema.commits) if each["partition_key"] == "0"]
    assert made == [first.work.task_id, second.work.task_id]


def test_what_is_declared_invalid_is_read_from_the_beginning(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    feed(state, log, "monday")
    running = begin(state, shop)
    commit(state, running, "0")
    of = log.outputs[0]
    with state.write() as tx:
        invalidations.invalidate(tx, of.dataset_id, of.generation_id, partition_key="monday", reason="correction")
    held = begin(state, shop)
    assert held.work.inputs[0].changed_after == 0
    assert parts(state, held)[0] == ["monday"]
    commit(state, held, "0")
    spread(state)
    assert not waiting(state, shop)


def test_a_bucket_is_stale_as_long_as_there_are_changes_to_read(state: State, shop: Topology) -> None:
    log, customers = live(shop, "shop.log"), live(shop, "shop.customers")
    generation = customers.outputs[0].generation_id

    def stale() -> list[str]:
        with state.read() as tx:
            return sorted(staleness.stale_partitions(tx, shop, customers, generation, ["0", "1"]))

    feed(state, log, "monday")
    commit(state, begin(state, shop), "0", "1")
    assert stale() == []
    feed(state, log, "tuesday")
    assert stale() == ["0", "1"]
    commit(state, begin(state, shop), "1")
    assert stale() == []  # Nothing of what has changed concerned the other bucket.


def test_what_nobody_announced_is_found_and_a_failure_is_not_tried_for_ever(state: State, shop: Topology) -> None:
    log, customers = live(shop, "shop.log"), live(shop, "shop.customers")
    feed(state, log, "monday")
    with state.write() as tx:
        assert remaining.count_remaining(tx, [customers]) == {customers.edition_id: 1}
        assert reconciler.reconcile(tx, topologies.load(tx), customers) == 1
        assert reconciler.reconcile(tx, topologies.load(tx), customers) == 0
        assert remaining.count_remaining(tx, [customers]) == {customers.edition_id: 0}
    (task,) = waiting(state, shop)
    finish(state, claimed(state, task), Outcome.FATAL, error="broken")
    spread(state)
    with state.write() as tx:
        assert reconciler.reconcile(tx, topologies.load(tx), customers) == 0
        assert failures.first_open(tx, topologies.load(tx), customers.edition_id) == task
    feed(state, log, "tuesday")
    held = begin(state, shop)
    assert parts(state, held)[0] == ["monday", "tuesday"]
    commit(state, held, "0")
    with state.read() as tx:
        assert failures.first_open(tx, topologies.load(tx), customers.edition_id) is None


def test_buckets_are_removed_through_what_they_were_made_from(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.log"), "monday")
    commit(state, begin(state, shop), "0")
    with state.write() as tx, pytest.raises(Refused, match="its partitions are buckets of keys"):
        removals.remove(tx, datasets.resolve(tx, "shop.customers"), ["0"], by="ann", key="1")


def test_replaced_files_are_kept_until_they_were_compared(
    state: State, state_clock: Clock, shop: Topology
) -> None:
    log = live(shop, "shop.log")
    first = feed(state, log, "monday")
    commit(state, begin(state, shop), "0")
    feed(state, log, "monday", run="2")
    state_clock.advance(1_000_000)
    prefix = first.work.outputs[0].prefix.removeprefix("file:/data/").rstrip("/")

    def why() -> str:
        with state.read() as tx:
            request = JudgeRequest(prefixes=[prefix], keep_s=1, dry_run=True)
            return garbage.judge(tx, request)[0].why

    assert why() == "a job has yet to find out that it was replaced"
    held = begin(state, shop)
    commit(state, held, "0")
    state_clock.advance(1_000_000)
    assert why() == "it was replaced long ago"


def test_a_new_version_reads_everything_and_takes_over(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.log"), "monday")
    commit(state, begin(state, shop), "0")
    wanted = edited(SHOP, "customers", config={"keys": ["id"], "sequence_by": "at", "buckets": 4})
    staged(state, wanted)
    topology = loaded(state)
    again = live(topology, "shop.customers", 2)
    with state.write() as tx:
        assert rebuilding.rebuild(tx, "shop", 2).remaining >= 1
        assert reconciler.reconcile(tx, topologies.load(tx), again) == 1
    (task,) = [each["id"] for each in tasks_of(state, again) if each["status"] == "pending"]
    held = claimed(state, task)
    assert held.work.inputs[0].changed_after == 0
    assert parts(state, held)[0] == ["monday"]
    commit(state, held, "0")
    with state.read() as tx:
        assert remaining.count_remaining(tx, [again]) == {again.edition_id: 0}


def test_another_generation_of_the_input_is_compared_with_the_one_before(state: State) -> None:
    logs = dag("logs", source("raw"), job("log", reads="raw"), publish={"changes": "log"})
    deployed(state, logs)
    topology = deployed(state, dag("shop", job("customers", reads={"dataset": "changes"}, **CHANGE)))
    build_log(state, topology, 1, "monday", "tuesday")
    held = begin(state, topology)
    commit(state, held, "0")
    staged(state, edited(logs, "log", config={"v": 2}))
    topology = loaded(state)
    build_log(state, topology, 2, "monday")
    with state.write() as tx:
        cutover.activate(tx, "logs", 2, by="ann", force=True)
    topology = loaded(state)
    customers = live(topology, "shop.customers")
    with state.write() as tx:
        reconciler.reconcile(tx, topologies.load(tx), customers)
    held = begin(state, topology)
    assert parts(state, held) == (["monday"], ["monday", "tuesday"], ["monday"])
    commit(state, held, "0")
    with state.write() as tx:
        cutover.rollback(tx, "logs", by="ann")
    with state.write() as tx:
        reconciler.reconcile(tx, topologies.load(tx), customers)
    topology = loaded(state)
    held = begin(state, topology)
    assert parts(state, held) == (["monday", "tuesday"], ["monday"], ["monday", "tuesday"])


def build_log(state: State, topology: Topology, version: int, *days: str) -> None:
    log = live(topology, "logs.log", version)
    for day in days:
        if version == 1:
            feed(state, live(topology, "logs.raw"), day)
        succeed(state, claimed(state, partition_task(state, log, day)))
