"""The run whose classes are archived: a small job with everything that a worker usually does.

    python -m qo.spark.engine.class_archive_training [--java-home DIR] [--whole] [--beside]

Exits with 0 when the archive exists. ``--whole``: for sessions with all of Hadoop (see ``lean``). ``--beside``: at the
lowest priority, and not at all while another process makes it. Otherwise it waits a while for such a process.
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
from qo.spark.engine import class_archive, java, session
from qo.spark.engine.class_archive import Archive

KEYS = "key bigint, label string"
EXIT_S = 180.0  # Java writes the archive when it ends, which takes a while.


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m qo.spark.engine.class_archive_training")
    parser.add_argument("--java-home")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--beside", action="store_true")
    options = parser.parse_args(arguments)
    if options.beside:
        os.nice(19)
    settings = SparkSettings(
        master="local[2]",
        java_home=options.java_home,
        driver_memory="1g",
        class_archive=False,
        lean=not options.whole,
    )
    home = java.find(settings, os.environ)
    target = class_archive.archive_of(home, settings, os.environ)
    if target is None:
        return 1
    with class_archive.locked(target, wait_s=0 if options.beside else class_archive.WAIT_S) as acquired:
        # Two may make it at a time, each under a name of its own; the last one is kept.
        if target.exists or (options.beside and not acquired):
            return 0
        try:
            _make(settings, home, target)
        except Exception as error:
            target.failure_path.write_text(f"{error}\n")
            print(error, file=sys.stderr)
            return 1
        target.failure_path.unlink(missing_ok=True)
        class_archive.prune(target)
    return 0


def _make(settings: SparkSettings, home: java.Java, target: Archive) -> None:
    """Make the archive under a temporary name until it is complete. Raises errors of Spark and of the disk."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.path.parent) as directory:
        path = Path(directory) / "path.jsa"
        flags = [f"-XX:ArchiveClassesAtExit={path}"]
        if not (home.home / "lib" / "server" / "classes.jsa").is_file():
            _make_base(home, target.base)
            flags.append(f"-XX:SharedArchiveFile={target.base}")
        _run_training(settings, home, flags, Path(directory))
        if not path.is_file() or path.stat().st_size == 0:
            raise RuntimeError("Java ended without writing the archive")
        os.replace(path, target.path)


def _make_base(home: java.Java, base: Path) -> None:
    """Make the archive of Java's own classes, for a Java that comes without. Raises RuntimeError with Java's error."""
    base.unlink(missing_ok=True)
    dump = [str(home.home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={base}", *class_archive.QUIET]
    process = subprocess.run(
        dump, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if process.returncode != 0 or not base.is_file():
        output = (process.stderr or process.stdout).strip().splitlines() or ["it printed nothing"]
        raise RuntimeError(f"Java cannot archive its own classes: {output[-1]}")


def _run_training(settings: SparkSettings, home: java.Java, flags: Sequence[str], directory: Path) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ.update(session.environment(settings, home))
    builder = SparkSession.builder
    for key, value in session.conf(settings, home).items():
        builder = builder.config(key, value)
    java_options = " ".join(["-XX:TieredStopAtLevel=1", *(f'"{flag}"' for flag in flags), *class_archive.QUIET])
    spark = builder.config("spark.driver.extraJavaOptions", java_options).getOrCreate()
    process = SparkContext._gateway.proc  # pyright: ignore
    try:
        _job(spark, directory)
    finally:
        spark.stop()
        process.stdin.close()  # pyright: ignore - The JVM ends when its standard input does.
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
    observation = Observation("seen")
    ranked.observe(observation, F.count(F.lit(1)).alias("rows"), F.max("rank")).toDF(
        "a", "b", "c", "d", "e"
    ).write.mode("errorifexists").parquet(f"{directory}/ranked")
    assert observation.get["rows"] == 7
    read.createOrReplaceTempView("days")
    spark.sql("SELECT key, to_date(at) AS day, count(DISTINCT name) FROM days GROUP BY ALL ORDER BY 1").collect()
    read.dropDuplicates(["key"]).select(F.udf(_next, "bigint")("key")).collect()


def _next(key: int) -> int:
    return key + 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
