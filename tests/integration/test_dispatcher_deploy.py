"""Deploying a file: versions by content, staged beside what serves, names across DAGs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from qo.core.pipeline.dag import Dag
from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import cutover, deploy
from qo.errors import Refused, UsageError
from qo.pipeline.registry import DEFAULT, registry
from support.dispatcher.listeners import served
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

SHOP = dag(
    "shop",
    source("orders"),
    source("ticks", "always_on"),
    job("clean", reads={"job": "orders", "where": {"kind": ["a", "b"]}}),
    job("daily", reads=["clean", {"job": "orders", "trigger": False}], execution_strategy="PerUpdate"),
    job("alert", reads="daily", outputs=0, max_attempts=1),
    publish={"clean_orders": "clean"},
)
EDITED = edited(SHOP, "clean", config={"sql": "select 2"})
REPORT = dag("report", job("sum", reads={"dataset": "clean_orders"}))


def rows(state: State, table: sa.Table) -> int:
    with state.read() as tx:
        return int(tx.value(sa.select(sa.func.count()).select_from(table)))


def everything(state: State) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables."""
    with state.read() as tx:
        return {
            name: sorted((tuple(row) for row in tx.execute(sa.select(table))), key=repr)
            for name, table in schema.metadata.tables.items()
        }


def status(state: State, name: str, number: int) -> str:
    with state.read() as tx:
        return cutover.find(tx, name, number)["status"]


def test_the_first_version_is_active_at_once(state: State) -> None:
    answer = staged(state, SHOP)
    assert (answer.version, answer.status, answer.created, answer.changed) == (1, "active", True, True)
    assert answer.diff.added == ["alert", "clean", "daily", "orders", "ticks"]
    assert answer.diff.against is None
    found = loaded(state)
    assert {each.name for each in found.jobs.values()} == {f"shop.{name}" for name in answer.diff.added}
    clean = live(found, "shop.clean")
    assert found.current[clean.outputs[0].dataset_id] == clean.outputs[0].generation_id
    assert clean.inputs[0].generation_id == live(found, "shop.orders").outputs[0].generation_id
    assert clean.inputs[0].where == {"kind": ["a", "b"]}
    assert (clean.queue, clean.job, clean.status) == ("python", SHOP.jobs[1], VersionStatus.ACTIVE)
    assert [each.trigger for each in live(found, "shop.daily").inputs] == [True, False]
    assert live(found, "shop.alert").outputs == ()


def test_the_same_file_twice_changes_nothing(state: State) -> None:
    first = staged(state, SHOP)
    before = everything(state)
    again = staged(state, SHOP, by="somebody else")
    assert (again.version_id, again.created, again.changed) == (first.version_id, False, False)
    assert again.diff.same
    assert everything(state) == before


def test_an_edited_file_is_staged_beside_the_one_that_serves(state: State) -> None:
    before = deployed(state, SHOP)
    answer = staged(state, EDITED)
    assert (answer.version, answer.status) == (2, "staged")
    assert [each.job for each in answer.diff.rebuilt] == ["clean", "daily", "alert"]
    assert answer.diff.carried_over == ["orders", "ticks"]
    after = loaded(state)
    assert after.epoch > before.epoch
    assert dict(after.current) == dict(before.current)
    orders = live(after, "shop.orders")  # One edition in two versions stands there once, as the active one has it.
    assert orders.status is VersionStatus.ACTIVE
    both = after.consumers(orders.outputs[0].dataset_id, orders.outputs[0].generation_id)
    assert sorted((reader.job.name, reader.job.status) for reader in both) == [
        ("shop.clean", VersionStatus.ACTIVE),
        ("shop.clean", VersionStatus.STAGED),
    ]
    assert live(after, "shop.clean", 2).outputs[0].dataset_id == live(after, "shop.clean", 1).outputs[0].dataset_id


def test_a_version_with_nothing_to_rebuild_is_ready_but_not_active(state: State) -> None:
    deployed(state, SHOP)
    answer = staged(state, edited(SHOP, "clean", timeout_seconds=9))
    assert (answer.status, answer.diff.rebuilt) == ("ready", [])
    assert live(loaded(state), "shop.clean").job.timeout_seconds is None
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests")
    assert live(loaded(state), "shop.clean").job.timeout_seconds == 9


