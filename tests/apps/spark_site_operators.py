"""The operators of the pipelines that Spark workers run as processes in tests. They run in the site's directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def clean(orders: DataFrame, config: Mapping[str, Any]) -> DataFrame:
    """Each order once, in cents."""
    cents = (F.col("amount") * 100 * config.get("factor", 1)).cast("long").alias("cents")
    return orders.dropDuplicates(["id"]).select("id", "day", "account", cents)


def three(spark: SparkSession) -> DataFrame:
    return spark.range(3)


# These do as they should until the file ``broken`` is there.


def raising(spark: SparkSession, config: Mapping[str, Any]) -> DataFrame:
    if _broken(config):
        raise RuntimeError("the other side hung up")
    return spark.range(3)


def rows_failing(spark: SparkSession, config: Mapping[str, Any]) -> DataFrame:
    if _broken(config):
        return spark.range(3).selectExpr("id DIV (id - 1) AS id")
    return spark.range(3)


def function_raising(spark: SparkSession, config: Mapping[str, Any]) -> DataFrame:
    broken = _broken(config)

    @F.udf("long")
    def checked(number: int) -> int:
        if broken and number == 1:
            raise ValueError(f"no such number: {number}")
        return number

    return spark.range(3).select(checked("id").alias("id"))


def nothing(spark: SparkSession, config: Mapping[str, Any]) -> DataFrame | None:
    return None if _broken(config) else spark.range(3)


def column_less(spark: SparkSession, config: Mapping[str, Any]) -> DataFrame:
    return spark.range(3).withColumnRenamed("id", "number" if _broken(config) else "id")


def large(spark: SparkSession, config: Mapping[str, Any]) -> DataFrame:
    """A megabyte and more, that nothing compresses."""
    return spark.range(200_000 if _broken(config) else 3).select("id", F.sha2(F.col("id").cast("string"), 256))


def _broken(config: Mapping[str, Any]) -> bool:
    return Path(config["broken"]).exists()


def slowly(spark: SparkSession, config: Mapping[str, Any]) -> DataFrame:
    """Some seconds of work in many small parts, and always the same rows."""

    @F.udf("long")
    def doubled(number: int) -> int:
        time.sleep(config["seconds"])
        return 2 * number

    numbers = spark.range(0, config["parts"], 1, config["parts"])
    return numbers.select(doubled("id").alias("number"))
