"""The side without qo: a table by key, made anew by a window over all of its rows, and the rows for both sides."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from bench.spark import sessions
from bench.spark.talking import serve


class Script:
    def open(self, conf: dict[str, str], environment: dict[str, str]) -> None:
        self._spark = sessions.opened(conf, environment)

    def customers(self, target: str, rows: int) -> None:
        """Rows of customers, each once, at sequence 1."""
        customers = self._spark.range(rows, numPartitions=8)
        _filled(customers, F.lit(1)).write.parquet(target)

    def changes(self, target: str, rows: int, one_in: int, sequence: int) -> None:
        """A later row for one in so many customers, spread over all of them."""
        customers = self._spark.range(0, rows, numPartitions=2).where(
            F.pmod(F.xxhash64("id"), F.lit(one_in)) == sequence
        )
        _filled(customers, F.lit(sequence)).write.parquet(target)

    def rewrite(self, table: str, changes: str, target: str) -> dict[str, Any]:
        """The latest row of each key, of a table and its changes."""
        began = time.perf_counter()
        both = self._spark.read.parquet(table).unionByName(self._spark.read.parquet(changes))
        latest_first = Window.partitionBy("id").orderBy(F.col("sequence").desc())
        latest = both.withColumn("rank", F.row_number().over(latest_first)).where("rank = 1").drop("rank")
        latest.write.parquet(target)
        return {"seconds": time.perf_counter() - began}

    def digest(self, tables: list[str]) -> dict[str, Any]:
        """What is the same for the same rows, in whatever order."""
        rows = self._spark.read.parquet(*tables)
        row = rows.agg(
            F.count("*").alias("n"), F.sum(F.xxhash64(*sorted(rows.columns)).cast("decimal(38,0)")).alias("sum")
        )
        return {"digest": [str(each) for each in row.collect()[0]]}


def _filled(customers: DataFrame, sequence: Any) -> DataFrame:
    key = F.col("id").cast("string")
    return customers.select(
        "id",
        sequence.cast("long").alias("sequence"),
        F.concat(F.lit("customer "), key).alias("name"),
        F.concat(key, F.lit("@example.com")).alias("email"),
        F.element_at(
            F.array(*map(F.lit, ("Oslo", "Rome", "Bergen", "Turin"))), (F.col("id") % 4 + 1).cast("int")
        ).alias("city"),
        (F.pmod(F.xxhash64("id", sequence), F.lit(1_000_000)) / 100).alias("credit"),
        F.timestamp_seconds(F.lit(1_700_000_000) + F.col("id") % 10_000_000).alias("since"),
    )


if __name__ == "__main__":
    script = Script()
    serve(
        open=script.open,
        customers=script.customers,
        changes=script.changes,
        rewrite=script.rewrite,
        digest=script.digest,
    )
