"""The run whose classes are archived: a small job of everything that a worker usually does.

    python -m qo.spark.engine.archive_training [--java-home DIR] [--whole] [--beside]

Ends with 0 when the archive is there. ``--whole``: for sessions with all of Hadoop (see ``lean``). ``--beside``: at
the lowest priority, and not at all if another is at it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from qo.config.spark import SparkSettings
from qo.spark.engine import archive, java, session
from qo.spark.engine.archive import Archive

KEYS = "key bigint, label string"
EXIT_S = 180.0  # Java writes the archive when it ends, which takes a while.


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m qo.spark.engine.archive_training")
    parser.add_argument("--java-home")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--beside", action="store_true")
    given = parser.parse_args(arguments)
    if given.beside:
        os.nice(19)
    settings = SparkSettings(
        master="local[2]",
        java_home=given.java_home,
        driver_memory="1g",
        class_archive=False,
        lean=not given.whole,
    )
    found = java.find(settings, os.environ)
    target = archive.archive_of(found, settings, os.environ)
    if target is None:
        return 1
    with archive.alone(target, wait=not given.beside) as mine:
        if not mine or target.there:
            return 0
        try:
            _make(settings, found, target)
        except Exception as error:
            target.failed.write_text(f"{error}\n")
            print(error, file=sys.stderr)
            return 1
        target.failed.unlink(missing_ok=True)
        archive.prune(target)
    return 0


def _make(settings: SparkSettings, found: java.Java, target: Archive) -> None:
    """Under a name of its own until it is whole. Raises whatever Spark or the disk has to say."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.path.parent) as directory:
        made = Path(directory) / "made.jsa"
        flags = [f"-XX:ArchiveClassesAtExit={made}"]
        if not (found.home / "lib" / "server" / "classes.jsa").is_file():
            _make_base(found, target.base)
            flags.append(f"-XX:SharedArchiveFile={target.base}")
        _rehearse(settings, found, flags, Path(directory))
        if not made.is_file() or made.stat().st_size == 0:
            raise RuntimeError("Java ended without writing the archive")
        os.replace(made, target.path)


def _make_base(found: java.Java, base: Path) -> None:
    """An archive of Java's own classes, for a Java that comes without. Raises RuntimeError with what Java says."""
    base.unlink(missing_ok=True)
    dump = [str(found.home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={base}", *archive.QUIET]
    done = subprocess.run(
        dump, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0 or not base.is_file():
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"Java cannot archive its own classes: {said[-1]}")


def _rehearse(settings: SparkSettings, found: java.Java, flags: Sequence[str], directory: Path) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ.update(session.environment(settings, found))
    builder = SparkSession.builder
    for key, value in session.conf(settings, found).items():
        builder = builder.config(key, value)
    said = " ".join(["-XX:TieredStopAtLevel=1", *(f'"{flag}"' for flag in flags), *archive.QUIET])
    spark = builder.config("spark.driver.extraJavaOptions", said).getOrCreate()
    process = SparkContext._gateway.proc  # pyright: ignore
    try:
        _job(spark, directory)
    finally:
        spark.stop()
        process.stdin.close()  # pyright: ignore - It ends when nobody can speak to it any more.
        process.wait(EXIT_S)  # pyright: ignore


def _job(spark: object, directory: Path) -> None:
    """Read, join, aggregate, rank, observe and write, as operators do."""
    from pyspark.sql import Observation, SparkSession, Window
    from pyspark.sql import functions as F

    assert isinstance(spark, SparkSession)
    days = spark.range(1000).select(
        F.col("id"),
        (F.col("id") % 7).alias("key"),
        F.timestamp_seconds("id").alias("at"),
        F.concat(F.lit("n"), F.col("id").cast("string")).alias("name"),
    )
    days.write.mode("errorifexists").parquet(f"{directory}/days")
    read = spark.read.schema(days.schema).parquet(f"{directory}/days").where("id > 3")
    keys = spark.createDataFrame([(key, f"k{key}") for key in range(7)], KEYS)  # pyright: ignore
    totals = (
        read.join(keys, "key")
        .groupBy("label")
        .agg(F.count("*").alias("rows"), F.count_distinct("name"), F.max("at"))
    )
    ranked = totals.withColumn("rank", F.row_number().over(Window.orderBy(F.desc("rows"))))
    seen = Observation("seen")
    ranked.observe(seen, F.count(F.lit(1)).alias("rows"), F.max("rank")).toDF("a", "b", "c", "d", "e").write.mode(
        "errorifexists"
    ).parquet(f"{directory}/ranked")
    assert seen.get["rows"] == 7
    read.createOrReplaceTempView("days")
    spark.sql("SELECT key, to_date(at) AS day, count(DISTINCT name) FROM days GROUP BY ALL ORDER BY 1").collect()
    read.dropDuplicates(["key"]).select(F.udf(_next, "bigint")("key")).collect()


def _next(key: int) -> int:
    return key + 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
