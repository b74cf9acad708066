"""What the first pages of a dashboard are told: health, partitions over jobs, runs over time, search."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, Outcome, OutputBody
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.engine.loops import invalidation, router
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover, pausing
from qo.dispatcher.views import (
    job_effort,
    name_search,
    partition_grid,
    pipeline_health,
    run_durations,
    run_timeline,
)
from qo.errors import NotFound, Refused
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, edited, job, source, staged
from support.dispatcher.shop_tasks import emit, finish, tasks
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", max_attempts=1),
    job("totals", reads="clean"),
    publish={"daily_totals": "totals"},
)
MONDAY, TUESDAY, WEDNESDAY = "2024-01-01", "2024-01-02", "2024-01-03"


def _half_done(state: State) -> None:
    """Monday is total, Tuesday failed at clean, Wednesday runs at clean."""
    deployed(state, SHOP)
    for key in (MONDAY, TUESDAY, WEDNESDAY):
        emit(state, "shop.orders", key, partition_key=key)
    by_key = {each["partition_key"]: each["id"] for each in tasks(state, "shop.clean")}
    finish(state, by_key[MONDAY], outputs=[OutputBody(output=0, rows=3)])
    router.tick(state)
    (total,) = tasks(state, "shop.totals")
    finish(state, total["id"], outputs=[OutputBody(output=0, rows=1)])
    finish(state, by_key[TUESDAY], outcome=Outcome.FATAL, error="no")
    _start(state, by_key[WEDNESDAY])


def _start(state: State, task_id: str) -> None:
    with state.write() as tx:
        woken(tx, task_id)
        claimed = claiming.claim(tx, ClaimRequest(task_id=task_id, worker_id="w"), "file:/data")
    assert isinstance(claimed, Claimed)


def test_the_grid_shows_where_each_day_got_stuck(state: State) -> None:
    _half_done(state)
    with state.read() as tx:
        grid = partition_grid.show_grid(tx, "shop")
    assert (grid.version, grid.keys, grid.before) == (1, [WEDNESDAY, TUESDAY, MONDAY], None)
    states = {row.job: {cell.key: cell.state for cell in row.cells} for row in grid.rows}
    assert list(states) == ["orders", "clean", "totals"]
    assert states["orders"] == dict.fromkeys(grid.keys, "done")
    assert states["clean"] == {WEDNESDAY: "running", TUESDAY: "failed", MONDAY: "done"}
    assert states["totals"] == {MONDAY: "done"}
    (monday,) = [cell for cell in grid.rows[2].cells if cell.key == MONDAY]
    assert monday.rows == 1
    assert monday.committed_at is not None


def test_pages_of_the_grid_show_every_key_once(state: State) -> None:
    _half_done(state)
    keys: list[str] = []
    before: str | None = None
    for _ in range(3):
        with state.read() as tx:
            page = partition_grid.show_grid(tx, "shop", before=before, limit=1)
        keys += page.keys
        before = page.before
    assert (keys, before) == ([WEDNESDAY, TUESDAY, MONDAY], None)


def test_a_version_that_is_being_built_has_a_grid_of_its_own(state: State) -> None:
    _half_done(state)
    number = staged(state, edited(SHOP, "clean", config={"revision": 2})).version
    with state.read() as tx:
        grid = partition_grid.show_grid(tx, "shop", version=number)
    assert [row.job for row in grid.rows] == ["orders"]  # Shared with version 1; the others are not built yet.
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "ada", force=True)
    with state.read() as tx, pytest.raises(Refused, match="version 1 of 'shop' is retired: choose a live one"):
        partition_grid.show_grid(tx, "shop", version=1)
    with state.read() as tx, pytest.raises(NotFound, match="there is no DAG 'nothing'"):
        partition_grid.show_grid(tx, "nothing")


def test_a_failure_that_was_mended_is_not_in_the_grid(state: State) -> None:
    _half_done(state)
    emit(state, "shop.orders", "again", partition_key=TUESDAY)
    while invalidation.tick(state):
        pass
    again = [each for each in tasks(state, "shop.clean") if each["status"] == "pending"]
    finish(state, again[0]["id"], outputs=[OutputBody(output=0)])
    with state.read() as tx:
        grid = partition_grid.show_grid(tx, "shop")
    (clean,) = [row for row in grid.rows if row.job == "clean"]
    assert {cell.key: cell.state for cell in clean.cells}[TUESDAY] == "done"


def test_the_health_of_a_pipeline_counts_what_runs_waits_and_has_failed(state: State) -> None:
    _half_done(state)
    with state.write() as tx:
        pausing.pause(tx, "shop.totals", "lunch", "ada")
    with state.read() as tx:
        (shop,) = pipeline_health.list_health(tx).pipelines
    assert (shop.name, shop.active, shop.next, shop.jobs) == ("shop", 1, None, 3)
    assert (shop.running, shop.waiting, shop.failed, shop.sources, shop.sources_failed) == (1, 0, 1, 1, 0)
    (published,) = shop.published
    assert (published.name, published.dataset, published.partitions) == ("daily_totals", "shop.totals", 1)
    assert published.committed_at is not None


def test_the_timeline_tells_waiting_from_running(state: State, state_clock: Clock) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", MONDAY, partition_key=MONDAY)
    state_clock.advance(30)
    (clean,) = tasks(state, "shop.clean")
    _start(state, clean["id"])
    state_clock.advance(60)
    with state.read() as tx:
        answer = run_timeline.list_timeline(tx, "shop", job="clean")
    (task,) = answer.tasks
    (attempt,) = task.attempts
    assert (task.status, task.partition_key, attempt.ended_at) == ("running", MONDAY, None)
    assert 29 <= (attempt.started_at - task.created_at).total_seconds() <= 35
    assert (answer.now - attempt.started_at).total_seconds() >= 59


def test_pages_of_the_timeline_go_back_in_time(state: State, state_clock: Clock) -> None:
    deployed(state, SHOP)
    for key in (MONDAY, TUESDAY, WEDNESDAY):
        emit(state, "shop.orders", key, partition_key=key)
        state_clock.advance(1)
    with state.read() as tx:
        first = run_timeline.list_timeline(tx, "shop", job="clean", limit=2)
        second = run_timeline.list_timeline(tx, "shop", job="clean", before=first.before, limit=2)
    assert [each.partition_key for each in first.tasks] == [WEDNESDAY, TUESDAY]
    assert [each.partition_key for each in second.tasks] == [MONDAY]
    assert second.before is None
    with state.read() as tx, pytest.raises(NotFound, match="has no job 'nothing'"):
        run_timeline.list_timeline(tx, "shop", job="nothing")


def test_a_task_that_was_tried_very_often_shows_its_last_attempts(state: State) -> None:
    _half_done(state)
    (failed,) = [each for each in tasks(state, "shop.clean") if each["status"] == "failed"]
    with state.write() as tx:
        tx.execute(sa.update(schema.tasks).where(schema.tasks.c.id == failed["id"]).values(attempt=500))
        tx.execute(
            sa.insert(schema.attempts),
            [
                {"task_id": failed["id"], "attempt": n, "lease_id": f"l{n}", "started_at": tx.now}
                for n in range(400, 501)
            ],
        )
    with state.read() as tx:
        answer = run_timeline.list_timeline(tx, "shop", job="clean")
    (task,) = [each for each in answer.tasks if each.id == failed["id"]]
    assert [each.attempt for each in task.attempts] == list(range(481, 501))


def test_durations_are_those_of_the_last_completed_tasks(state: State, state_clock: Clock) -> None:
    deployed(state, SHOP)
    for seconds, key in ((10, MONDAY), (30, TUESDAY)):
        emit(state, "shop.orders", key, partition_key=key)
        (task,) = [each for each in tasks(state, "shop.clean") if each["partition_key"] == key]
        with state.write() as tx:
            woken(tx, task["id"])
            claim = claiming.claim(tx, ClaimRequest(task_id=task["id"], worker_id="w"), "file:/data")
        assert isinstance(claim, Claimed)
        state_clock.advance(seconds)
        fence = {"task_id": task["id"], "attempt": claim.attempt, "lease_id": claim.lease_id}
        with state.write() as tx:
            body = CompleteRequest(**fence, outcome=Outcome.SUCCESS, outputs=[OutputBody(output=0)])
            completion.complete(tx, body)
    with state.read() as tx:
        by_job = {each.job: each for each in run_durations.list_durations(tx, "shop").jobs}
    clean = by_job["clean"]
    assert (clean.tasks, by_job["totals"].tasks, by_job["totals"].mean_s) == (2, 0, None)
    assert clean.mean_s == pytest.approx(20, abs=2)
    assert clean.p95_s == pytest.approx(30, abs=2)


def test_the_effort_of_a_job_counts_failures_and_all_attempts(state: State, state_clock: Clock) -> None:
    deployed(state, SHOP)
    for seconds, key, outcome in ((10, MONDAY, Outcome.SUCCESS), (30, TUESDAY, Outcome.FATAL)):
        emit(state, "shop.orders", key, partition_key=key)
        (task,) = [each for each in tasks(state, "shop.clean") if each["partition_key"] == key]
        state_clock.advance(5)
        with state.write() as tx:
            woken(tx, task["id"])
            claim = claiming.claim(tx, ClaimRequest(task_id=task["id"], worker_id="w"), "file:/data")
        assert isinstance(claim, Claimed)
        state_clock.advance(seconds)
        fence = {"task_id": task["id"], "attempt": claim.attempt, "lease_id": claim.lease_id}
        outputs = [OutputBody(output=0)] if outcome is Outcome.SUCCESS else []
        with state.write() as tx:
            body = CompleteRequest(**fence, outcome=outcome, outputs=outputs)
            completion.complete(tx, body)
    with state.read() as tx:
        effort = job_effort.show_effort(tx, "shop", "clean")
        nothing = job_effort.show_effort(tx, "shop", "totals")
    assert (effort.tasks, effort.more, effort.period_s) == (2, False, 60)
    assert sum(each.tasks for each in effort.periods) == 2
    assert sum(each.failed for each in effort.periods) == 1
    assert sum(each.worker_s for each in effort.periods) == pytest.approx(40, abs=3)
    (median,) = [each.median_s for each in effort.periods if each.median_s is not None]
    assert median == pytest.approx(10, abs=2)
    assert max(each.waited_s or 0 for each in effort.periods) == pytest.approx(5, abs=2)
    assert (nothing.tasks, nothing.periods) == (0, [])
    with state.read() as tx, pytest.raises(NotFound, match="has no job 'nothing'"):
        job_effort.show_effort(tx, "shop", "nothing")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tot", [("job", "shop.totals"), ("dataset", "daily_totals")]),
        ("SHOP", [("pipeline", "shop")]),
        ("daily_totals@2024", [("partition", "daily_totals@2024-01-01")]),
        ("daily_totals@2025", []),
        ("nothing@2024", []),
        ("nothing", []),
    ],
)
def test_search_finds_names_whatever_their_case(state: State, text: str, names: list[tuple[str, str]]) -> None:
    _half_done(state)
    with state.read() as tx:
        hits = name_search.search(tx, text).hits
    assert [(hit.kind, hit.name) for hit in hits][: len(names) or None] == names


def test_search_finds_a_task_by_its_id(state: State) -> None:
    _half_done(state)
    (failed,) = [each for each in tasks(state, "shop.clean") if each["status"] == "failed"]
    with state.read() as tx:
        (hit,) = name_search.search(tx, failed["id"].upper()).hits
        assert name_search.search(tx, "00000000-0000-0000-0000-000000000000").hits == []
    assert (hit.kind, hit.name, hit.about, hit.task_id) == (
        "task",
        "shop.clean",
        f"failed {TUESDAY}",
        failed["id"],
    )
