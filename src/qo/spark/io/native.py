"""Files through Spark's own readers and writers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from qo.agent import parquet_footers
from qo.config.location import local_path
from qo.core.pipeline.file_stats import FileStats
from qo.errors import UsageError
from qo.spark.io.files import File, Format, escape_pattern, format_of
from qo.store.private import make_data_directory

if TYPE_CHECKING:
    from qo.spark.io.objects import Bucket

FOOTERS_MAX = 200  # In a bucket each takes two requests; of more files, nothing is known but their sizes.
FIELD_ID = "parquet.field.id"  # Where Spark looks for the id of a column.
_HIDDEN = ("_", ".")  # Prefixes of names that are not data.

# By default Spark lists 33 files and more with a task for each: 1,000 files took 20 s, now half a second.
LISTING = {
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}


def read(spark: SparkSession, paths: Sequence[str], schema: StructType | None) -> DataFrame:
    """Read files of one format. A row that cannot be parsed is an error, never nulls."""
    kind = format_of(paths)
    reader = spark.read if schema is None else spark.read.schema(schema)
    patterns = [escape_pattern(path) for path in paths]
    match kind:
        case Format.PARQUET:
            return (reader.option("mergeSchema", True) if schema is None else reader).parquet(*patterns)
        case Format.JSON:
            return reader.option("mode", "FAILFAST").json(patterns)
        case Format.CSV:
            # Columns by the header, not by position; types are inferred without a schema.
            strict = reader.option("mode", "FAILFAST").option("header", True).option("enforceSchema", False)
            return strict.option("inferSchema", schema is None).csv(patterns)


def write(frame: DataFrame, path: str, by: str | None = None, plain: Sequence[str] = ()) -> None:
    # No _SUCCESS file: the dispatcher knows what is committed. Spark's default mode fails if the path exists.
    writer = frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", False)
    for each in plain:
        writer = writer.option(f"parquet.enable.dictionary#{each}", False)
    (writer if by is None else writer.partitionBy(by)).parquet(path)


def with_field_ids(frame: DataFrame, ids: Mapping[str, int] | None, by: str | None = None) -> DataFrame:
    """Return the frame with ids of columns, which Spark writes into its files. ``by``: one that they lack."""
    if ids is None:
        return frame
    gateway = getattr(frame.sparkSession.__dict__.get("_sc"), "_gateway", None)  # None: a client of Spark Connect.
    build = _build_columns.__wrapped__ if gateway is None else _build_columns
    others = [] if by is None else [F.col(by)]
    return frame.select(*build(gateway, tuple(ids.items())), *others)


@lru_cache(maxsize=256)
def _build_columns(gateway: object, ids: tuple[tuple[str, int], ...]) -> list[SparkColumn]:
    """Return columns that any frame with these names can select. A job has the same ones each time, and to make one
    takes several calls to the JVM behind the gateway."""
    del gateway
    return [F.col("`" + name.replace("`", "``") + "`").alias(name, metadata={FIELD_ID: id_}) for name, id_ in ids]


class LocalFiles:
    """Files on a file system that the driver and all executors have at the same path."""

    counts_rows = True

    def read(self, spark: SparkSession, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        return read(spark, uris, schema)

    def read_footers(self, uris: Sequence[str]) -> list[Any] | None:
        return (
            [parquet_footers.read_footer(local_path(each)) for each in uris] if len(uris) <= FOOTERS_MAX else None
        )

    def write(
        self,
        frame: DataFrame,
        uri: str,
        ids: Mapping[str, int] | None = None,
        by: str | None = None,
        plain: Sequence[str] = (),
    ) -> None:
        if self.exists(uri):
            raise UsageError(f"{uri} is there already: every attempt writes to a place of its own")
        make_data_directory(local_path(uri).parent)  # What Java creates below it follows the umask.
        write(with_field_ids(frame, ids, by), uri, by, plain)

    def list_files(self, uri: str) -> list[File]:
        root = local_path(uri)
        paths = [(path.relative_to(root), path.stat().st_size) for path in root.rglob("*") if path.is_file()]
        return [
            File(str(name), size)
            for name, size in sorted(paths)
            if not any(part.startswith(_HIDDEN) for part in name.parts)
        ]

    def measure(self, uri: str, files: Sequence[File], types: Mapping[str, Any]) -> list[FileStats | None]:
        root = local_path(uri)
        footers = [parquet_footers.read_footer(root / each.name) for each in files]
        return [
            None if footer is None else parquet_footers.footer_stats(footer, each.size, types)
            for each, footer in zip(files, footers, strict=True)
        ]

    def delete(self, uri: str) -> None:
        shutil.rmtree(local_path(uri), ignore_errors=True)

    def exists(self, uri: str) -> bool:
        return local_path(uri).exists()


class HadoopFiles:
    """Files in a bucket, through s3a. Listed from here, without Hadoop."""

    counts_rows = False

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, spark: SparkSession, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        return read(spark, [_s3a(uri) for uri in uris], schema)

    def read_footers(self, uris: Sequence[str]) -> list[Any] | None:
        return None  # Each takes two requests; Spark reads them anyway.

    def write(
        self,
        frame: DataFrame,
        uri: str,
        ids: Mapping[str, int] | None = None,
        by: str | None = None,
        plain: Sequence[str] = (),
    ) -> None:
        if self.exists(uri):
            raise UsageError(f"{uri} is there already: every attempt writes to a place of its own")
        write(with_field_ids(frame, ids, by), _s3a(uri), by, plain)

    def list_files(self, uri: str) -> list[File]:
        return [
            each
            for each in self._bucket.list_files(uri)
            if not any(part.startswith(_HIDDEN) for part in each.name.split("/"))
        ]

    def delete(self, uri: str) -> None:
        self._bucket.delete(uri)

    def exists(self, uri: str) -> bool:
        return self._bucket.exists(uri)

    def measure(self, uri: str, files: Sequence[File], types: Mapping[str, Any]) -> list[FileStats | None]:
        footers = self._bucket.read_footers(uri, files) if len(files) <= FOOTERS_MAX else [None] * len(files)
        return [
            None if footer is None else parquet_footers.footer_stats(footer, each.size, types)
            for each, footer in zip(files, footers, strict=True)
        ]


def _s3a(uri: str) -> str:
    return f"s3a://{uri.removeprefix('s3://')}"