def test_another_file_takes_the_place_of_the_staged_one(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    answer = staged(state, edited(SHOP, "daily", config={"x": 1}))
    assert (answer.version, answer.status, answer.abandoned) == (3, "staged", 2)
    assert status(state, "shop", 2) == "abandoned"
    assert {each.version_number for each in loaded(state).jobs.values()} == {1, 3}


def test_a_file_that_was_given_up_can_be_deployed_again_under_its_number(state: State) -> None:
    deployed(state, SHOP)
    first = staged(state, EDITED)
    staged(state, edited(SHOP, "daily", config={"x": 1}))
    again = staged(state, EDITED)
    assert (again.version, again.version_id, again.status) == (2, first.version_id, "staged")
    assert (again.created, again.changed, again.abandoned) == (False, True, 3)
    assert {each.version_number for each in loaded(state).jobs.values()} == {1, 2}


def test_a_retired_file_is_staged_again_or_ready_if_nothing_changed(state: State) -> None:
    deployed(state, SHOP)
    staged(state, edited(SHOP, "clean", timeout_seconds=9))
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests")
    assert staged(state, SHOP).status == "ready"
    staged(state, EDITED)
    with state.write() as tx:
        cutover.activate(tx, "shop", 3, "tests", force=True)
    assert staged(state, SHOP).status == "staged"


def test_sources_are_written_down_once(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    with state.read() as tx:
        found = tx.all(sa.select(schema.sources).order_by(schema.sources.c.job))
    assert [(row["job"], row["kind"], row["state"]) for row in found] == [
        ("orders", "manual", "running"),
        ("ticks", "always_on", "pending"),
    ]
    staged(state, edited(SHOP, "ticks", config={"url": "x"}))
    assert rows(state, schema.sources) == 3


def test_a_diff_tells_and_changes_nothing(state: State) -> None:
    deployed(state, SHOP)
    before = everything(state)
    with state.read() as tx:
        found = deploy.diff(tx, EDITED, DEFAULT)
    assert [(each.job, each.fields) for each in found.edited] == [("clean", ["config.sql"])]
    assert found.rebuilt[1].why == "reads clean, which is edited"
    assert everything(state) == before


# Names across DAGs


def test_a_name_that_nobody_publishes_is_named(state: State) -> None:
    with pytest.raises(UsageError, match="'clean_orders'"):
        staged(state, REPORT)
    assert rows(state, schema.dags) == 0


def test_another_dag_reads_whatever_is_current(state: State) -> None:
    deployed(state, SHOP)
    first = deployed(state, REPORT)
    clean = live(first, "shop.clean").outputs[0]
    assert [each.job.name for each in first.consumers(clean.dataset_id, clean.generation_id)] == [
        "report.sum",
        "shop.daily",
    ]
    staged(state, EDITED)
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests", force=True)
    after = loaded(state)
    assert "report.sum" not in [each.job.name for each in after.consumers(clean.dataset_id, clean.generation_id)]
    new = live(after, "shop.clean").outputs[0]
    assert "report.sum" in [each.job.name for each in after.consumers(new.dataset_id, new.generation_id)]
    assert live(after, "report.sum").edition_id == live(first, "report.sum").edition_id


def test_a_name_belongs_to_one_dag(state: State) -> None:
    deployed(state, SHOP)
    other = dag("other", source("orders"), publish={"clean_orders": "orders"})
    before = everything(state)
    with pytest.raises(Refused, match="published by the DAG 'shop'"):
        staged(state, other)
    assert everything(state) == before


def test_a_name_that_was_free_at_deploy_is_looked_at_again_at_cutover(state: State) -> None:
    plain = SHOP.jobs
    deployed(state, dag("shop", *plain))
    deployed(state, dag("other", source("orders")))
    staged(state, dag("shop", *plain, publish={"orders": "orders"}))
    staged(state, dag("other", source("orders"), publish={"orders": "orders"}))
    with state.write() as tx:
        cutover.activate(tx, "other", 2, "tests")
    with state.write() as tx, pytest.raises(Refused, match="published by the DAG 'other'"):
        cutover.activate(tx, "shop", 2, "tests")


def test_what_others_read_stays_published(state: State) -> None:
    deployed(state, SHOP)
    deployed(state, REPORT)
    for publish in ({}, {"clean_orders": "daily"}):
        with pytest.raises(Refused, match=r"'clean_orders' is read by 'report\.sum'"):
            staged(state, dag("shop", *SHOP.jobs, publish=publish))


def test_a_reader_that_came_after_the_deploy_still_keeps_its_name(state: State) -> None:
    deployed(state, SHOP)
    staged(state, dag("shop", *SHOP.jobs))
    deployed(state, REPORT)
    with state.write() as tx, pytest.raises(Refused, match=r"report\.sum"):
        cutover.activate(tx, "shop", 2, "tests")


def test_data_never_goes_round_in_a_circle(state: State) -> None:
    deployed(state, SHOP)
    deployed(state, dag("report", job("sum", reads={"dataset": "clean_orders"}), publish={"sums": "sum"}))
    circle = edited(SHOP, "clean", inputs=[{"from": {"job": "orders"}}, {"from": {"dataset": "sums"}}])
    with pytest.raises(Refused, match=r"circle: .*report\.sum"):
        staged(state, circle)
    beside = edited(SHOP, "daily", inputs=[{"from": {"job": "clean"}}, {"from": {"dataset": "sums"}}])
    assert staged(state, beside).status == "staged"


# At once, and interrupted


def test_threads_that_deploy_the_same_file_make_one_version(state: State) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: staged(state, SHOP), range(8)))
    assert [each.created for each in answers].count(True) == 1
    assert {each.version for each in answers} == {1}
    assert rows(state, schema.dag_versions) == 1


