"""Objects of buckets, without jars: listed by the driver, read and written by Python workers with pyarrow."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from qo.agent.parquet_footers import described_stats
from qo.config.settings import S3Settings
from qo.core.pipeline.file_stats import FileStats
from qo.errors import UsageError
from qo.spark.engine.sync import wait
from qo.spark.io import parquet_source
from qo.spark.io.bucket import endpoint_of
from qo.spark.io.files import File, Format, format_of
from qo.spark.io.parquet_source import (
    FILE_LIST,
    NAME,
    BadFile,
    FileSystem,
    ParquetSource,
    Schema,
    arrow_fs,
    open_filesystem,
    pa,
    parse_text,
    pq,
)
from qo.store.s3.aws_credentials import Credentials, find_credentials, find_region

if TYPE_CHECKING:
    from qo.agent.attempt_credentials import AttemptCredentials


class Bucket:
    """Access to buckets from the driver: to list files, and to delete those that nobody reads."""

    def __init__(self, s3: S3Settings, credentials: AttemptCredentials | None = None) -> None:
        """``credentials``: of an attempt; None: those of this process."""
        self._s3 = s3
        self._credentials = credentials

    def access(self) -> dict[str, str]:
        """Return options for our own workers, with the credentials. Spark redacts options of these names.

        Frames are read when they are used, which may be hours later: with credentials of an attempt go the means to
        renew them.
        """
        if self._credentials is not None:
            held = self._credentials.answer()
            scoped = {
                "accesskey": held.access_key_id,
                "secretkey": held.secret_access_key,
                "sessiontoken": held.session_token,
                "endpoint": endpoint_of(self._s3) or held.endpoint,
                "region": self._s3.region or held.region,
                "expires": held.expiration.isoformat(),
                "renewaltoken": self._credentials.renewal(),
            }
            return {key: value for key, value in scoped.items() if value is not None}

        async def current() -> Credentials:
            return await (await find_credentials()).current()

        credentials = wait(current())
        options = {
            "accesskey": credentials.access_key,
            "secretkey": credentials.secret_key,
            "sessiontoken": credentials.token,
            "endpoint": endpoint_of(self._s3),
            "region": find_region(self._s3.region),
        }
        return {key: value for key, value in options.items() if value is not None}

    def filesystem(self) -> FileSystem:
        return open_filesystem(self.access())

    def list_files(self, uri: str) -> list[File]:
        root = bucket_path(uri).rstrip("/")
        entries = self.filesystem().get_file_info(
            arrow_fs.FileSelector(root, recursive=True, allow_not_found=True)
        )
        objects = [each for each in entries if each.type is arrow_fs.FileType.File and each.path != root]
        files = [File(each.path.removeprefix(f"{root}/"), each.size or 0) for each in objects]
        return sorted(files, key=lambda each: each.name)

    def read_footers(self, uri: str, files: Sequence[File]) -> list[Any]:
        """Return the footers of Parquet files below a directory."""
        filesystem, root = self.filesystem(), bucket_path(uri).rstrip("/")

        def read(file: File) -> Any:
            return pq.read_metadata(f"{root}/{file.name}", filesystem=filesystem)

        with ThreadPoolExecutor(16) as threads:
            return list(threads.map(read, files))

    def delete(self, uri: str) -> None:
        if self.exists(uri):
            self.filesystem().delete_dir(bucket_path(uri).rstrip("/"))

    def exists(self, uri: str) -> bool:
        return bool(self.list_files(uri))


def bucket_path(uri: str) -> str:
    """Return bucket and key of a URI, as pyarrow names an object."""
    if not uri.startswith("s3://"):
        raise UsageError(f"{uri} is not in a bucket: it does not begin with s3://")
    return uri.removeprefix("s3://")


class BucketFiles:
    """Files through Python workers: a full scan is about half as fast as with s3a, small data is faster."""

    counts_rows = False

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, spark: SparkSession, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        kind, access = format_of(uris), self._bucket.access()
        paths = [bucket_path(uri) for uri in uris]
        if schema is None:
            schema = _infer_schema(open_filesystem(access), paths, kind)
        register(spark)
        # Older files may lack a column, so all are nullable, whatever the schema says.
        nullable = StructType([StructField(each.name, each.dataType, nullable=True) for each in schema])
        reader = spark.read.format(NAME).schema(nullable).options(**access)
        return reader.option("files", json.dumps(paths)).option("kind", kind.value).load()

    def read_footers(self, uris: Sequence[str]) -> list[Any] | None:
        return None  # Each takes two requests.

    def write(
        self,
        frame: DataFrame,
        uri: str,
        ids: Mapping[str, int] | None = None,
        by: str | None = None,
        plain: Sequence[str] = (),  # Not used: pyarrow gives dictionaries up by itself.
    ) -> None:
        if self._bucket.exists(uri):
            raise UsageError(f"{uri} is there already: every attempt writes to a place of its own")
        register(frame.sparkSession)
        writer = frame.write.format(NAME).options(**self._bucket.access())
        if ids is not None:
            writer = writer.option("fieldids", json.dumps(dict(ids)))
        writer = writer if by is None else writer.option("by", by)
        writer.option("directory", bucket_path(uri).rstrip("/")).mode("append").save()

    def list_files(self, uri: str) -> list[File]:
        path = f"{bucket_path(uri).rstrip('/')}/{FILE_LIST}"
        try:
            with self._bucket.filesystem().open_input_file(path) as file:
                files: list[dict[str, Any]] = json.loads(file.read())
        except FileNotFoundError:
            return []
        return [File(each["name"], each["size"], each.get("stats")) for each in files]

    def measure(self, uri: str, files: Sequence[File], types: Mapping[str, Any]) -> list[FileStats | None]:
        """Return what our own workers measured as they wrote."""
        return [
            None if each.description is None else described_stats(each.description, each.size, types)
            for each in files
        ]

    def delete(self, uri: str) -> None:
        self._bucket.delete(uri)

    def exists(self, uri: str) -> bool:
        return self._bucket.exists(uri)


def register(spark: SparkSession) -> None:
    """Register the source with a session. Its module is sent along, so executors need not have qo."""
    by_value: Any = cloudpickle
    by_value.register_pickle_by_value(sys.modules[parquet_source.__name__])
    spark.dataSource.register(ParquetSource)


def _infer_schema(filesystem: FileSystem, paths: Sequence[str], kind: Format) -> StructType:
    """Return the columns of all files together. Raises BadFile, as reading them would."""
    from_arrow: Any = import_module("pyspark.sql.pandas.types").from_arrow_schema
    schemas: list[Schema] = []
    for path in paths:
        try:
            with filesystem.open_input_file(path) as file:
                if kind is Format.PARQUET:
                    schemas.append(pq.read_schema(file))
                elif file.size() > 0:
                    schemas.append(parse_text(file, kind.value, None).schema)
        except FileNotFoundError as error:
            raise BadFile(path, "missing", error) from None
        except pa.ArrowInvalid as error:
            raise BadFile(path, "corrupt", error) from None
    # Text files do not state types: a column with 1 in one file and 1.5 in another is a double.
    return from_arrow(pa.unify_schemas(schemas, promote_options="permissive"))
