"""What is known about data: its columns, whether it was good enough, and what it was compared with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from qo.api.contract.dataset import FreshnessState
from qo.api.contract.task import CheckBody, Claimed, ColumnBody, Outcome
from qo.api.contract.why import StepKind, Verdict
from qo.core.pipeline.columns import Column
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.commits import dataset_columns, replacing
from qo.dispatcher.engine.loops import purge
from qo.dispatcher.state import schema
from qo.dispatcher.state import topology as topologies
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.views import datasets, freshness_states, pipeline_health, quality
from qo.dispatcher.views.why.answer import why
from qo.errors import LeaseLost, NotFound, UsageError
from support.dispatcher.pipeline_tasks import (
    ROOT,
    all_of,
    claimed,
    cursor_task,
    feed,
    finish,
    lapse,
    output,
    partition_task,
    row_of,
    succeed,
)
from support.dispatcher.pipeline_tasks import made as new_task
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

DAY_S = 86_400
SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", runtime="spark", outputs=2, max_attempts=2),
    job(
        "log",
        reads="orders",
        runtime="spark",
        update_strategy="append",
        unique_key=["id"],
        drift="add",
        max_attempts=1,
    ),
    job("alert", reads="orders", runtime="spark", outputs=0),
    job("daily", reads="clean"),
    publish={"orders_clean": "clean"},
)
TICKS = dag(
    "ticks", source("ticks"), job("follow", reads="ticks", execution_strategy="PerUpdate", runtime="spark")
)


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


@pytest.fixture
def clean(shop: Topology) -> LiveJob:
    return live(shop, "shop.clean")


def column(name: str, type_: Any = "string", nullable: bool = True) -> ColumnBody:
    return ColumnBody(name=name, type=type_, nullable=nullable)


def check(passed: bool = True, **fields: Any) -> CheckBody:
    values = {"output": 0, "name": "not_null id", "kind": "not_null", "severity": "fail", "passed": passed}
    return CheckBody(**(values | fields))


def columns_of(state: State, job_: LiveJob, revision: int | None = None) -> list[Column] | None:
    with state.read() as tx:
        return dataset_columns.as_of(tx, job_.outputs[0].generation_id, revision)


def names(columns: list[Any] | None) -> list[str] | None:
    return None if columns is None else [each.name for each in columns]


def put(state: State, job_: LiveJob, key: str, *columns: ColumnBody, **fields: Any) -> Claimed:
    """Commit a partition of the first output that has these columns."""
    held = claimed(state, partition_task(state, job_, key))
    finish(state, held, outputs=[output(held, columns=list(columns), **fields)])
    return held


def once_more(state: State, job_: LiveJob, key: str) -> str:
    """Another task about the same partition."""
    of = job_.inputs[0]
    about = {"dataset_id": of.dataset_id, "generation_id": of.generation_id or "", "partition_key": key}
    return new_task(state, NewTask(job=job_, dedupe_key=f"again {key}", **about))


def last_revision(state: State) -> int:
    return max(each["revision"] for each in all_of(state, schema.commits))


# Columns


def test_the_first_commit_says_what_columns_there_are(state: State, clean: LiveJob) -> None:
    assert columns_of(state, clean) is None
    put(
        state,
        clean,
        "a",
        column("id", "long", nullable=False),
        column("tags", {"type": "array", "elementType": "string"}),
    )
    found = columns_of(state, clean)
    assert found is not None
    assert [(each.name, each.type, each.nullable) for each in found] == [
        ("id", "long", False),
        ("tags", {"type": "array", "elementType": "string"}, True),
    ]
    [commit] = all_of(state, schema.commits)
    [known] = all_of(state, schema.generation_columns)
    assert commit["schema_hash"] == known["schema_hash"]
    assert commit["revision"] == known["revision"]


def test_the_same_columns_in_another_order_are_the_same(state: State, clean: LiveJob) -> None:
    put(state, clean, "a", column("id"), column("at"))
    put(state, clean, "b", column("AT", nullable=False), column("id"))
    assert len(all_of(state, schema.generation_columns)) == 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([column("id"), column("more")], "column 'more' is new"),
        ([], "column 'id' is missing"),
        ([column("id", "long")], "column 'id' was string and is long"),
    ],
)
def test_other_columns_are_refused_and_nothing_is_committed(
    state: State, clean: LiveJob, columns: list[ColumnBody], said: str
) -> None:
    put(state, clean, "a", column("id"))
    before = all_of(state, schema.commits)
    held = claimed(state, partition_task(state, clean, "b"))
    with pytest.raises(UsageError, match=said):
        finish(state, held, outputs=[output(held, columns=columns), output(held, 1)], checks=[check()])
    assert all_of(state, schema.commits) == before
    assert all_of(state, schema.checks) == []
    assert row_of(state, held.work.task_id)["status"] == "running"
    assert names(columns_of(state, clean)) == ["id"]
    finish(state, held, Outcome.FATAL, error=said)
    assert row_of(state, held.work.task_id)["status"] == "failed"


def test_where_columns_may_be_added_each_state_keeps_its_own(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    put(state, log, "a", column("id"))
    first = last_revision(state)
    put(state, log, "b", column("id"), column("more", "long"))
    assert names(columns_of(state, log, first)) == ["id"]
    assert names(columns_of(state, log)) == ["id", "more"]
    held = claimed(state, partition_task(state, log, "c"))
    with pytest.raises(UsageError, match="'more' is missing"):
        finish(state, held, outputs=[output(held, columns=[column("id")])])


def test_a_commit_may_lack_columns_that_were_added_since_its_attempt_was_claimed(
    state: State, shop: Topology
) -> None:
    log = live(shop, "shop.log")
    put(state, log, "a", column("id"), column("at"))
    first, second = (claimed(state, partition_task(state, log, key)) for key in "bc")
    put(state, log, "d", column("id"), column("at"), column("more", "long"))
    finish(state, first, outputs=[output(first, columns=[column("id"), column("at")], columns_seen=2)])
    assert row_of(state, first.work.task_id)["status"] == "completed"
    assert names(columns_of(state, log)) == ["id", "at", "more"]
    with pytest.raises(UsageError, match="'at' is missing"):
        finish(state, second, outputs=[output(second, columns=[column("id")], columns_seen=2)])


def test_who_says_nothing_of_columns_changes_none(state: State, clean: LiveJob) -> None:
    put(state, clean, "a", column("id"))
    succeed(state, claimed(state, partition_task(state, clean, "b")))
    assert names(columns_of(state, clean)) == ["id"]


def test_another_edition_begins_with_columns_of_its_own(state: State, clean: LiveJob) -> None:
    put(state, clean, "a", column("id"))
    staged(state, edited(SHOP, "clean", config={"x": 1}))
    new = live(loaded(state), "shop.clean", version=2)
    assert columns_of(state, new) is None


def test_a_task_is_told_the_columns_of_what_it_reads_as_they_were_then(state: State, shop: Topology) -> None:
    orders, log = live(shop, "shop.orders"), live(shop, "shop.log")
    feed(state, orders, "a", columns=[column("id")])
    early = claimed(state, partition_task(state, log, "a"))
    assert names(early.work.inputs[0].columns) == ["id"]
    assert early.work.inputs[0].revision == last_revision(state)
    assert early.work.outputs[0].columns is None
    finish(state, early, outputs=[output(early, columns=[column("id"), column("seen")])])
    late = claimed(state, partition_task(state, log, "never there"))
    assert names(late.work.outputs[0].columns) == ["id", "seen"]


def test_what_was_observed_is_kept_with_the_commit(state: State, clean: LiveJob) -> None:
    put(state, clean, "a", column("id"), stats={"cursor": {"min": 1, "max": 9}})
    [commit] = all_of(state, schema.commits)
    assert commit["stats"] == {"cursor": {"min": 1, "max": 9}}


# Appending once


def test_rows_that_were_compared_with_an_older_state_are_made_again_at_no_cost(
    state: State, shop: Topology
) -> None:
    log = live(shop, "shop.log")
    slow = claimed(state, partition_task(state, log, "a"))
    put(state, log, "b", column("id"), based_on=0)
    answer = finish(state, slow, outputs=[output(slow, based_on=0)], checks=[check()])
    assert answer.status == "pending"
    assert [each["partition_key"] for each in all_of(state, schema.commits)] == ["b"]
    assert all_of(state, schema.checks) == []
    again = claimed(state, slow.work.task_id)
    assert again.attempt == 2
    finish(state, again, outputs=[output(again, based_on=last_revision(state))])
    assert row_of(state, slow.work.task_id)["status"] == "completed"


def test_what_is_committed_of_an_output_is_told_in_pages_of_one_state(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    for key in "abc":
        put(state, log, key, column("id"))
    held = claimed(state, partition_task(state, log, "z"))

    def page(after: str | None, revision: int | None) -> Any:
        with state.read() as tx:
            return replacing.others(tx, held.work.task_id, 0, after, revision, 2)

    first = page(None, None)
    assert [each.partition_key for each in first.pieces] == ["a", "b"]
    assert first.revision == last_revision(state)
    put(state, log, "d", column("id"))
    rest = page(first.after, first.revision)
    assert ([each.partition_key for each in rest.pieces], rest.after) == (["c"], None)
    with state.read() as tx, pytest.raises(NotFound):
        replacing.others(tx, held.work.task_id, 1, None, None, 2)


def test_of_an_output_without_commits_nothing_stands(state: State, shop: Topology) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.log"), "a"))
    with state.read() as tx:
        found = replacing.others(tx, held.work.task_id, 0, None, None, 10)
    assert (found.revision, found.pieces, found.after) == (0, [], None)


def test_segments_that_were_compared_with_an_older_state_are_made_again(state: State) -> None:
    follow = live(deployed(state, TICKS), "ticks.follow")
    held = claimed(state, cursor_task(state, follow, 3))
    finish(state, held, outputs=[output(held, based_on=7)])
    assert row_of(state, held.work.task_id)["status"] == "pending"
    held = claimed(state, held.work.task_id)
    finish(state, held, outputs=[output(held, based_on=0)])
    assert row_of(state, held.work.task_id)["status"] == "completed"


# Checks


def failing(state: State, held: Claimed, **fields: Any) -> None:
    found = check(False, observed={"id": 3}, expected="no nulls")
    finish(
        state,
        held,
        Outcome.FATAL,
        error="1 expectation was not met",
        checks=[check(name="rows 1..", kind="rows"), found],
        rejected=[output(held, columns=[column("id")])],
        **fields,
    )


def test_what_a_success_has_found_is_kept_with_it(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "a"))
    warned = check(False, output=1, severity="warn", observed={"values": ["x"]}, expected=["y"])
    finish(state, held, outputs=[output(held), output(held, 1)], checks=[check(), warned])
    with state.read() as tx:
        found = quality.list_checks(tx).checks
        assert quality.list_checks(tx, task_id=found[0].task_id).checks == found
        assert quality.list_checks(tx, task_id="another").checks == []
    assert [(each.dataset, each.partition_key, each.passed, each.position) for each in found] == [
        ("shop.clean[1]", "a", False, 1),
        ("orders_clean", "a", True, 0),
    ]
    assert (found[0].observed, found[0].expected) == ({"values": ["x"]}, ["y"])
    assert [each.dataset_id for each in found] == [clean.outputs[1].dataset_id, clean.outputs[0].dataset_id]


def test_an_output_that_failed_is_kept_beside_and_what_stood_still_stands(state: State, clean: LiveJob) -> None:
    put(state, clean, "a", column("id"))
    standing = all_of(state, schema.partitions)
    held = claimed(state, once_more(state, clean, "a"))
    failing(state, held)
    assert all_of(state, schema.partitions) == standing
    assert row_of(state, held.work.task_id)["status"] == "failed"
    with state.read() as tx:
        [rejected] = quality.list_rejections(tx, "orders_clean").rejections
        assert quality.list_rejections(tx, "shop.clean[1]").rejections == []
        [failed] = quality.list_checks(tx, "orders_clean", failed=True).checks
    assert (rejected.location, rejected.files) == (held.work.outputs[0].prefix, ["part-0.parquet"])
    assert (rejected.reason, rejected.rows, rejected.attempt) == ("1 expectation was not met", 10, held.attempt)
    assert names(rejected.columns) == ["id"]
    assert failed.observed == {"id": 3}


def test_a_rejected_output_must_lie_in_the_attempts_own_prefix(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "a"))
    for wrong in (
        [output(held, location=f"{ROOT}/elsewhere")],
        [output(held, files=["../a"])],
        [output(held), output(held, partition_key="b")],
        [output(held).model_copy(update={"output": 5})],
    ):
        with pytest.raises(UsageError):
            finish(state, held, Outcome.FATAL, error="bad", rejected=wrong)
    with pytest.raises(UsageError, match="no output 5"):
        finish(state, held, Outcome.FATAL, error="bad", checks=[check(output=5)])
    assert all_of(state, schema.rejections) == []
    assert row_of(state, held.work.task_id)["status"] == "running"


def test_a_stale_attempt_writes_nothing_down(state: State, clean: LiveJob, state_clock: Clock) -> None:
    task = partition_task(state, clean, "a")
    stale = claimed(state, task)
    state_clock.advance(600)
    lapse(state, stale)
    state_clock.advance(600)
    claimed(state, task)
    with pytest.raises(LeaseLost):
        failing(state, stale)
    with pytest.raises(LeaseLost):
        finish(state, stale, outputs=[output(stale)], checks=[check()])
    assert (all_of(state, schema.checks), all_of(state, schema.rejections)) == ([], [])


def test_what_is_said_twice_is_kept_once(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "a"))
    failing(state, held)
    failing(state, held)
    assert len(all_of(state, schema.checks)) == 2
    assert len(all_of(state, schema.rejections)) == 1


def test_who_was_cancelled_has_nothing_to_say_of_its_data(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "a"))
    with state.write() as tx:
        operator_actions.cancel(tx, held.work.task_id, by="ada")
    finish(state, held, outputs=[output(held)], checks=[check()])
    assert all_of(state, schema.checks) == []


def test_checks_of_a_job_without_outputs_are_of_what_it_has_read(state: State, shop: Topology) -> None:
    alert = live(shop, "shop.alert")
    held = claimed(state, partition_task(state, alert, "a"))
    finish(state, held, checks=[check(False, severity="warn")])
    with state.read() as tx:
        [found] = quality.list_checks(tx, "shop.orders").checks
    assert (found.job, found.partition_key) == ("alert", "a")


@pytest.mark.parametrize("failed", [False, True])
def test_pages_of_checks_show_each_once_from_new_to_old(state: State, clean: LiveJob, failed: bool) -> None:
    for key in "abc":
        held = claimed(state, partition_task(state, clean, key))
        checks = [check(position % 2 == 0, name=f"{key}{position}") for position in range(4)]
        finish(state, held, outputs=[output(held)], checks=checks)
    seen: list[str] = []
    before = None
    while True:
        with state.read() as tx:
            page = quality.list_checks(tx, failed=failed, before=before, limit=2)
        seen += [each.name for each in page.checks]
        before = page.next
        if before is None:
            break
    wanted = [f"{key}{position}" for key in "cba" for position in (3, 2, 1, 0) if not failed or position % 2]
    assert seen == wanted
    with state.read() as tx, pytest.raises(UsageError, match="not a page position"):
        quality.list_checks(tx, before="yesterday")


def test_old_checks_and_rejections_are_forgotten(state: State, clean: LiveJob, state_clock: Clock) -> None:
    failing(state, claimed(state, partition_task(state, clean, "a")))
    state_clock.advance(10 * DAY_S)
    failing(state, claimed(state, partition_task(state, clean, "b")))
    purge.tick(state, keep_days=0)
    assert len(all_of(state, schema.checks)) == 4
    purge.tick(state, keep_days=9)
    assert {each["partition_key"] for each in all_of(state, schema.checks)} == {"b"}
    assert {each["partition_key"] for each in all_of(state, schema.rejections)} == {"b"}


def test_why_says_what_was_not_as_expected(state: State, shop: Topology) -> None:
    clean = live(shop, "shop.clean")
    feed(state, live(shop, "shop.orders"), "a")
    held = claimed(state, partition_task(state, clean, "a"))
    failing(state, held)
    with state.read() as tx:
        answer = why(tx, "orders_clean@a")
    assert answer.verdict is Verdict.BLOCKED
    assert "1 expectation was not met" in (answer.blocked_by or "")
    assert [each.text for each in answer.steps if each.kind is StepKind.CHECK] == [
        "not as expected: not_null id (fail): found id 3, expected no nulls"
    ]


def test_why_says_that_what_would_replace_a_partition_was_rejected(state: State, shop: Topology) -> None:
    clean = live(shop, "shop.clean")
    put(state, clean, "a", column("id"))
    held = claimed(state, once_more(state, clean, "a"))
    failing(state, held)
    with state.read() as tx:
        answer = why(tx, "orders_clean@a")
    assert answer.verdict is Verdict.THERE
    assert held.work.outputs[0].prefix in "".join(answer.lines)


def test_a_dataset_is_late_by_the_clock_when_nothing_runs(state: State, state_clock: Clock) -> None:
    fresh = [{"freshness": {"column": "at", "within": "2h"}, "severity": "warn"}]
    orders = source("orders")
    topology = deployed(
        state, dag("shop", orders, job("clean", reads="orders", runtime="spark", expectations=fresh))
    )
    clean = live(topology, "shop.clean")

    def complete(key: str, age: timedelta) -> None:
        feed(state, live(topology, "shop.orders"), key)
        held = claimed(state, partition_task(state, clean, key))
        with state.read() as tx:
            observed = {"latest": (tx.now - age).isoformat(), "age_s": int(age.total_seconds())}
        check = CheckBody(
            output=0,
            name="freshness at within 2h",
            kind="freshness",
            severity="warn",
            passed=True,
            observed=observed,
            expected={"within": "2h"},
        )
        finish(state, held, outputs=[output(held)], checks=[check])

    def states() -> list[FreshnessState]:
        with state.read() as tx:
            [of_dataset] = datasets.show_dataset(tx, "shop.clean").freshness
            assert why(tx, "shop.clean").freshness == [of_dataset]
            [(_, _, seconds)] = freshness_states.count_late_seconds(tx, topologies.load(tx))
            assert (seconds > 0) == (of_dataset.late_since is not None)
            [health] = pipeline_health.list_health(tx).pipelines
            assert health.late == (of_dataset.late_since is not None)
            return [of_dataset]

    assert states()[0].latest is None
    complete("one", timedelta(minutes=30))
    complete("older", timedelta(days=3))
    assert states()[0].late_since is None
    state_clock.advance(2 * 3600)
    [late] = states()
    assert late.late_since is not None
    assert late.text.startswith("late: the latest at is 2h 30m old, and 2h are declared")
    with state.read() as tx:
        assert late.text in why(tx, "shop.clean").lines
    complete("news", timedelta(0))
    assert states()[0].late_since is None