def test_threads_that_deploy_different_files_leave_one_staged(state: State) -> None:
    deployed(state, SHOP)
    files = [edited(SHOP, "clean", config={"n": n}) for n in range(6)]
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda each: staged(state, each), files))
    assert sorted(each.version for each in answers) == [2, 3, 4, 5, 6, 7]
    with state.read() as tx:
        found = tx.execute(sa.select(schema.dag_versions.c.status, sa.func.count()).group_by(sa.text("1"))).all()
    assert dict(tuple(row) for row in found) == {"active": 1, "staged": 1, "abandoned": 5}


@pytest.mark.parametrize(
    "step", ["_write_version", "_write_jobs", "_write_datasets", "_write_sources", "_stage", "_answer"]
)
def test_a_deploy_that_breaks_off_leaves_nothing(state: State, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed(state, SHOP)
    staged(state, edited(SHOP, "daily", config={"x": 1}))
    before, topology_before = everything(state), loaded(state)
    real = getattr(deploy, step)

    def broken(*args: object, **options: object) -> None:
        real(*args, **options)
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(deploy, step, broken)
        with pytest.raises(ZeroDivisionError):
            staged(state, EDITED)
    assert everything(state) == before
    assert loaded(state) == topology_before
    assert staged(state, EDITED).status == "staged"


def test_a_topology_that_was_undone_is_not_remembered(state: State) -> None:
    deployed(state, SHOP)
    before = loaded(state)
    with state.write() as tx:
        deploy.deploy(tx, EDITED, "", "tests", DEFAULT)
        assert topology.load(tx).epoch > before.epoch
        assert len(topology.load(tx).jobs) > len(before.jobs)
        tx.connection.get_transaction().rollback()
    staged(state, edited(SHOP, "daily", config={"x": 1}))
    assert live(loaded(state), "shop.daily", 2).job.config == {"x": 1}
    assert {each.name for each in loaded(state).jobs.values() if each.version_number == 2} == {
        "shop.daily",
        "shop.alert",
    }


def test_every_process_sees_a_change_at_its_next_look(state: State, state_url: str) -> None:
    other = open_state(state_url)
    deployed(state, SHOP)
    assert loaded(other) == loaded(state)
    staged(state, EDITED)
    assert loaded(other) == loaded(state)
    assert loaded(other) is loaded(other)
    other.close()


def test_a_large_dag_is_deployed_whole(state: State) -> None:
    jobs = [job(f"job{n:04}", reads=f"job{n - 1:04}" if n % 20 else "feed") for n in range(1, 1200)]
    big: Dag = dag("big", source("feed"), job("job0000", reads="feed"), *jobs)
    assert len(deployed(state, big).jobs) == 1201
    answer = staged(state, edited(big, "feed", config={"x": 1}))
    assert len(answer.diff.rebuilt) == 1201
    assert len(loaded(state).jobs) == 2402


def test_how_long_an_attempt_may_take_says_the_registry(state: State) -> None:
    quick = replace(DEFAULT.get("python"), timeout_seconds=7.0)
    wanted = dag(
        "shop",
        source("orders", runtime="python", operator="shop.feed:run"),
        source("feed", "always_on"),
        job("clean", reads="orders"),
        job("own", reads="orders", timeout_seconds=9),
    )
    with state.write() as tx:
        deploy.deploy(tx, wanted, "", "tests", registry([quick]))
    topology.use_registry(state, registry([quick]))
    with state.write() as tx:
        live_jobs = topology.load(tx).jobs.values()
        created = create(tx, [NewTask(job=each, dedupe_key="manual:1") for each in live_jobs])
        assert all(each.new for each in created)
        kept = tx.execute(sa.select(schema.tasks.c.job, schema.tasks.c.timeout_seconds))
        assert dict(kept.all()) == {"orders": 7.0, "feed": None, "clean": 7.0, "own": 9.0}


QUERY_REPORT = """\
name: report
jobs:
- name: totals
  activation: reactive
  runtime: spark
  operator: sql
  outputs: 1
  execution_strategy: PerPartition
  config:
    query: |
      SELECT account, sum(amount)
      FROM clean_ordres
      GROUP BY account
"""


async def test_a_query_of_a_deploy_reads_what_others_publish_and_unknown_names_are_refused(
    state: State, tmp_path: Path
) -> None:
    deployed(state, SHOP)
    async with served(state, tmp_path) as dispatcher:
        headers = {"Content-Type": "application/yaml"}
        path = "/v1/dags/report/versions"
        answer = await dispatcher.post(path, "writer", content=QUERY_REPORT.encode(), headers=headers)
        assert answer.status_code == 400
        assert "report.yaml:12:12: the query of 'totals' reads 'clean_ordres'" in answer.text
        assert "did you mean 'clean_orders'?" in answer.text
        right = QUERY_REPORT.replace("clean_ordres", "shop.clean_orders")
        answer = await dispatcher.post(path, "writer", content=right.encode(), headers=headers)
        assert answer.is_success, answer.text
        shown = (await dispatcher.get("/v1/dags/report", "reader")).json()
    assert [each["reads"] for each in shown["jobs"]] == [["clean_orders"]]
    assert "FROM shop.clean_orders" in shown["source"]
