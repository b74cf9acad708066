"""The operators of ``pipeline.yaml``. Those on Spark are functions from frames to a frame, and know of nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import qo

TABLES = ("weather", "planes", "airports")


def clean(raw: DataFrame, config: Mapping[str, Any]) -> DataFrame:
    """One row per scheduled departure. One without a departure time was cancelled, and is neither late nor on time."""
    cancelled = F.col("dep_time").isNull()
    return raw.select(
        F.col("date").alias("day"),
        F.col("time_hour").alias("scheduled_hour"),
        "carrier",
        "flight",
        F.nullif(F.trim("tailnum"), F.lit("")).alias("tailnum"),
        "origin",
        "dest",
        "distance",
        "dep_delay",
        "arr_delay",
        "air_time",
        cancelled.alias("cancelled"),
        F.when(~cancelled, F.col("dep_delay") > config["late_minutes"]).alias("late"),
    )


def enriched(clean: DataFrame, weather: DataFrame, planes: DataFrame, airports: DataFrame) -> DataFrame:
    """Every departure with the weather at its hour, its plane and its destination, where these are known."""
    then = weather.withColumnRenamed("time_hour", "scheduled_hour")
    plane = planes.select("tailnum", "manufacturer", "seats", "built")
    to = airports.select(F.col("faa").alias("dest"), F.col("name").alias("destination"))
    return (
        clean.join(then, ["origin", "scheduled_hour"], "left")
        .join(plane, "tailnum", "left")
        .join(to, "dest", "left")
    )


def tables(run: qo.Run) -> None:
    """A copy of each reference table: what is read from here on stays as it is, whatever becomes of the original."""
    for index, name in enumerate(TABLES):
        run.output(index).write(f"{name}.csv", Path(run.config["path"], f"{name}.csv").read_bytes())


def catalogue(run: qo.Run) -> None:
    """Says, for as long as it runs, that the reference tables have changed: up to when, in seconds since 1970."""
    place, told = Path(run.config["path"]), 0
    while True:
        changed = max((int(path.stat().st_mtime) for path in place.glob("[!_]*.csv")), default=0)
        if changed > told:
            run.emit(cursor=changed)
            told = changed
        run.cancel.check()
        time.sleep(1)
