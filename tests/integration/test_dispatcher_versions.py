"""DAGs and versions, for people to look at; pauses; and how far a rebuild is."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from qo.api.contract.dag import RebuildAnswer
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import backlog
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.tasks.dedupe_keys import joined_prefix
from qo.dispatcher.versions import cutover, overview, pausing
from qo.errors import NotFound, UsageError
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

SHOP = dag(
    "shop",
    source("orders"),
    source("ticks", "always_on"),
    job("clean", reads="orders"),
    job("totals", reads="orders", execution_strategy="PerUpdate"),
    job("alert", reads="clean", outputs=0),
    publish={"clean_orders": "clean"},
)
EDITED = edited(edited(SHOP, "clean", config={"sql": "select 2"}), "totals", config={"x": 1})


def made(tx: Tx, of: LiveJob, *keys: str, status: str = "pending") -> None:
    ids = [each.task_id for each in create(tx, [NewTask(job=of, dedupe_key=key) for key in keys])]
    tx.execute(sa.update(schema.tasks).where(schema.tasks.c.id.in_(ids)).values(status=status))


def committed(tx: Tx, generation: str, partitions: int = 0, cursor: int | None = None) -> None:
    """Partitions p1, p2 and so on, and a cursor, as commits leave them: rows, and their sums."""
    table = schema.generation_rows
    sums = {"cursor": cursor} | ({"partitions": partitions, "revision": partitions} if partitions else {})
    tx.execute(sa.update(table).where(table.c.id == generation).values(sums))
    dataset = tx.value(sa.select(table.c.dataset_id).where(table.c.id == generation))
    own = {"dataset_id": dataset, "generation_id": generation, "task_id": "t", "committed_at": tx.now}
    tx.insert(
        schema.partitions, [own | {"partition_key": f"p{n}", "revision": n} for n in range(1, partitions + 1)]
    )


def test_dags_are_listed_page_by_page(state: State) -> None:
    for n in range(5):
        deployed(state, dag(f"dag{n}", source("feed"), job("out", reads="feed")))
    staged(state, dag("dag1", source("feed"), job("out", reads="feed", config={"x": 1})))
    with state.write() as tx:
        pausing.pause(tx, "dag2", "tired", "ann")
    with state.read() as tx:
        first = overview.list_dags(tx, None, 2)
        second = overview.list_dags(tx, first.next, 2)
        third = overview.list_dags(tx, second.next, 2)
        assert overview.list_dags(tx, dag=first.dags[1].name).dags == [first.dags[1]]
        assert overview.list_dags(tx, dag="nobody").dags == []
    assert [each.name for page in (first, second, third) for each in page.dags] == [f"dag{n}" for n in range(5)]
    assert third.next is None
    one = first.dags[1]
    assert (one.active, one.next, one.next_status, one.jobs) == (1, 2, "staged", 2)
    assert second.dags[0].paused == "tired"


def test_versions_are_listed_newest_first_page_by_page(state: State) -> None:
    deployed(state, SHOP)
    for n in range(4):
        staged(state, edited(SHOP, "clean", config={"n": n}))
    with state.read() as tx:
        first = overview.list_versions(tx, "shop", None, 3)
        rest = overview.list_versions(tx, "shop", first.next, 3)
        assert [each.version for each in (*first.versions, *rest.versions)] == [5, 4, 3, 2, 1]
        assert [each.status for each in rest.versions] == ["abandoned", "active"]
        assert rest.next is None
        with pytest.raises(NotFound):
            overview.list_versions(tx, "nothing")
        for limit in (0, 1001):
            with pytest.raises(UsageError, match="limit"):
                overview.list_versions(tx, "shop", None, limit)
        with pytest.raises(UsageError, match="next"):
            overview.list_versions(tx, "shop", "²")


def test_a_version_is_shown_with_how_its_jobs_stand(state: State) -> None:
    found = deployed(state, SHOP)
    clean = live(found, "shop.clean")
    with state.write() as tx:
        made(tx, clean, "a", "b")
        made(tx, clean, "c", status="failed")
        pausing.pause(tx, "shop.clean", "look at it", "ann")
        tx.insert(schema.holds, [{"edition_id": clean.edition_id, "reason": "paused", "since": tx.now}])
    staged(state, EDITED)
    with state.read() as tx:
        active, second = overview.show(tx, "shop"), overview.show(tx, "shop", 2)
        with pytest.raises(NotFound):
            overview.show(tx, "shop", 3)
        with pytest.raises(NotFound):
            overview.show(tx, "nothing")
    assert (active.version, active.active, second.version, second.active) == (1, 1, 2, 1)
    assert active.publish == {"clean_orders": "clean"}
    assert active.source == "as Python"
    jobs = {each.name: each for each in active.jobs}
    assert list(jobs) == ["alert", "clean", "orders", "ticks", "totals"]
    assert (jobs["clean"].tasks, jobs["clean"].hold) == ({"pending": 2, "failed": 1}, "paused")
    assert (jobs["clean"].paused, jobs["totals"].paused) == ("look at it", None)
    assert (jobs["clean"].reads, jobs["ticks"].source, jobs["clean"].source) == (["orders"], "pending", None)
    assert [each.name for each in second.jobs if each.rebuilt] == ["alert", "clean", "totals"]
    assert not any(each.rebuilt for each in active.jobs)


def test_counting_stops_at_its_limit(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    found = deployed(state, SHOP)
    monkeypatch.setattr(backlog, "COUNT_MAX", 3)
    with state.write() as tx:
        made(tx, live(found, "shop.clean"), *(f"{n}" for n in range(7)))
        made(tx, live(found, "shop.totals"), "one")
        editions = {each.edition_id for each in found.jobs.values()}
        assert sorted(list(each.values()) for each in backlog.counts(tx, editions).values()) == [[1], [3]]


def test_a_rebuild_is_followed_from_its_inputs_to_its_last_task(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)

    def progress() -> RebuildAnswer:
        with state.read() as tx:
            return overview.rebuild(tx, "shop", 2)

    def key(kind: str, of: LiveJob, what: object) -> str:
        return f"{kind}:{of.inputs[0].dataset_id}:{of.inputs[0].generation_id}:{what}"

    found = loaded(state)
    clean, totals, alert = (live(found, f"shop.{name}", 2) for name in ("clean", "totals", "alert"))
    start = progress()
    assert (start.jobs, start.remaining, start.caught_up) == (["alert", "clean", "totals"], 0, True)
    with state.write() as tx:
        committed(tx, str(clean.inputs[0].generation_id), partitions=3, cursor=50)
    assert (progress().remaining, progress().caught_up) == (4, False)  # Three partitions, and one cursor.
    with state.write() as tx:
        made(tx, clean, key("partition", clean, "p1"), key("partition", clean, "p2"), "manual:other")
        made(tx, totals, key("cursor", totals, 50), status="running")
    assert (progress().remaining, progress().tasks) == (1, {"pending": 3, "running": 1})
    with state.write() as tx:
        made(tx, clean, key("partition", clean, "p3"))
        made(tx, alert, "partition:x")
        tx.execute(
            sa.update(schema.tasks).where(schema.tasks.c.edition_id != alert.edition_id).values(status="completed")
        )
    assert (progress().remaining, progress().waiting, progress().caught_up) == (0, 1, True)
    with state.write() as tx:
        committed(tx, str(clean.inputs[0].generation_id), cursor=60)
        tx.insert(
            schema.cursors,
            [
                {
                    "edition_id": totals.edition_id,
                    "generation_id": totals.inputs[0].generation_id,
                    "dataset_id": totals.inputs[0].dataset_id,
                    "value": 60,
                    "updated_at": tx.now,
                }
            ],
        )
    assert progress().remaining == 0  # Read already, by whatever task.


def test_a_rebuild_waits_for_what_joins_and_for_other_dags(state: State) -> None:
    deployed(state, SHOP)
    joined = dag(
        "report",
        source("rates"),
        job("sum", reads=[{"dataset": "clean_orders"}, "rates"], join="all"),
        job("copy", reads={"dataset": "clean_orders"}),
    )
    found = deployed(state, joined)
    generation = live(found, "shop.clean").outputs[0].generation_id
    with state.write() as tx:
        committed(tx, generation, partitions=5)
    with state.read() as tx:
        assert overview.rebuild(tx, "report").remaining == 5  # Only the copy: the join has rates for none.
    with state.write() as tx:
        committed(tx, live(found, "report.rates").outputs[0].generation_id, partitions=2)
        read = [generation, live(found, "report.rates").outputs[0].generation_id]
        made(tx, live(found, "report.sum"), f"{joined_prefix(read)}p1")
    with state.read() as tx:
        assert overview.rebuild(tx, "report").remaining == 6


def test_an_active_version_shows_what_it_built_when_it_came(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests", force=True)
    with state.read() as tx:
        found = overview.rebuild(tx, "shop", None)
    assert (found.version, found.status, found.jobs) == (2, "active", ["alert", "clean", "totals"])


# Pauses


def test_a_pause_is_seen_at_once_and_by_everybody(state: State) -> None:
    before = deployed(state, SHOP)
    with state.write() as tx:
        answer = pausing.pause(tx, "shop.clean", "slow", "ann")
        assert topology.load(tx).paused == {"shop.clean": "slow"}
    assert (answer.paused, answer.changed, answer.by) == (True, True, "ann")
    after = loaded(state)
    assert after.epoch > before.epoch
    assert after.pause_reason(live(after, "shop.clean")) == "slow"
    assert after.pause_reason(live(after, "shop.totals")) is None
    with state.write() as tx:
        pausing.pause(tx, "shop", "all of it", "ann")
    assert loaded(state).pause_reason(live(after, "shop.totals")) == "all of it"


def test_pausing_and_resuming_twice_is_pausing_and_resuming_once(state: State) -> None:
    deployed(state, SHOP)
    steps = [
        (pausing.pause, ("shop", "why", "ann"), True),
        (pausing.pause, ("shop", "why", "bob"), False),
        (pausing.pause, ("shop", "another reason", "bob"), True),
        (pausing.resume, ("shop", "bob"), True),
        (pausing.resume, ("shop", "bob"), False),
    ]
    for step, args, changes in steps:
        before = loaded(state).epoch
        with state.write() as tx:
            assert step(tx, *args).changed is changes
        assert (loaded(state).epoch > before) is changes


def test_what_is_not_there_cannot_be_paused(state: State) -> None:
    deployed(state, SHOP)
    for scope in ("nothing", "nothing.clean", "shop.nothing", "shop.", "shop.clean.more", ""):
        with state.write() as tx, pytest.raises(NotFound):
            pausing.pause(tx, scope, "", "ann")
        with state.write() as tx, pytest.raises(NotFound):
            pausing.resume(tx, scope, "ann")


def test_the_pause_of_a_job_that_is_gone_can_still_be_undone(state: State) -> None:
    deployed(state, SHOP)
    with state.write() as tx:
        pausing.pause(tx, "shop.alert", "noisy", "ann")
    staged(
        state,
        dag("shop", *(each for each in SHOP.jobs if each.name != "alert"), publish={"clean_orders": "clean"}),
    )
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests")
        assert pausing.resume(tx, "shop.alert", "ann").changed
