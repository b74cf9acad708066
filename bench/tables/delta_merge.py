"""The side of Delta Lake: MERGE into a table of the same rows. It runs in an environment with a Spark of its own."""

from __future__ import annotations

import os
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.spark.talking import serve

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
UPSERT = """
MERGE INTO delta.`{table}` AS t USING changes AS c ON t.id = c.id
WHEN MATCHED AND c.sequence > t.sequence THEN UPDATE SET *
WHEN NOT MATCHED THEN INSERT *
"""


class Script:
    def open(self, master: str, memory: str, environment: dict[str, str]) -> dict[str, Any]:
        os.environ.update(environment)
        builder = SparkSession.builder.master(master).config("spark.driver.memory", memory)
        builder = builder.config("spark.jars.packages", PACKAGE).config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        self._spark = builder.config("spark.sql.catalog.spark_catalog", catalog).getOrCreate()
        return {"spark": self._spark.version}

    def load(self, rows: str, table: str, vectors: bool) -> None:
        """The first rows. ``vectors``: with deletion vectors, which mark rows as gone in files that stay."""
        option = ("delta.enableDeletionVectors", str(vectors).lower())
        self._spark.read.parquet(rows).write.format("delta").option(*option).save(table)

    def merge(self, changes: str, table: str) -> dict[str, Any]:
        self._spark.read.parquet(changes).createOrReplaceTempView("changes")
        began = time.perf_counter()
        self._spark.sql(UPSERT.format(table=table)).collect()
        return {"seconds": time.perf_counter() - began}

    def digest(self, table: str) -> dict[str, Any]:
        """As ``window_rewrite`` has it."""
        rows = self._spark.read.format("delta").load(table)
        total = F.sum(F.xxhash64(*sorted(rows.columns)).cast("decimal(38,0)"))
        return {"digest": [str(each) for each in rows.agg(F.count("*"), total).collect()[0]]}


if __name__ == "__main__":
    script = Script()
    serve(open=script.open, load=script.load, merge=script.merge, digest=script.digest)
