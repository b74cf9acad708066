"""Files through Spark's own readers and writers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from qo.config.location import local_path
from qo.errors import UsageError
from qo.spark.io.files import File, Format, exactly, format_of

if TYPE_CHECKING:
    from qo.spark.io.objects import Bucket

_ASIDE = ("_", ".")  # What names begin with that are not data.

# The default lists files by a Spark task for each as soon as there are 33: 1,000 files took 20 s, now half a second.
LISTING = {
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}


def read(spark: SparkSession, paths: Sequence[str], schema: StructType | None) -> DataFrame:
    """Rows that cannot be parsed are errors, never nulls."""
    kind = format_of(paths)
    reader = spark.read if schema is None else spark.read.schema(schema)
    named = [exactly(path) for path in paths]
    match kind:
        case Format.PARQUET:
            return (reader.option("mergeSchema", True) if schema is None else reader).parquet(*named)
        case Format.JSON:
            return reader.option("mode", "FAILFAST").json(named)
        case Format.CSV:
            # By the header, not by position; types are inferred where nobody has said them.
            strict = reader.option("mode", "FAILFAST").option("header", True).option("enforceSchema", False)
            return strict.option("inferSchema", schema is None).csv(named)


def write(frame: DataFrame, path: str) -> None:
    # Written once, by one attempt: no mark of success is needed, the dispatcher has it. What is there already is an
    # error, as it is unless one says otherwise.
    frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", False).parquet(path)


class LocalFiles:
    """On a file system that the driver and all executors have at the same path."""

    def read(self, spark: SparkSession, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        return read(spark, uris, schema)

    def write(self, frame: DataFrame, uri: str) -> None:
        if self.exists(uri):
            raise UsageError(f"{uri} is there already: every attempt writes to a place of its own")
        write(frame, uri)

    def listed(self, uri: str) -> list[File]:
        root = local_path(uri)
        found = [(path.relative_to(root), path.stat().st_size) for path in root.rglob("*") if path.is_file()]
        return [
            File(str(name), size)
            for name, size in sorted(found)
            if not any(part.startswith(_ASIDE) for part in name.parts)
        ]

    def count(self, uri: str, files: Sequence[File]) -> int:
        parquet: Any = import_module("pyarrow.parquet")  # When the first file was written.
        root = local_path(uri)
        return sum(parquet.read_metadata(root / each.name).num_rows for each in files)

    def delete(self, uri: str) -> None:
        shutil.rmtree(local_path(uri), ignore_errors=True)

    def exists(self, uri: str) -> bool:
        return local_path(uri).exists()


class HadoopFiles:
    """In a bucket, through s3a. It is listed from here, without Hadoop."""

    count = None

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, spark: SparkSession, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        return read(spark, [_s3a(uri) for uri in uris], schema)

    def write(self, frame: DataFrame, uri: str) -> None:
        if self.exists(uri):
            raise UsageError(f"{uri} is there already: every attempt writes to a place of its own")
        write(frame, _s3a(uri))

    def listed(self, uri: str) -> list[File]:
        return [
            each
            for each in self._bucket.listed(uri)
            if not any(part.startswith(_ASIDE) for part in each.name.split("/"))
        ]

    def delete(self, uri: str) -> None:
        self._bucket.delete(uri)

    def exists(self, uri: str) -> bool:
        return self._bucket.exists(uri)


def _s3a(uri: str) -> str:
    return f"s3a://{uri.removeprefix('s3://')}"
