"""A backfill makes every partition of its range once more, a few at a time, whatever happens meanwhile."""

from __future__ import annotations

import pytest

from qo.api.contract.backfill import BackfillAnswer, BackfillRequest
from qo.api.contract.task import Outcome
from qo.core.pipeline.topology import Topology
from qo.dispatcher.engine.loops import backfill
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import backfills, cutover
from qo.dispatcher.views.why.answer import why
from qo.errors import NotFound, Refused, UsageError
from support.dispatcher.pipeline_tasks import all_of, claimed, feed, finish, settle
from support.dispatcher.pipelines import dag, deployed, edited, job, live, source, staged

SHOP = dag(
    "shop",
    source("orders"),
    source("rates"),
    job("clean", reads="orders"),
    job("daily", reads="clean"),
    job("both", reads=["orders", "rates"], join="all"),
    job("either", reads=["orders", "rates"]),
    job("follow", reads="orders", execution_strategy="PerUpdate"),
    job("alert", reads="clean", outputs=0),
)
DAYS = ["2024-01-01", "2024-01-02", "2024-01-04", "2024-01-05"]


@pytest.fixture
def shop(state: State) -> Topology:
    topology = deployed(state, SHOP)
    for day in DAYS:
        feed(state, live(topology, "shop.orders"), day)
    feed(state, live(topology, "shop.rates"), DAYS[1])
    settle(state)
    return topology


def begun(
    state: State, name: str, low: str | None = None, high: str | None = None, **how: object
) -> BackfillAnswer:
    wanted = BackfillRequest.model_validate(
        {"dag": "shop", "job": name, "from_key": low, "to_key": high, "at_once": 2, **how}
    )
    with state.write() as tx:
        return backfills.create(tx, wanted, "ann")


def shown(state: State, id_: str) -> BackfillAnswer:
    with state.read() as tx:
        return backfills.show(tx, id_)


def own(state: State, id_: str) -> list[dict[str, object]]:
    return [each for each in all_of(state, schema.tasks) if each["dedupe_key"].startswith(f"backfill:{id_}:")]


def revisions(state: State, topology: Topology, name: str) -> dict[str, int]:
    generation = live(topology, name).outputs[0].generation_id
    rows = all_of(state, schema.partitions)
    return {each["partition_key"]: each["revision"] for each in rows if each["generation_id"] == generation}


def test_the_partitions_of_a_range_are_made_once_more_a_few_at_a_time(state: State, shop: Topology) -> None:
    before, below = revisions(state, shop, "shop.clean"), revisions(state, shop, "shop.daily")
    made = begun(state, "clean", "2024-01-01", "2024-01-04")
    assert (made.state, made.left, made.missing) == ("running", 3, ["2024-01-03"])
    assert backfill.tick(state) == 2
    assert backfill.tick(state) == 0  # As many as may be are open.
    assert {each["partition_key"] for each in own(state, made.id)} == {"2024-01-01", "2024-01-02"}
    settle(state)
    assert backfill.tick(state) == 1
    settle(state)
    assert (backfill.tick(state), backfill.tick(state)) == (1, 0)
    ended = shown(state, made.id)
    assert (ended.state, ended.made, ended.tasks, ended.left) == ("done", 3, {"completed": 3}, 0)
    after, further = revisions(state, shop, "shop.clean"), revisions(state, shop, "shop.daily")
    assert {key for key in after if after[key] != before[key]} == set(DAYS[:3])
    assert {key for key in further if further[key] != below[key]} == set(DAYS[:3])  # Downstream follows.


def test_asked_again_with_the_same_key_it_is_the_same(state: State, shop: Topology) -> None:
    first = begun(state, "clean", DAYS[0], DAYS[0], key="k")
    backfill.tick(state)
    assert begun(state, "clean", DAYS[0], DAYS[0], key="k").id == first.id
    assert len(own(state, first.id)) == 1


def test_a_step_that_is_taken_twice_makes_its_tasks_once(state: State, shop: Topology) -> None:
    made = begun(state, "clean", at_once=10)
    backfill.tick(state)
    with state.write() as tx:  # As if the mark had not been written.
        tx.execute(schema.backfills.update().values(after_key=None))
    backfill.tick(state)
    assert len(own(state, made.id)) == 4


