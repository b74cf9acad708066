"""Outputs: written once, measured on the way, and read back as they were committed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from qo.agent.operator_run import Run
from qo.api.contract.task import ColumnBody
from qo.config.location import local_path
from qo.errors import UsageError
from qo.spark.io import input_frames, writing
from qo.spark.io.native import LocalFiles
from qo.spark.io.writing import Measure, WrittenOutput
from support.dispatcher.pipeline_tasks import lapse, manual_task
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock, opened
from support.spark.attempts import Shop

pytestmark = pytest.mark.spark

FILES = LocalFiles()
SHOP = dag(
    "shop",
    source("orders", runtime="python", operator="shop.feed:run", cursor_column="id"),
    job("clean", reads="orders", drift="add"),
    job("log", reads="orders", update_strategy="append", unique_key=["id", "shop"]),
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shop(tmp_path: Path, clock: Clock) -> Iterator[Shop]:
    with opened(f"sqlite:{tmp_path / 'state.db'}", clock) as state:
        yield Shop(state, f"file:{tmp_path / 'data'}", deployed(state, SHOP))


def orders(spark: SparkSession, *ids: int | None, **more: Any) -> DataFrame:
    found = spark.createDataFrame([(each, "a") for each in ids], "id long, shop string")
    return found.withColumns({name: F.lit(value) for name, value in more.items()})


def write(spark: SparkSession, frame: DataFrame, run: Run, *measures: Measure) -> WrittenOutput:
    return writing.write(spark, frame, run.output(), FILES, measures, run.work)


def committed(shop: Shop, spark: SparkSession, frame: DataFrame, key: str, job_: str = "orders") -> WrittenOutput:
    held, run = shop.begin(job_, key)
    written = write(spark, frame, run)
    if job_ == "orders":
        run.output().describe(partition_key=key)
    shop.commit(held, run)
    return written


def ids(frame: DataFrame) -> list[int | None]:
    return sorted((row.id for row in frame.select("id").collect()), key=lambda each: (each is None, each))


def test_what_was_written_is_read_back_and_was_measured_in_the_one_pass(shop: Shop, spark: SparkSession) -> None:
    held, run = shop.begin("orders", "2024-01-01")
    odd = Measure("odd ones", F.count_if(F.col("id") % 2 == 1))
    written = write(spark, orders(spark, 1, 2, 3, day=date(2024, 1, 1)), run, odd)
    assert (written.rows, written.observed) == (3, {"odd ones": 2})
    assert [each.name for each in written.columns] == ["id", "shop", "day"]
    assert run.output().stats == {"cursor_min": 1, "cursor_max": 3}
    run.output().describe(partition_key="2024-01-01")
    shop.commit(held, run)
    [body] = run.committed()
    on_disk = [path for path in local_path(run.output().prefix).glob("*.parquet")]
    assert sorted(body.files) == sorted(path.name for path in on_disk)
    assert (body.rows, body.bytes) == (3, sum(path.stat().st_size for path in on_disk))
    _, reader = shop.begin("clean", "2024-01-01")
    read = input_frames.read_input(spark, reader.input(), FILES)
    assert [(row.id, row.shop, row.day) for row in read.orderBy("id").collect()] == [
        (each, "a", date(2024, 1, 1)) for each in (1, 2, 3)
    ]


@pytest.mark.parametrize("measures", [False, True], ids=["rows", "more"])
@pytest.mark.parametrize("files", [0, 1, 3])
def test_rows_are_counted_whether_or_not_anything_else_is_measured(
    shop: Shop, spark: SparkSession, files: int, measures: bool
) -> None:
    committed(shop, spark, orders(spark, 1), "p")
    frame = orders(spark, *range(7)).repartition(3) if files == 3 else orders(spark, *range(7)).coalesce(1)
    frame = frame.where("id < 0") if files == 0 else frame
    _, run = shop.begin("clean", "p")
    written = write(spark, frame, run, *([Measure("most", F.max("id"))] if measures else []))
    run.output().describe(partition_key="p")
    [body] = run.committed()
    assert (written.rows, len(written.files), body.rows) == ((7, files, 7) if files else (0, 0, 0))


def test_only_the_attempt_that_was_committed_is_ever_read(shop: Shop, spark: SparkSession, clock: Clock) -> None:
    task = shop.task("orders", "p")
    held, first = shop.claim(task)
    write(spark, orders(spark, 1, 2), first)
    lost = first.output().prefix
    clock.advance(3600)
    lapse(shop.state, held)  # It has written everything, and is given up.
    clock.advance(3600)
    held, second = shop.claim(task)
    assert second.output().prefix != lost
    write(spark, orders(spark, 3), second)
    second.output().describe(partition_key="p")
    shop.commit(held, second)
    _, reader = shop.begin("clean", "p")
    assert ids(input_frames.read_input(spark, reader.input(), FILES)) == [3]
    assert local_path(lost).exists()


def test_a_place_that_was_written_to_is_never_written_to_again(shop: Shop, spark: SparkSession) -> None:
    _, run = shop.begin("orders", "p")
    write(spark, orders(spark, 1), run)
    with pytest.raises(UsageError, match="is there already"):
        FILES.write(orders(spark, 2), run.output().prefix)
    written = [f"{run.output().prefix}/{each.name}" for each in FILES.list_files(run.output().prefix)]
    assert ids(FILES.read(spark, written, None)) == [1]


def test_no_rows_are_an_empty_output_that_knows_its_columns(shop: Shop, spark: SparkSession) -> None:
    written = committed(shop, spark, orders(spark, 1).where("id > 1"), "p")
    assert (written.rows, written.files) == (0, ())
    _, reader = shop.begin("clean", "p")
    empty = input_frames.read_input(spark, reader.input(), FILES)
    assert (empty.columns, empty.collect()) == (["id", "shop"], [])


def test_columns_that_change_are_refused_before_anything_is_written(shop: Shop, spark: SparkSession) -> None:
    committed(shop, spark, orders(spark, 1), "p")
    _, run = shop.begin("orders", "q")
    for frame, said in (
        (orders(spark, 1, day="x"), "column 'day' is new"),
        (orders(spark, 1).drop("shop"), "column 'shop' is missing"),
        (orders(spark, 1).withColumn("id", F.lit("x")), "column 'id' was long and is string"),
    ):
        with pytest.raises(UsageError, match=said):
            write(spark, frame, run)
    assert not local_path(run.output().prefix).exists()


def test_columns_may_be_added_where_the_job_says_so_and_are_null_in_older_rows(
    shop: Shop, spark: SparkSession
) -> None:
    committed(shop, spark, orders(spark, 1), "p")
    committed(shop, spark, orders(spark, 1), "p", "clean")
    committed(shop, spark, orders(spark, 2), "q")
    held, run = shop.begin("clean", "q")
    write(spark, orders(spark, 2, day="x"), run)
    shop.commit(held, run)
    columns = run.committed()[0].columns or []
    assert [each.name for each in columns] == ["id", "shop", "day"]
    read = FILES.read(spark, _files(shop, "clean"), _struct(columns))
    assert {(row.id, row.day) for row in read.collect()} == {(1, None), (2, "x")}


def _files(shop: Shop, name: str) -> list[str]:
    from qo.dispatcher.views import reading as known
    from qo.spark.io.appending import uris_of

    with shop.state.read() as tx:
        return uris_of(known.pieces(tx, f"shop.{name}").pieces)


def _struct(columns: list[ColumnBody]) -> Any:
    from qo.spark.io.columns import columns_from_bodies, struct_of

    return struct_of(columns_from_bodies(columns))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["id", "id AS ID"], "'ID' is in the frame twice"),
        (["id", "NULL AS nothing"], "'nothing' has the type void"),
        (["id", "array(make_interval(1)) AS spans"], "'spans' has the type interval"),
        (["id", "parse_json('1') AS parsed"], "'parsed' has the type variant"),
        (["shop"], "cursor_column: the output has no column 'id': it has shop"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(
    shop: Shop, spark: SparkSession, columns: list[str], said: str
) -> None:
    _, run = shop.begin("orders", "p")
    with pytest.raises(UsageError, match=said):
        write(spark, orders(spark, 1).selectExpr(*columns), run)


def test_rows_that_are_committed_are_appended_once(shop: Shop, spark: SparkSession) -> None:
    for key in ("p", "q", "r", "s"):
        committed(shop, spark, orders(spark, 1), key)
    # More commits than fit on one page of what stands; null is a key as good as any.
    assert committed(shop, spark, orders(spark, 1, 2, 2, None), "p", "log").rows == 3
    assert committed(shop, spark, orders(spark, 2, 3, None, None), "q", "log").rows == 1
    elsewhere = orders(spark, 1).withColumn("shop", F.lit("b"))
    assert committed(shop, spark, orders(spark, 4).union(elsewhere), "r", "log").rows == 2
    again = committed(shop, spark, orders(spark, 1, 2, 3, 4, None), "s", "log")
    assert (again.rows, again.files) == (0, ())
    read = FILES.read(spark, _files(shop, "log"), None)
    assert ids(read) == [1, 1, 2, 3, 4, None]
    # Made once more, a partition takes the place of what it had brought, and of nothing else.
    log = live(shop.topology, "shop.log")
    of = {"dataset_id": log.inputs[0].dataset_id, "generation_id": log.inputs[0].generation_id}
    held, run = shop.claim(manual_task(shop.state, log, "again", **of, partition_key="p"))
    assert write(spark, orders(spark, 1, 2, 3, 5), run).rows == 3
    shop.commit(held, run)
    assert ids(FILES.read(spark, _files(shop, "log"), None)) == [1, 1, 2, 3, 4, 5]


def test_two_that_append_at_once_do_not_both_bring_the_same_row(shop: Shop, spark: SparkSession) -> None:
    committed(shop, spark, orders(spark, 1), "p")
    committed(shop, spark, orders(spark, 1), "q")
    (first, one), (second, other) = shop.begin("log", "p"), shop.begin("log", "q")
    write(spark, orders(spark, 1), one)
    write(spark, orders(spark, 1), other)
    assert shop.commit(first, one).status == "completed"
    assert shop.commit(second, other).status == "pending"  # To be done again, against what there is now.
    held, again = shop.claim(other.work.task_id)
    assert write(spark, orders(spark, 1), again).rows == 0
    assert shop.commit(held, again).status == "completed"
    assert ids(FILES.read(spark, _files(shop, "log"), None)) == [1]


def test_a_unique_key_must_be_a_column(shop: Shop, spark: SparkSession) -> None:
    committed(shop, spark, orders(spark, 1), "p")
    _, run = shop.begin("log", "p")
    with pytest.raises(UsageError, match="unique_key: the output has no column shop: it has id"):
        write(spark, orders(spark, 1).select("id"), run)


def test_values_of_rows_are_told_as_json_has_them() -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    told = [writing.json_value(each) for each in (1, "a", None, Decimal("1.50"), datetime(2024, 1, 1, tzinfo=UTC))]
    assert told == [1, "a", None, "1.50", "2024-01-01T00:00:00+00:00"]
