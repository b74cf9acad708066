"""How far everything is: counted over all live versions of all pipelines, on both databases."""

from __future__ import annotations

import sqlalchemy as sa

from qo.core.pipeline.topology import LiveJob, VersionStatus
from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import cutover, pausing
from qo.dispatcher.views.live_versions import Live, ended_versions, live_pipelines
from qo.dispatcher.views.pipeline_progress import JobState
from qo.up.changes import describe_changes
from qo.up.pipeline_progress import Survey, survey
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

SHOP = dag(
    "shop",
    source("orders", "files", of={"path": "landing"}),
    job("clean", reads="orders"),
    job("totals", reads="clean"),
    job("alert", reads="totals", outputs=0),
    publish={"clean_orders": "clean"},
)
READER = dag(
    "reader", source("ticks", "always_on"), job("report", reads={"dataset": "clean_orders"}, runtime="spark")
)
EDITED = edited(SHOP, "totals", config={"x": 1})


def seen(state: State) -> Survey:
    with state.read() as tx:
        return survey(tx, settle_s=3.0)


def jobs(found: Survey) -> dict[str, JobState]:
    """By pipeline, version and job."""
    return {f"{each.dag} {each.number} {job.name}": job for each in found.versions for job in each.jobs}


def of(state: State, name: str, version: int | None = None) -> LiveJob:
    return live(loaded(state), name, version)


def made(state: State, by: LiveJob, status: Status, *keys: str) -> None:
    with state.write() as tx:
        ids = [each.task_id for each in create(tx, [NewTask(job=by, dedupe_key=key) for key in keys])]
        tx.execute(sa.update(schema.tasks).where(schema.tasks.c.id.in_(ids)).values(status=status))


def test_at_the_end_all_that_there_is_is_done_whatever_was_announced_twice_or_failed(state: State) -> None:
    deployed(state, SHOP)
    orders, clean, totals = (of(state, f"shop.{name}") for name in ("orders", "clean", "totals"))
    made(state, orders, Status.COMPLETED, *"abcdef")  # Emissions, some of them of a corrected file.
    made(state, clean, Status.COMPLETED, "a", "b")
    made(state, clean, Status.FAILED, "c")
    made(state, clean, Status.CANCELLED, "d")
    made(state, totals, Status.COMPLETED, "a", "b")
    found = jobs(seen(state))
    done = {name: (each.completed, each.failed, each.total) for name, each in found.items()}
    assert done["shop 1 clean"] == (2, 1, 3)
    assert done["shop 1 totals"] == (2, 0, 2)
    assert done["shop 1 alert"] == (0, 0, 0)


def test_while_it_works_what_is_still_being_made_is_expected_of_all_downstream(state: State) -> None:
    deployed(state, SHOP)
    deployed(state, READER)
    clean, totals = (of(state, f"shop.{name}") for name in ("clean", "totals"))
    made(state, clean, Status.COMPLETED, "a", "b")
    made(state, clean, Status.RUNNING, "c")
    made(state, clean, Status.PENDING, "d", "e")
    made(state, totals, Status.COMPLETED, "a")
    made(state, totals, Status.PENDING, "b")
    found = jobs(seen(state))
    assert {name: (each.completed, each.total) for name, each in found.items() if each.source is None} == {
        "shop 1 clean": (2, 5),
        "shop 1 totals": (1, 5),
        "shop 1 alert": (0, 4),
        "reader 1 report": (0, 3),
    }


def test_a_staged_version_stands_beside_the_active_one_with_what_it_builds_anew(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    made(state, of(state, "shop.totals", 2), Status.RUNNING, "a")
    made(state, of(state, "shop.alert", 2), Status.PENDING, "a")
    active, beside = seen(state).versions
    assert (active.number, active.status, active.open) == (1, VersionStatus.ACTIVE, 0)
    assert [each.name for each in active.jobs] == ["orders", "clean", "totals", "alert"]
    assert (beside.number, beside.status, [each.name for each in beside.jobs]) == (
        2,
        VersionStatus.STAGED,
        ["totals", "alert"],
    )
    assert beside.open == 1  # Side effects wait for the cutover, and nobody waits for them.


def test_each_pipeline_is_quiet_by_itself(state: State) -> None:
    deployed(state, SHOP)
    deployed(state, READER)
    made(state, of(state, "reader.report"), Status.PENDING, "a")
    with state.write() as tx:
        pausing.pause(tx, "reader", "", "ann")
    found = seen(state)
    assert found.is_idle(["shop"])
    assert (found.open_tasks("reader"), jobs(found)["reader 1 report"].paused) == (1, True)
    assert found.starting == {"reader"}  # Its always-on source does not run yet.
    assert not found.is_idle(["reader"])

    clean = of(state, "shop.clean")
    with state.write() as tx:
        _event(tx, clean)
    found = seen(state)
    assert (found.events, found.affected) == (1, {"shop", "reader"})
    assert not found.is_idle(["shop"])


def _event(tx: Tx, maker: LiveJob) -> None:
    output = maker.outputs[0]
    row = {
        "id": "00000000-0000-4000-8000-000000000001",
        "dataset_id": output.dataset_id,
        "generation_id": output.generation_id,
        "partition_key": "a",
        "received_at": tx.now,
        "state": "pending",
    }
    tx.insert(schema.events, [row])


def changed(state: State, before: Live) -> tuple[Live, list[str]]:
    with state.read() as tx:
        after = live_pipelines(tx)
        return after, describe_changes(before, after, ended_versions(tx, before, after))


def test_whatever_others_do_to_versions_is_noticed(state: State) -> None:
    now, lines = changed(state, {})
    assert lines == []
    deployed(state, SHOP)
    now, (new,) = changed(state, now)
    assert new.startswith("shop: version 1 is new and active (deployed by ")
    staged(state, EDITED)
    now, (built,) = changed(state, now)
    assert built.startswith("shop: version 2 (deployed by ")
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "ann", force=True)
    now, (taken,) = changed(state, now)
    assert taken.startswith("shop: version 2 is active, in place of 1 (deployed by ")
    with state.write() as tx:
        cutover.rollback(tx, "shop", "ann")
    now, lines = changed(state, now)
    assert lines == ["shop: version 1 is active again: version 2 was rolled back"]
    staged(state, EDITED, again=True)
    now, _ = changed(state, now)
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "ann")
    now, lines = changed(state, now)
    assert lines == ["shop: version 2 is abandoned"]
    assert changed(state, now) == (now, [])