def test_paused_it_makes_nothing_and_cancelled_it_drops_what_waits(state: State, shop: Topology) -> None:
    made = begun(state, "clean", at_once=1)
    with state.write() as tx:
        backfills.pause(tx, made.id)
    assert backfill.tick(state) == 0
    with state.write() as tx:
        backfills.resume(tx, made.id)
    assert backfill.tick(state) == 1
    with state.write() as tx:
        assert backfills.cancel(tx, made.id, "ann").tasks == {"cancelled": 1}
    assert backfill.tick(state) == 0
    with state.write() as tx, pytest.raises(Refused):
        backfills.resume(tx, made.id)


def test_a_failed_task_does_not_keep_the_rest_from_being_made(state: State, shop: Topology) -> None:
    made = begun(state, "clean", DAYS[0], DAYS[1], at_once=1)
    backfill.tick(state)
    [task] = own(state, made.id)
    finish(state, claimed(state, str(task["id"])), Outcome.FATAL, error="no")
    assert backfill.tick(state) == 1
    settle(state)
    assert backfill.tick(state) == 1
    assert shown(state, made.id).tasks == {"completed": 1, "failed": 1}


def test_a_join_is_made_where_every_input_has_the_partition(state: State, shop: Topology) -> None:
    assert begun(state, "both").left == 1
    assert begun(state, "either").left == 4  # One of them stands in both inputs.
    with pytest.raises(NotFound):
        begun(state, "both", DAYS[0], DAYS[0])


def test_numbers_are_compared_with_the_ranges_of_partitions(state: State, shop: Topology) -> None:
    for start in (0, 100, 200, 1000):
        feed(state, live(shop, "shop.orders"), f"{start}-{start + 100}", start=start, end=start + 100)
    settle(state)
    assert begun(state, "clean", "100", "1000").left == 3
    assert begun(state, "clean", "0-100", "100-200").left == 2


def test_what_cannot_be_made_once_more_says_what_to_do_instead(state: State, shop: Topology) -> None:
    with pytest.raises(UsageError, match="qo invalidate"):
        begun(state, "follow")
    with pytest.raises(UsageError, match="does not work by partition"):
        begun(state, "orders")
    with pytest.raises(UsageError, match="has no outputs"):
        begun(state, "alert")
    with pytest.raises(UsageError, match="exchange"):
        begun(state, "clean", "b", "a")
    with pytest.raises(NotFound):
        begun(state, "nothing")
    with pytest.raises(NotFound, match="nothing to backfill"):
        begun(state, "clean", "x", "y")


def test_it_waits_while_no_live_version_has_the_job_as_it_was(state: State, shop: Topology) -> None:
    made = begun(state, "clean", at_once=1)
    number = staged(state, edited(SHOP, "clean", config={"v": 2})).version
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "ann", force=True)
    assert backfill.tick(state) == 0
    assert not shown(state, made.id).live
    with state.write() as tx:
        cutover.rollback(tx, "shop", "ann")
    assert backfill.tick(state) == 1


def test_why_says_which_backfill_wanted_a_task(state: State, shop: Topology) -> None:
    made = begun(state, "clean", DAYS[0], DAYS[0])
    backfill.tick(state)
    with state.read() as tx:
        said = "\n".join(why(tx, str(own(state, made.id)[0]["id"])).lines)
    assert f"for backfill {made.id}" in said


def test_its_tasks_are_counted_and_dropped_by_whole_keys(state: State, shop: Topology) -> None:
    """Keys that only resemble those of the backfill, in case or at the end of the id, are not its own."""
    made = begun(state, "clean")
    backfill.tick(state)
    (one, *_) = own(state, made.id)
    near = [
        f"BACKFILL:{made.id}:p",
        f"backfill:{made.id.upper()}:p",
        f"backfill:{made.id};p",
        f"backfill:{made.id}",
    ]
    with state.write() as tx:
        # Columns of a task that a test does not care about are those of another.
        tx.insert(schema.tasks, [{**one, "id": f"near{n}", "dedupe_key": key} for n, key in enumerate(near)])
    assert sum(shown(state, made.id).tasks.values()) == len(own(state, made.id)) == 2
    with state.write() as tx:
        assert backfills.cancel(tx, made.id, "ann").tasks == {"cancelled": 2}
    left = [each for each in all_of(state, schema.tasks) if each["id"].startswith("near")]
    assert {each["status"] for each in left} == {"pending"}
