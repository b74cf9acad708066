"""How long tasks take, and how often they are tried again, by type: a queue as a Spark table.

    python examples/latency/latency.py local:.qo

``waited`` is from when a task became claimable to when it was first claimed, ``ran`` one attempt, ``whole`` from its
submission to its end; seconds, by the store's clock.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from qo.spark.io import task_source

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
ENDED = ("completed", "failed", "cancelled", "expired")


def latency(tasks: DataFrame) -> DataFrame:
    """From submission to the end, by type, of tasks that have ended."""
    whole = F.col("completed_at").cast("double") - F.col("created_at").cast("double")
    return _spread(tasks.where(F.col("status").isin(*ENDED)).select("type", whole.alias("seconds")))


def waits(history: DataFrame) -> DataFrame:
    """From due to first claimed, by type. A claim is a version of the task that says it is running."""
    claimed = history.where("status = 'running' AND attempt = 1").groupBy("id", "type")
    # Until it is claimed a task may be put off; the first running version still knows when it was due.
    first = claimed.agg(F.min_by("available_at", "updated_at").alias("due"), F.min("updated_at").alias("claimed"))
    seconds = F.col("claimed").cast("double") - F.col("due").cast("double")
    return _spread(first.select("type", seconds.alias("seconds")))


def runs(history: DataFrame) -> DataFrame:
    """How long attempts took, by type, of those that ended."""
    begun = (
        history.where("status = 'running'").groupBy("id", "type", "attempt").agg(F.min("updated_at").alias("from"))
    )
    after = history.where("status <> 'running' AND attempt > 0").groupBy("id", "attempt")
    ended = after.agg(F.min("updated_at").alias("to"))
    seconds = F.col("to").cast("double") - F.col("from").cast("double")
    return _spread(begun.join(ended, ["id", "attempt"]).select("type", seconds.alias("seconds")))


def retries(tasks: DataFrame) -> DataFrame:
    """By type: tasks, those that were tried more than once, failures, and the last words of one."""
    return (
        tasks.groupBy("type")
        .agg(
            F.count("*").alias("tasks"),
            F.count_if(F.col("attempt") > 1).alias("retried"),
            F.sum("retry_count").alias("retries"),
            F.count_if(F.col("status") == "failed").alias("failed"),
            F.max_by("error", F.when(F.col("error").isNotNull(), F.col("updated_at"))).alias("last_error"),
        )
        .orderBy("type")
    )


def _spread(seconds: DataFrame) -> DataFrame:
    found = [F.percentile("seconds", F.lit(at)).alias(name) for name, at in PERCENTILES.items()]
    return (
        seconds.groupBy("type")
        .agg(F.count("*").alias("n"), *found, F.max("seconds").alias("most"))
        .orderBy("type")
    )


def main(store: str | None) -> None:
    builder = SparkSession.builder.master("local[*]").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
    tasks = task_source.tasks(spark, store).cache()
    history = task_source.tasks(spark, store, history=True).cache()
    for title, frame in {
        "whole": latency(tasks),
        "waited": waits(history),
        "ran": runs(history),
        "retries": retries(tasks),
    }.items():
        print(title)
        frame.show(truncate=60)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
