"""Operators for tests of the Spark executor. What they saw, ``SEEN`` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import qo

SEEN: dict[str, Any] = {}


def late(orders: DataFrame, config: Mapping[str, Any]) -> DataFrame:
    return orders.where(orders["delay"] > config["minutes"])


def endless(spark: SparkSession, run: qo.Run) -> DataFrame:
    """A job that would take days, and nothing that looks at the cancel token."""
    SEEN["endless"] = run.work.attempt
    spark.range(10**13).selectExpr("sum(hash(id))").collect()
    raise AssertionError("it ended")


def stubborn(spark: SparkSession, run: qo.Run) -> DataFrame:
    """Takes no error for an answer, until it is asked to stop."""
    while not run.cancel.requested:
        try:
            SEEN["stubborn"] = SEEN.get("stubborn", 0) + 1
            spark.range(10**13).selectExpr("sum(hash(id))").collect()
        except Exception as error:
            SEEN["stopped"] = error
    return spark.range(1)


def steady(spark: SparkSession) -> DataFrame:
    """Takes a while, in several jobs."""
    for _ in range(5):
        spark.range(2_000_000).selectExpr("sum(hash(id))").collect()
    return spark.range(3)


def failing(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("raise_error('as it must')")


def halves(orders: DataFrame) -> tuple[DataFrame, DataFrame]:
    return orders.where("id = 1"), orders.where("id > 1")


def seen_once(spark: SparkSession, config: Mapping[str, Any]) -> DataFrame:
    """A stream of the user's own, with state: each id the first time it comes. Spark remembers few of its batches."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", 4)
    files = spark.readStream.schema("id long, delay int").option("maxFilesPerTrigger", 1)
    return files.json(config["path"]).dropDuplicates(["id"])
