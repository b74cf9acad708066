"""Rows of a database: read whole, in parts or by a column that grows, and then each exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from qo.config.settings import Settings
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.creation import NewTask
from qo.errors import ConfigError
from qo.spark.engine.error_translation import BadData
from qo.spark.io import writing
from qo.spark.io.appending import uris_of
from qo.spark.io.files import files_for
from qo.spark.operators import jdbc
from qo.spark.operators.operator_context import Context, Inputs
from qo.testing.spark import run_operator
from support.dispatcher.pipeline_tasks import made
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.spark.attempts import Shop

pytestmark = pytest.mark.spark

URL = "jdbc:derby:memory:shop"


class Database:
    """Derby, which comes with Spark, in the memory of the session's own Java."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # pyright: ignore[reportPrivateUsage]
        jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")
        self._connection = jvm.java.sql.DriverManager.getConnection(f"{URL};create=true")

    def execute(self, *statements: str) -> None:
        for each in statements:
            self._connection.createStatement().execute(each)

    def close(self) -> None:
        self.execute("DROP TABLE orders")
        self._connection.close()


@pytest.fixture
def database(spark: SparkSession) -> Iterator[Database]:
    made = Database(spark)
    made.execute("CREATE TABLE orders (id BIGINT, item VARCHAR(20), changed TIMESTAMP)")
    yield made
    made.close()


def put(database: Database, *rows: tuple[int, str, str]) -> None:
    for id_, item, at in rows:
        database.execute(f"INSERT INTO orders VALUES ({id_}, '{item}', TIMESTAMP('2026-01-01 {at}'))")


def read(spark: SparkSession, **config: Any) -> list[int]:
    frame = run_operator("jdbc", {}, spark=spark, config={"url": URL, **config}, start=2, end=4)
    return sorted(row[0] for row in frame.collect())


def test_a_table_or_query_is_read_whole_in_parts_or_for_the_task(spark: SparkSession, database: Database) -> None:
    put(database, *((n, "pen", f"00:00:0{n}") for n in range(1, 7)))
    assert read(spark, table="orders") == [1, 2, 3, 4, 5, 6]
    assert read(spark, query="SELECT id FROM orders WHERE id >= {start} AND id < {end};") == [2, 3]
    config = {"url": URL, "table": "orders", "split": {"column": "id", "parts": 3}}
    frame = run_operator("jdbc", {}, spark=spark, config=config)
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(row.ID for row in frame.collect()) == [1, 2, 3, 4, 5, 6]


def test_errors_of_a_database_say_what_is_wrong_and_no_password(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    with pytest.raises(BadData, match=r"the database refused: .*NOTHING"):
        read(spark, table="nothing")
    with pytest.raises(ConfigError, match=r"QO_SPARK_PACKAGES=org\.postgresql:postgresql:"):
        read(spark, url="jdbc:postgresql://127.0.0.1:1/shop", table="orders")
    (tmp_path / "secret-db").write_text(f"{URL};user=app;password=hunter2x;create=no")
    (tmp_path / "secret-db").chmod(0o600)
    work: dict[str, Any] = {"secrets": ["db"], "secrets_dir": tmp_path}
    with pytest.raises(BadData) as refusal:
        run_operator("jdbc", {}, spark=spark, config={"url_secret": "db", "table": "absent"}, **work)
    assert "hunter2x" not in str(refusal.value)


ORDERS = dag(
    "shop",
    source("ticks"),
    job(
        "orders",
        reads="ticks",
        runtime="spark",
        operator="jdbc",
        update_strategy="append",
        unique_key=["id", "changed"],
        config={"url": URL, "table": "orders", "cursor": "changed", "overlap": 10},
    ),
)


class Attempts:
    looks = 0

    def __init__(self, spark: SparkSession, state: State, directory: Path) -> None:
        self.spark, self.files = spark, files_for(Settings(), f"file:{directory}")
        self.shop = Shop(state, f"file:{directory}", deployed(state, ORDERS))

    def write(self, held: Any, run: Any) -> dict[str, Any]:
        context = Context(self.spark, run, Inputs([], lambda name: self.spark.range(0)), run.config, self.files)
        for frame in jdbc.run(context).values():
            writing.write(self.spark, frame, run.outputs[0], self.files, [], run.work)
        return context.details

    def run(self, key: str, *, again: bool = False) -> dict[str, Any]:
        task = self.shop.task("orders", key) if not again else self._again(key)
        held, run = self.shop.claim(task)
        details = self.write(held, run)
        self.shop.commit(held, run)
        return details

    def _again(self, key: str) -> str:
        """Another task for a partition, as a backfill makes it."""
        job = live(self.shop.topology, "shop.orders")
        of = job.inputs[0]
        generation = of.generation_id or ""
        wanted = NewTask(
            job=job,
            dedupe_key=f"again:{key}",
            dataset_id=of.dataset_id,
            generation_id=generation,
            partition_key=key,
        )
        return made(self.shop.state, wanted)

    def committed(self) -> list[tuple[int, str]]:
        self.looks += 1
        _, run = self.shop.begin("orders", f"look-{self.looks}")
        _, pieces = run.outputs[0].standing()
        uris = uris_of(list(pieces))
        rows: list[Row] = self.spark.read.parquet(*uris).collect() if uris else []
        return sorted((row["ID"], row["ITEM"]) for row in rows)


def test_rows_above_the_committed_position_are_read_exactly_once_also_late_ones_and_by_attempts_that_died(
    spark: SparkSession, database: Database, state: State, tmp_path: Path
) -> None:
    attempts = Attempts(spark, state, tmp_path)
    put(database, (1, "pen", "00:00:01"), (2, "ink", "00:00:20.123456"))
    held, run = attempts.shop.begin("orders", "one")
    attempts.write(held, run)  # Its files are there, and it dies before it commits.
    attempts.run("two")
    assert attempts.committed() == [(1, "pen"), (2, "ink")]
    first = "2026-01-01 00:00:20.123456"
    assert attempts.run("three") == {"read": [{"above": first, "up_to": first}]}
    put(
        database,
        (3, "late", "00:00:12"),
        (4, "too late", "00:00:02"),
        (5, "cap", "00:00:30"),
        (1, "new", "00:00:31"),
    )
    details = attempts.run("four")
    assert details["read"] == [{"above": first, "up_to": "2026-01-01 00:00:31"}]
    whole = [(1, "new"), (1, "pen"), (2, "ink"), (3, "late"), (5, "cap")]
    assert attempts.committed() == whole
    # A task that runs again reads what it had read, and the next one goes on where the last had been.
    put(database, (6, "after", "00:01:00"))
    assert attempts.run("four", again=True)["read"] == details["read"]
    assert attempts.committed() == whole
    assert attempts.run("five")["read"] == [{"above": "2026-01-01 00:00:31", "up_to": "2026-01-01 00:01:00"}]
    assert attempts.committed() == [*whole, (6, "after")]
