"""Files of Spark with field ids and statistics, and the tables of Iceberg over them, in a directory and in a bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from math import nan
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import DataFrame, SparkSession

from qo.config.settings import S3Settings, Settings
from qo.core.pipeline.field_ids import field_id
from qo.core.pipeline.file_stats import unpack_stats
from qo.dispatcher.engine.loops import table_keeper
from qo.dispatcher.views import open_tables
from qo.spark.io import writing
from qo.spark.io.files import files_for
from support.dispatcher.pipelines import dag, deployed, source
from support.dispatcher.states import Clock, opened
from support.servers.s3 import S3Server
from support.spark.attempts import Shop

pytestmark = pytest.mark.spark

SHOP = dag(
    "shop",
    source("orders", runtime="python", operator="shop.feed:run", drift="add"),
    publish={"orders": "orders"},
)
TYPES = "id long, name string, price decimal(10,2), day date, at timestamp, ok boolean, part int"
AT = datetime(2024, 1, 1, 12, tzinfo=UTC)


class Tables:
    def __init__(self, shop: Shop, clock: Clock, settings: Settings, properties: dict[str, str]) -> None:
        self.shop, self.clock, self.settings, self.properties = shop, clock, settings, properties

    def commit(self, spark: SparkSession, frame: DataFrame, key: str) -> Any:
        held, run = self.shop.begin("orders", key)
        files = files_for(self.settings, run.output().prefix)
        writing.write(spark, frame, run.output(), files, [], run.work)
        run.output().describe(partition_key=key)
        [body] = run.committed()
        self.shop.commit(held, run)
        return body

    def table(self) -> StaticTable:
        self.clock.advance(10)
        asyncio.run(table_keeper.tick(self.shop.state, self.settings))
        with self.shop.state.read() as tx:
            record = open_tables.find_table(tx, "shop", "orders")
        assert record is not None
        assert record.problem is None, record.problem
        return StaticTable.from_metadata(record.metadata_location or "", self.properties)


def configured(root: str, **more: Any) -> Settings:
    chosen = Settings(**more)
    return replace(chosen, dispatcher=replace(chosen.dispatcher, data=root))


@pytest.fixture(params=["directory", pytest.param("bucket", marks=pytest.mark.s3)])
def tables(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    clock, properties, settings = Clock(), dict[str, str](), configured(f"file:{tmp_path / 'data'}")
    if request.param == "bucket":
        server: S3Server = request.getfixturevalue("s3_server")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
        s3 = S3Settings(endpoint=server.endpoint, region=server.region)
        settings = configured(f"s3://{request.getfixturevalue('s3_bucket')}/data", s3=s3)
        properties = {
            "s3.endpoint": server.endpoint,
            "s3.access-key-id": server.access_key,
            "s3.secret-access-key": server.secret_key,
            "s3.region": server.region,
        }
    with opened(f"sqlite:{tmp_path / 'state.db'}", clock) as state:
        yield Tables(Shop(state, settings.dispatcher.data, deployed(state, SHOP)), clock, settings, properties)


def test_the_least_and_the_greatest_number_are_measured_and_nan_is_left_aside(
    spark: SparkSession, tables: Tables
) -> None:
    rows = [(1, 1.5), (2, None), (3, -2.25)]
    body = tables.commit(spark, spark.createDataFrame(rows, "id int, delay double").coalesce(1), "a")
    [file] = unpack_stats(body.file_stats).values()
    delay = file.columns["delay"]
    assert (delay.nulls, delay.least, delay.greatest) == (1, -2.25, 1.5)
    assert (delay.lower, delay.upper) == (None, None)  # Engines order NaN differently.
    body = tables.commit(
        spark, spark.createDataFrame([(4, 7.0), (5, nan)], "id int, delay double").coalesce(1), "b"
    )
    [file] = unpack_stats(body.file_stats).values()
    assert file.columns["delay"].least in (None, 7.0)
    assert file.columns["delay"].greatest in (None, 7.0)


def test_what_spark_writes_is_a_table_with_ids_and_bounds(spark: SparkSession, tables: Tables) -> None:
    rows = [(n, f"name {n}", Decimal(n) / 4, date(2024, 1, 1), AT, n % 2 == 0, n) for n in range(1, 4)]
    body = tables.commit(spark, spark.createDataFrame(rows, TYPES).repartition(2), "a")
    stats = unpack_stats(body.file_stats)
    assert sum(each.rows for each in stats.values()) == body.rows == 3
    assert sum(each.bytes for each in stats.values()) == body.bytes
    assert set(stats) == set(body.files)
    table = tables.table()
    first = table.metadata.current_snapshot_id
    assert {each.field_id for each in table.schema().fields} == {
        field_id(name) for name in ["id", "name", "price", "day", "at", "ok", "part", "partition_key"]
    }
    read = table.scan().to_arrow()
    assert sorted(zip(*(read[name].to_pylist() for name in read.column_names), strict=True)) == [
        (*row, "a") for row in rows
    ]
    # Bounds keep files that cannot match from being read.
    assert list(table.scan(row_filter="id > 3").plan_files()) == []
    for name, value in (("price", "0.75"), ("name", "'name 3'"), ("day", "'2024-01-01'")):
        assert table.scan(row_filter=f"{name} = {value} and id = 3").to_arrow()["id"].to_pylist() == [3]

    import pyarrow.parquet as pq

    [one, *_] = table.scan().plan_files()
    with table.io.new_input(one.file.file_path).open() as file:
        schema = pq.read_schema(file)
    assert schema.field("id").metadata[b"PARQUET:field_id"] == str(field_id("id")).encode()

    nested = spark.createDataFrame([(9, *(None,) * 6, ["x"])], f"{TYPES}, tags array<string>")
    tables.commit(spark, nested, "b")
    table = tables.table()
    read = table.scan().to_arrow()
    assert sorted(zip(read["id"].to_pylist(), map(str, read["tags"].to_pylist()), strict=True)) == [
        (1, "None"),
        (2, "None"),
        (3, "None"),
        (9, "['x']"),
    ]
    assert table.scan(snapshot_id=first).to_arrow().num_rows == 3
