"""The trivial work of the comparisons: one small file in, one smaller file out.

``totals`` is the operator; ``done`` is a whole task as a script does it: read, work, write.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from qo.agent.operator_run import Run

SCHEMA = "kind string, amount bigint"
KINDS = 10


def totals(spark: SparkSession, run: Run) -> DataFrame:
    """The operator. The files are not of qo's making, so their columns are said here, as ``done`` says them."""
    return grouped(spark.read.schema(SCHEMA).parquet(*run.input("numbers").files))


def grouped(numbers: DataFrame) -> DataFrame:
    """One row for each kind."""
    return numbers.groupBy("kind").agg(F.sum("amount").alias("total"), F.count("*").alias("rows"))


def done(spark: SparkSession, source: str, target: str) -> None:
    """A whole task, as a script does it."""
    grouped(spark.read.schema(SCHEMA).parquet(source)).write.mode("error").parquet(target)


def written(directory: Path, files: int, rows: int) -> list[Path]:
    """Input files, each with so many rows."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    directory.mkdir(parents=True)
    names = [f"kind-{number}" for number in range(KINDS)]
    table = pa.table({"kind": [names[at % KINDS] for at in range(rows)], "amount": range(rows)})
    paths = [directory / f"p{number}.parquet" for number in range(files)]
    for path in paths:
        parquet.write_table(table, path)
    return paths
