"""What is known of columns without reading data, and how rows, nulls and quality moved."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from qo.api.contract.statistics import ColumnStatistics, ColumnStatisticsAnswer, TrendAnswer
from qo.api.contract.task import CheckBody, Claimed, ColumnBody, Outcome
from qo.core.iceberg.iceberg_types import encode_bound
from qo.core.pipeline.file_stats import ColumnStats, FileStats, pack_stats
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.views import column_statistics, dataset_trend, file_statistics
from qo.dispatcher.views.dataset_trend import By
from qo.errors import NotFound, UsageError
from support.dispatcher.pipeline_tasks import claimed, finish, made, output, partition_task
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

SHOP = dag("shop", source("orders"), job("clean", reads="orders", runtime="spark", drift="add", max_attempts=1))
AMOUNT, ITEM = ColumnBody(name="amount", type="integer"), ColumnBody(name="item", type="string")
COLUMNS = [AMOUNT, ITEM]
MONDAY, TUESDAY, WEDNESDAY = "2024-01-01", "2024-01-02", "2024-01-03"


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


@pytest.fixture
def clean(shop: Topology) -> LiveJob:
    return live(shop, "shop.clean")


def packed(rows: int = 10, nulls: int = 0, low: int = 1, high: int = 9, item: str | None = "pen") -> bytes:
    """What a worker measures of one file."""
    text = None if item is None else encode_bound(item, "string", upper=False)
    columns = {
        "amount": ColumnStats(
            50, rows, nulls, encode_bound(low, "integer", upper=False), encode_bound(high, "integer", upper=True)
        ),
        "item": ColumnStats(40, rows, 0 if item is not None else rows, text, text),
    }
    return pack_stats({"part-0.parquet": FileStats(rows, 100, columns)})


def check(
    *, passed: bool = True, severity: Literal["fail", "warn"] = "fail", name: str = "not_null amount"
) -> CheckBody:
    return CheckBody(output=0, name=name, kind="not_null", severity=severity, passed=passed)


def commit(
    state: State, job_: LiveJob, key: str, stats: bytes | None, *, again: str = "", checks: Any = (), **fields: Any
) -> Claimed:
    of = job_.inputs[0]
    about: dict[str, Any] = {
        "dataset_id": of.dataset_id,
        "generation_id": of.generation_id or "",
        "partition_key": key,
    }
    task = made(state, NewTask(job=job_, dedupe_key=f"{key} {again}", **about))
    held = claimed(state, task)
    body = output(held, columns=fields.pop("columns", COLUMNS), **fields)
    if stats is not None:
        body = body.model_copy(update={"file_stats": stats})
    finish(state, held, outputs=[body], checks=list(checks))
    return held


def reject(state: State, job_: LiveJob, key: str, rows: int = 4) -> Claimed:
    held = claimed(state, partition_task(state, job_, key))
    failed: dict[str, Any] = {
        "error": "not good enough",
        "checks": [check(passed=False)],
        "rejected": [output(held, rows=rows)],
    }
    finish(state, held, Outcome.FATAL, **failed)
    return held


def columns_of(state: State, **which: Any) -> ColumnStatisticsAnswer:
    with state.read() as tx:
        return column_statistics.show(tx, "shop.clean", **which)


def by_name(answer: ColumnStatisticsAnswer) -> dict[str, ColumnStatistics]:
    return {each.name: each for each in answer.columns or ()}


def trend_of(state: State, **which: Any) -> TrendAnswer:
    with state.read() as tx:
        return dataset_trend.show(tx, "shop.clean", **which)


# Columns


def test_statistics_of_all_files_are_merged(state: State, clean: LiveJob) -> None:
    commit(state, clean, MONDAY, packed(nulls=1, low=-3, high=7))
    commit(state, clean, TUESDAY, packed(rows=30, nulls=3, low=2, high=200))
    answer = columns_of(state)
    assert (answer.pieces, answer.measured, answer.rows, answer.complete) == (2, 2, 40, True)
    amount, item = by_name(answer)["amount"], by_name(answer)["item"]
    assert (amount.rows, amount.nulls, amount.null_share) == (40, 4, 0.1)
    assert (amount.least, amount.greatest, amount.distinct, amount.bytes) == ("-3", "200", None, 100)
    assert (item.nulls, item.least, item.greatest, item.distinct) == (0, "pen", "pen", 1)


def test_what_was_replaced_counts_no_more(state: State, clean: LiveJob) -> None:
    commit(state, clean, MONDAY, packed(high=1_000))
    commit(state, clean, MONDAY, packed(high=5), again="2")
    answer = columns_of(state)
    assert (answer.pieces, answer.complete, by_name(answer)["amount"].greatest) == (1, True, "5")


def test_a_partition_has_statistics_of_its_own(state: State, clean: LiveJob) -> None:
    commit(state, clean, MONDAY, packed(high=7))
    commit(state, clean, TUESDAY, packed(high=70))
    assert by_name(columns_of(state, partition_key=MONDAY))["amount"].greatest == "7"
    with pytest.raises(NotFound, match="has no partition"):
        columns_of(state, partition_key="never")


def test_a_commit_without_statistics_is_said_to_be_left_out(state: State, clean: LiveJob) -> None:
    commit(state, clean, MONDAY, packed())
    commit(state, clean, TUESDAY, None)
    answer = columns_of(state)
    assert (answer.pieces, answer.measured, answer.complete) == (2, 1, False)
    assert by_name(answer)["amount"].nulls == 0


def test_statistics_that_cannot_be_understood_are_none(state: State, clean: LiveJob) -> None:
    commit(state, clean, MONDAY, b"what a later qo writes")
    answer = columns_of(state)
    assert (answer.measured, answer.complete, by_name(answer)["amount"].nulls) == (0, False, None)


def test_rows_from_before_a_column_are_null_in_it(state: State, clean: LiveJob) -> None:
    commit(state, clean, MONDAY, packed())
    commit(state, clean, TUESDAY, packed(), columns=[*COLUMNS, ColumnBody(name="note", type="string")])
    note = by_name(columns_of(state))["note"]
    assert (note.rows, note.nulls) == (10, None)  # Tuesday's worker measured nothing of it.


def test_a_dataset_without_commits_has_no_columns(state: State, clean: LiveJob) -> None:
    answer = columns_of(state)
    assert (answer.revision, answer.columns, answer.pieces, answer.complete) == (None, None, 0, True)


def test_an_answer_looks_at_a_bounded_number_of_commits_and_says_so(
    state: State, clean: LiveJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, key in enumerate((MONDAY, TUESDAY, WEDNESDAY)):
        commit(state, clean, key, packed(high=n))
    monkeypatch.setattr(column_statistics, "PIECES_MAX", 2)
    answer = columns_of(state)
    assert (answer.pieces, answer.complete) == (2, False)
    monkeypatch.undo()
    monkeypatch.setattr(column_statistics, "LOOKED_AT_MAX", 2)
    answer = columns_of(state)
    assert (answer.pieces, answer.complete) == (2, False)
    monkeypatch.undo()
    monkeypatch.setattr(file_statistics, "PACKED_BYTES_MAX", len(packed(high=2)))
    answer = columns_of(state)
    assert (answer.pieces, answer.measured, answer.complete) == (3, 1, False)


# Over time


def test_a_trend_has_rows_nulls_and_results_of_expectations_by_commit(state: State, clean: LiveJob) -> None:
    good = [check(), check(name="rows 1..", severity="warn", passed=False)]
    commit(state, clean, MONDAY, packed(nulls=2), checks=good)
    reject(state, clean, TUESDAY)
    commit(state, clean, WEDNESDAY, packed(nulls=1, item=None), rows=20, bytes=200, checks=[check()])
    wednesday, tuesday, monday = trend_of(state).points
    assert [each.partition_key for each in (monday, tuesday, wednesday)] == [MONDAY, TUESDAY, WEDNESDAY]
    assert (monday.rows, monday.bytes, monday.nulls) == (10, 100, 2)
    assert (monday.passed, monday.warned, monday.failed, monday.rejected) == (1, 1, 0, 0)
    assert (tuesday.revision, tuesday.failed, tuesday.rejected, tuesday.rejected_rows) == (None, 1, 1, 4)
    assert (wednesday.rows, wednesday.nulls) == (20, 11)
    answer = trend_of(state, column="AMOUNT")
    assert [each.nulls for each in answer.points] == [1, None, 2]
    found = {each.name: (each.passed, each.violated) for each in answer.expectations}
    assert found == {"not_null amount": (2, 1), "rows 1..": (0, 1)}


def test_a_commit_that_was_replaced_stays_in_the_trend(state: State, clean: LiveJob) -> None:
    commit(state, clean, MONDAY, packed(), rows=1)
    commit(state, clean, MONDAY, packed(), rows=2, again="2")
    assert [(each.rows, each.replaced) for each in trend_of(state).points] == [(2, False), (1, True)]
    assert [each.rows for each in trend_of(state, by=By.PARTITION).points] == [2]


def test_a_trend_by_partition_has_what_is_served_of_each_and_what_was_rejected(
    state: State, clean: LiveJob
) -> None:
    commit(state, clean, MONDAY, packed(nulls=2))
    commit(state, clean, TUESDAY, packed(nulls=3), checks=[check()])
    reject(state, clean, MONDAY)
    tuesday, monday = trend_of(state, by=By.PARTITION).points
    assert (tuesday.partition_key, tuesday.nulls, tuesday.passed, tuesday.rejected) == (TUESDAY, 3, 1, 0)
    assert (monday.partition_key, monday.nulls, monday.rejected, monday.rejected_rows) == (MONDAY, 2, 1, 4)


@pytest.mark.parametrize("by", list(By))
def test_pages_of_a_trend_show_every_point_once(state: State, clean: LiveJob, by: By) -> None:
    for key in (MONDAY, TUESDAY):
        commit(state, clean, key, packed())
    reject(state, clean, "2024-01-09")
    commit(state, clean, WEDNESDAY, packed())
    keys: list[str | None] = []
    before: str | None = None
    for _ in range(3):
        page = trend_of(state, by=by, limit=1, before=before)
        keys += [each.partition_key for each in page.points]
        before = page.next
    rejected = ["2024-01-09"] if by is By.COMMIT else []
    assert (keys, before) == ([WEDNESDAY, *rejected, TUESDAY, MONDAY], None)


def test_a_trend_is_of_one_generation(state: State, clean: LiveJob) -> None:
    commit(state, clean, MONDAY, packed())
    number = staged(state, edited(SHOP, "clean", config={"v": 2})).version
    rebuilt = live(loaded(state), "shop.clean", number)
    commit(state, rebuilt, TUESDAY, packed(high=3))
    reject(state, rebuilt, WEDNESDAY)
    assert [each.partition_key for each in trend_of(state).points] == [MONDAY]
    other = rebuilt.outputs[0].generation_id
    assert [each.partition_key for each in trend_of(state, generation_id=other).points] == [WEDNESDAY, TUESDAY]
    assert by_name(columns_of(state, generation_id=other))["amount"].greatest == "3"


def test_what_a_trend_cannot_answer_is_refused_with_what_to_do(state: State, clean: LiveJob) -> None:
    commit(state, clean, MONDAY, packed())
    with pytest.raises(UsageError, match="is not a page position"):
        trend_of(state, before="yesterday")
    with pytest.raises(UsageError, match="ask for it by commit"):
        trend_of(state, by=By.PARTITION, partition_key=MONDAY)
    with pytest.raises(NotFound, match="has no column 'nothing': see qo dataset show"):
        trend_of(state, column="nothing")
    with pytest.raises(UsageError, match="limit must be between 1 and 200"):
        trend_of(state, limit=201)
