"""The work of examples/flights: as a script does it, and as a pipeline whose days are announced when we say so.

The operators are the example's own, and so are columns, queries and what is checked. The script does by hand what the
pipeline declares: it reads what it has written a step before, and counts what is expected while it writes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from bench.spark.talking import ROOT
from qo.pipeline.loading import load_for_deploy
from qo.pipeline.rendering import to_yaml

EXAMPLE = ROOT / "examples" / "flights"
LATE = {"late_minutes": 15}
REFERENCE = ("weather", "planes", "airports")
DAILY = ("raw", "clean", "enriched", "daily")  # The jobs of a day, one after the other.
MONTHLY = ("monthly", "compacted", "alerts")
# Jobs that only wait or copy, and need a second worker: here, days are announced when they are due.
LEFT_OUT = ("catalogue", "tables")


@dataclass(frozen=True)
class Definition:
    """What the script needs of the pipeline."""

    columns: dict[str, str]  # By job, as Spark writes them.
    queries: dict[str, str]


def definition() -> Definition:
    jobs = {job["name"]: job.get("config", {}) for job in _document()["jobs"]}
    columns = {
        name: ", ".join(f"{each['name']} {each['type']}" for each in config["columns"])
        for name, config in jobs.items()
        if "columns" in config
    }
    return Definition(columns, {name: config["query"] for name, config in jobs.items() if "query" in config})


def pipeline(days: Sequence[str]) -> str:
    """The example's pipeline, with sources that speak when they are told to. Months are made of these days."""
    document = _document()
    expected_days = {"kind": "day", "start": days[0], "without": _others(days)}
    jobs = [job for job in document["jobs"] if job["name"] not in LEFT_OUT]
    for job in jobs:
        if job["activation"] == "source":
            job |= {"source": {"kind": "manual"}, "partitions": expected_days}
        if job["name"] == "monthly":
            job["partitions"] = {"kind": "month"}
    tables = {"name": "tables", "activation": "source", "source": {"kind": "manual"}, "outputs": len(REFERENCE)}
    return yaml.safe_dump({**document, "jobs": [tables, *jobs]}, sort_keys=False)


def landed(directory: Path, days: int) -> list[str]:
    """The example's own files, of the first so many days; the names of the days."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        from prepare import prepare  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(EXAMPLE))
    prepare(days, directory)
    return sorted(path.stem for path in (directory / "flights").glob("*.csv"))


def _others(days: Sequence[str]) -> list[str]:
    """The days of the same months that are not among these."""
    first, last = date.fromisoformat(days[0]), date.fromisoformat(days[-1])
    end = (last.replace(day=1) + timedelta(days=31)).replace(day=1)
    all_days = {str(first + timedelta(days=n)) for n in range((end - first).days)}
    return sorted(all_days - set(days))


def _document() -> dict[str, Any]:
    """The example's definition in full, with its queries."""
    return yaml.safe_load(to_yaml(load_for_deploy(str(EXAMPLE), code=False).dag))


class Demo:
    """The script. What it has written it knows by its path; nothing else is kept."""

    def __init__(self, definition: Definition, landing: str, target: str) -> None:
        sys.path.append(str(EXAMPLE))
        import flights  # pyright: ignore[reportMissingImports]

        self._operators: Any = flights
        self._definition = definition
        self._landing, self._target = landing, target
        self._schemas: dict[str, StructType] = {}  # By job: nothing has to be found out twice.
        self._daily: list[str] = []

    def reference(self, spark: SparkSession) -> None:
        for name in REFERENCE:
            self._write(self._csv(spark, name, f"{self._landing}/reference/{name}.csv"), name, "all")

    def day(self, spark: SparkSession, day: str) -> None:
        self._write(self._csv(spark, "raw", f"{self._landing}/flights/{day}.csv"), "raw", day)
        clean = self._operators.clean(self._read(spark, "raw", day), LATE)
        expect(self._write(clean, "clean", day, expected()))
        beside = [self._read(spark, name, "all") for name in REFERENCE]
        self._write(self._operators.enriched(self._read(spark, "clean", day), *beside), "enriched", day)
        self._read(spark, "enriched", day).createOrReplaceTempView("flights")
        self._write(spark.sql(self._definition.queries["daily"]), "daily", day)
        self._daily.append(day)

    def month(self, spark: SparkSession, month: str) -> None:
        days = [day for day in self._daily if day.startswith(month)]
        self._write(self._read(spark, "daily", *days), "monthly", month)
        rows = self._read(spark, "monthly", month)
        if rows.groupBy("day", "origin", "carrier").count().where("count > 1").limit(1).collect():
            raise ValueError(f"{month} has a row twice")
        self._write(rows.coalesce(1), "compacted", month)
        self._read(spark, "compacted", month).createOrReplaceTempView("compacted")
        found = spark.sql(self._definition.queries["alerts"])
        alerts = found.limit(1001).collect()
        self._write(spark.createDataFrame(alerts, found.schema).coalesce(1), "alerts", month)

    def _csv(self, spark: SparkSession, name: str, path: str) -> DataFrame:
        reader = spark.read.schema(self._definition.columns[name]).option("header", True)
        return reader.option("mode", "FAILFAST").option("enforceSchema", False).csv(path)

    def _read(self, spark: SparkSession, job: str, *parts: str) -> DataFrame:
        return spark.read.schema(self._schemas[job]).parquet(*(f"{self._target}/{job}/{part}" for part in parts))

    def _write(self, frame: DataFrame, job: str, part: str, measures: Sequence[Column] = ()) -> dict[str, Any]:
        self._schemas.setdefault(job, frame.schema)
        seen = Observation()
        counted = frame.observe(seen, *measures) if measures else frame
        counted.write.mode("error").parquet(f"{self._target}/{job}/{part}")
        return seen.get if measures else {}


def expected() -> list[Column]:
    """What is expected of clean rows, as counts of those that break it."""
    wrong = {name: F.col(name).isNull() for name in ("day", "scheduled_hour", "carrier", "origin", "dest")}
    wrong["of"] = ~F.col("origin").isin("EWR", "JFK", "LGA")
    wrong["distance"] = ~F.col("distance").between(10, 6000)
    wrong["early"] = F.col("dep_delay") < -60
    rows = F.count(F.lit(1)).alias("rows")
    return [rows, *(F.count_if(each).alias(f"wrong_{name}") for name, each in wrong.items())]


def expect(seen: dict[str, Any]) -> None:
    broken = [name for name, count in seen.items() if name.startswith("wrong_") and count]
    if not 100 <= seen["rows"] <= 2000 or set(broken) - {"wrong_early"}:
        raise ValueError(f"not as expected: {seen}")
