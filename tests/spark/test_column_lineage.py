"""What the columns of outputs are made from, by the plans that Spark has analysed; and row diffs with Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from qo.core.pipeline.row_diff import DUCKDB, SPARK, compare
from qo.spark.io import frame_lineage
from qo.testing.spark import make_run

pytestmark = pytest.mark.spark

Frames = dict[str, DataFrame]


@pytest.fixture(scope="module")
def inputs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Frames:
    root = tmp_path_factory.mktemp("inputs")
    schemas = {
        "orders": "id long, amount long, country string, items array<long>, place struct<x: long>",
        "rates": "rid long, rate double, country string",
    }
    frames: Frames = {}
    for name, schema in schemas.items():
        spark.createDataFrame([], schema).write.parquet(f"file:{root}/{name}")
        frames[name] = spark.read.schema(schema).parquet(f"file:{root}/{name}")
        frames[name].createOrReplaceTempView(name)
    return frames


def sql(query: str) -> Callable[[SparkSession, Frames], DataFrame]:
    return lambda spark, _inputs: spark.sql(query)


def words(origin: str) -> set[str]:
    return set(origin.split())


# Each with the origins of its columns, and with what decides which rows there are. None: unknown.
SHAPES: dict[str, tuple[Callable[[SparkSession, Frames], DataFrame], dict[str, str | None], str]] = {
    "projection": (
        lambda _, i: i["orders"].select("id", (F.col("amount") + 1).alias("more"), "place.x").where("id > 1"),
        {"id": "orders.id:identity", "more": "orders.amount:transformation", "x": "orders.place:transformation"},
        "orders.id:filter",
    ),
    "aggregate over join": (
        sql(
            "SELECT o.country, sum(amount * rate) AS total, count(*) AS n FROM orders o JOIN rates r "
            "ON o.country = r.country GROUP BY o.country HAVING max(o.id) > 1"
        ),
        {
            "country": "orders.country:identity",
            "total": "orders.amount:aggregation rates.rate:aggregation",
            "n": "",
        },
        "orders.country:join rates.country:join orders.country:group_by orders.id:filter",
    ),
    "cte twice": (
        sql(
            "WITH x AS (SELECT id, amount FROM orders) "
            "SELECT a.id, b.amount + 1 AS b FROM x a JOIN x b ON a.id = b.id"
        ),
        {"id": "orders.id:identity", "b": "orders.amount:transformation"},
        "orders.id:join",
    ),
    "self-join": (
        sql("SELECT a.id, b.amount FROM orders a LEFT JOIN orders b ON a.id = b.id"),
        {"id": "orders.id:identity", "amount": "orders.amount:identity"},
        "orders.id:join",
    ),
    "union": (
        sql("SELECT id, country FROM orders UNION ALL SELECT rid, country FROM rates"),
        {
            "id": "orders.id:identity rates.rid:identity",
            "country": "orders.country:identity rates.country:identity",
        },
        "",
    ),
    "window": (
        sql("SELECT id, sum(amount) OVER (PARTITION BY country ORDER BY id) AS running FROM orders"),
        {
            "id": "orders.id:identity",
            "running": "orders.amount:aggregation orders.country:window orders.id:window",
        },
        "",
    ),
    "explode": (
        sql("SELECT id, item FROM orders LATERAL VIEW explode(items) AS item"),
        {"id": "orders.id:identity", "item": "orders.items:transformation"},
        "",
    ),
    "subqueries": (
        sql(
            "SELECT id, (SELECT max(rate) FROM rates) AS best FROM orders "
            "WHERE EXISTS (SELECT 1 FROM rates WHERE rid = id) AND country IN (SELECT country FROM rates)"
        ),
        {"id": "orders.id:identity", "best": "rates.rate:aggregation"},
        "orders.id:filter rates.rid:filter orders.country:filter rates.country:filter",
    ),
    "distinct": (
        sql("SELECT DISTINCT country FROM orders LIMIT 5"),
        {"country": "orders.country:identity"},
        "orders.country:group_by",
    ),
    "semi-join": (
        sql("SELECT id FROM orders LEFT SEMI JOIN rates ON id = rid"),
        {"id": "orders.id:identity"},
        "orders.id:join rates.rid:join",
    ),
    "pivot": (
        lambda _, i: i["orders"].groupBy("id").pivot("country", ["de", "fr"]).agg(F.sum("amount")),
        {
            "id": "orders.id:identity",
            "de": "orders.amount:aggregation orders.country:aggregation",
            "fr": "orders.amount:aggregation orders.country:aggregation",
        },
        "orders.id:group_by orders.country:group_by",
    ),
    "cube": (
        sql("SELECT country, sum(amount) AS total FROM orders GROUP BY CUBE (country)"),
        {"country": "orders.country:identity", "total": "orders.amount:aggregation"},
        "orders.country:group_by",
    ),
    "python function": (
        lambda _, i: i["orders"].select("id", F.udf(lambda value: value, "long")("amount").alias("same")),
        {"id": "orders.id:identity", "same": "orders.amount:transformation"},
        "",
    ),
    "function over frames": (
        lambda _, i: i["orders"].mapInPandas(lambda frames: frames, "id long, other long"),
        {"id": None, "other": None},
        "",
    ),
    "no input": (
        lambda spark, i: (
            i["orders"].crossJoin(spark.range(3).select(F.col("id").alias("n"))).select("country", "n")
        ),
        {"country": "orders.country:identity", "n": ""},
        "",
    ),
}


@pytest.fixture
def find(spark: SparkSession, inputs: Frames) -> Callable[[DataFrame], Any]:
    return lambda frame: frame_lineage._find(frame, inputs)


def test_columns_are_traced_through_every_shape_of_a_plan(
    spark: SparkSession, inputs: Frames, find: Callable[[DataFrame], Any]
) -> None:
    for name, (make, columns, rows) in SHAPES.items():
        lineage = find(make(spark, inputs))
        traced = {
            column: {f"{source.input}.{source.column}:{how}" for source, how in origin.items()}
            for column, origin in lineage.columns.items()
        }
        assert traced == {column: words(origin) for column, origin in columns.items() if origin is not None}, name
        assert {f"{source.input}.{source.column}:{how}" for source, how in lineage.rows} == words(rows), name
        assert bool(lineage.unknown) == (None in columns.values()), name


def test_a_plan_is_asked_for_once_and_a_table_outside_is_unknown(
    spark: SparkSession, inputs: Frames, find: Callable[[DataFrame], Any], tmp_path: Path
) -> None:
    lineages = frame_lineage.FrameLineages()
    outputs = [make_run("sql", [], {}).output() for _ in range(2)]
    for output in outputs:
        lineages.describe(output, inputs["rates"].select("rid"), inputs)
    assert [output.sends_lineage for output in outputs] == [True, False]
    assert outputs[0].lineage == outputs[1].lineage
    spark.createDataFrame([(1, 2)], "a long, b long").write.parquet(f"file:{tmp_path}/outside")
    lineage = find(spark.read.parquet(f"file:{tmp_path}/outside").crossJoin(inputs["rates"]).select("a", "rate"))
    assert list(lineage.columns) == ["rate"]
    assert "something that is no input of the job" in lineage.unknown[0]


def test_rows_are_compared_with_spark_as_they_are_with_duckdb(spark: SparkSession) -> None:
    from qo.cli.pipelines.diff.compared_versions import ComparedVersions, Side
    from qo.cli.pipelines.diff.row_changes import compare_rows
    from qo.cli.pipelines.diff.spark_rows import SparkRows

    schema = "id long, n double, tags map<string, long>"
    nan = float("nan")
    before = [(1, 1.0, {"a": 1}), (2, nan, None), (None, 3.0, {}), (4, 4.0, None)]
    after = [(1, 2.0, {"a": 1}), (2, nan, None), (None, 3.0, {"b": 2}), (5, 5.0, None)]
    spark.createDataFrame(before, schema).createOrReplaceTempView("before_rows")
    spark.createDataFrame(after, schema).createOrReplaceTempView("after_rows")
    versions = ComparedVersions(Side(None, 1, None, {"a": 1}), Side(None, 2, None, {"b": 1}))

    class Opened(SparkRows):
        def __enter__(self) -> SparkRows:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def opened(before: object, after: object) -> Any:
        return Opened(spark)

    changes = compare_rows(versions, opened, ["id"], [], 10)
    assert (changes.added, changes.removed, changes.changed) == (1, 1, 2)
    assert changes.columns == {"n": 1, "tags": 1}
    whole = compare_rows(versions, opened, [], [], 10)
    assert (whole.added, whole.removed) == (3, 3)
    assert compare(SPARK, {"a": "int"}, {"a": "string"}, []).values[0].before == "CAST(`a` AS STRING)"
    assert compare(DUCKDB, {"a": "INTEGER"}, {"A": "BIGINT"}, []).values[0].before == '"a"'
