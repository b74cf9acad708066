"""What records of Kafka become, without a broker: the records are rows as Spark's reader has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from qo.errors import ConfigError
from qo.spark.engine.error_translation import BadData
from qo.spark.operators.kafka_errors import explain_kafka
from qo.spark.operators.kafka_rows import rows_of
from qo.testing.spark import run_operator

pytestmark = pytest.mark.spark

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "tags", "type": "array<string>"}]


def records(spark: SparkSession, *values: bytes | None, key: bytes | None = b"k") -> DataFrame:
    rows = [(key, value, "clicks", 0, 100 + n, AT, 0) for n, value in enumerate(values)]
    made: Any = spark
    return made.createDataFrame(rows, SCHEMA)


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    return [each.asDict(recursive=True) for each in frame.orderBy("offset").collect()]


def test_a_record_is_its_value_and_what_it_has_beside_that(spark: SparkSession) -> None:
    (row,) = collected(rows_of(records(spark, b"hello"), {}))
    assert list(row) == ["value", "key", "topic", "partition", "offset", "timestamp"]
    assert (row["value"], row["key"], row["topic"], row["offset"]) == ("hello", "k", "clicks", 100)
    frame = rows_of(records(spark, b"\xff", key=None), {"value": "binary", "key": "binary", "prefix": "kafka_"})
    assert dict(frame.dtypes)["kafka_value"] == "binary"
    assert frame.first()["kafka_key"] is None  # pyright: ignore[reportOptionalSubscript]
    assert "key" not in rows_of(records(spark, b"a"), {"key": "none"}).columns


def test_bytes_that_are_no_text_are_marked_in_a_text(spark: SparkSession) -> None:
    (row,) = collected(rows_of(records(spark, b"a\xffb", key=b"\xfe"), {}))
    assert (row["value"], row["key"]) == ("a�b", "�")


def test_json_becomes_the_declared_columns_and_what_does_not_fit_is_kept_as_text(spark: SparkSession) -> None:
    values = [b'{"id": 1, "tags": ["a"], "more": 1}', b'{"id": "x"}', b"", None, b"[", b'{"tags": null}']
    rows = collected(rows_of(records(spark, *values), {"columns": COLUMNS, "malformed": "keep"}))
    assert [(row["id"], row["tags"], row["malformed"]) for row in rows] == [
        (1, ["a"], None),
        (None, None, '{"id": "x"}'),
        (None, None, ""),
        (None, None, None),  # A record without a value says that its key is deleted.
        (None, None, "["),
        (None, None, None),
    ]


def test_a_value_that_is_no_json_fails_and_the_error_names_the_record(spark: SparkSession) -> None:
    config = {"columns": COLUMNS, "servers": "a:1"}
    assert len(collected(rows_of(records(spark, b'{"id": 1}', None), config))) == 2
    with pytest.raises(PySparkException) as failure:
        rows_of(records(spark, b'{"id": 1}', b"oops"), config).write.format("noop").mode("overwrite").save()
    problem = explain_kafka(config, failure.value)
    assert isinstance(problem, BadData)
    assert "the record 101 of clicks, partition 0, has oops in place of JSON: write 'malformed: keep'" in str(
        problem
    )


def test_without_the_reader_the_error_says_which_jar_to_name(spark: SparkSession) -> None:
    jar = rf"QO_SPARK_PACKAGES=org\.apache\.spark:spark-sql-kafka-0-10_2\.13:{pyspark.__version__}"
    with pytest.raises(ConfigError, match=jar):
        run_operator("kafka", {}, spark=spark, config={"servers": "127.0.0.1:1", "topics": ["clicks"]})
