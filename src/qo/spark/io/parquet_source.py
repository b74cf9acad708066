"""A data source for Spark that reads and writes files of a bucket with pyarrow, without the jars of s3a.

    spark.read.format("qo_parquet").schema(schema).options(files=..., **access).load()

The reader names the files. The writer lists those that it committed in ``_files.json``: Spark tasks that failed and
ran again leave files behind that are not in the list. Columns that the schema does not have are not read.

This module is sent to the executors by value, so it imports nothing of qo: they need only pyarrow.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module
from math import isfinite
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

# pyarrow has no types.
pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")
compute: Any = import_module("pyarrow.compute")
arrow_csv: Any = import_module("pyarrow.csv")
arrow_json: Any = import_module("pyarrow.json")
arrow_fs: Any = import_module("pyarrow.fs")
to_arrow_schema: Any = import_module("pyspark.sql.pandas.types").to_arrow_schema

Table = Batch = Schema = FileSystem = Any

NAME = "qo_parquet"
FILE_LIST = "_files.json"
GROUPS_MAX = 128  # At most so many Spark tasks read.
BATCH_ROWS = 32_768
TEXT_CHARS_MAX = 256  # Of a bound; longer ones are left out.
_DAMAGE = ("Corrupt", "corrupt", "thrift", "Unexpected end", "magic bytes", "footer", "Not a Parquet")


# Credentials that this process has renewed, by the request that renews them. Of one attempt, or a few.
_renewed: dict[str, dict[str, str]] = {}
RENEWED_MAX = 100
SPARE_S = 60.0  # Credentials that end sooner are renewed before a file is opened.
RENEWAL_S = 30.0  # How long a dispatcher may take to answer.


def open_filesystem(options: Mapping[str, str]) -> FileSystem:
    """Open the bucket. Options that are missing are left to the AWS chain of this process."""
    options = current_access(options, datetime.now(UTC))  # noqa: TID251 - an executor knows no other clock.
    scheme, _, host = options.get("endpoint", "").rpartition("://")
    return arrow_fs.S3FileSystem(
        access_key=options.get("accesskey"),
        secret_key=options.get("secretkey"),
        session_token=options.get("sessiontoken"),
        region=options.get("region"),
        endpoint_override=host or None,
        scheme=scheme or "https",
    )


def current_access(options: Mapping[str, str], now: datetime) -> Mapping[str, str]:
    """Return the options with credentials that are valid now: those of an attempt are renewed at the dispatcher.

    Raises PermissionError if they have ended and cannot be renewed.
    """
    request = options.get("renewaltoken")
    if request is None:
        return options
    options = {**options, **_renewed.get(request, {})}
    end = datetime.fromisoformat(options["expires"])
    if (end - now).total_seconds() > SPARE_S:
        return options
    try:
        answer = _request_credentials(json.loads(request))
    except OSError as error:
        if end > now:
            return options
        url = json.loads(request)["url"]
        raise PermissionError(
            f"qo: the credentials of the attempt ended at {end:%Y-%m-%d %H:%M:%S} UTC, and this process cannot "
            f"renew them at {url}: {error}"
        ) from None
    names = {
        "accesskey": "access_key_id",
        "secretkey": "secret_access_key",
        "sessiontoken": "session_token",
        "expires": "expiration",
    }
    if len(_renewed) >= RENEWED_MAX:
        _renewed.pop(next(iter(_renewed)), None)
    _renewed[request] = {option: str(answer[name]) for option, name in names.items()}
    return {**options, **_renewed[request]}


def _request_credentials(renewal: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask the dispatcher for new credentials of the attempt. Raises OSError."""
    headers = {"Content-Type": "application/json", "X-Qo-Task-Capability": renewal["capability"]}
    body = json.dumps(renewal["fence"]).encode()
    request = urllib.request.Request(renewal["url"], body, headers)
    with urllib.request.urlopen(request, timeout=RENEWAL_S) as response:
        return json.loads(response.read())


class BadFile(Exception):
    """A file that is missing or corrupt. ``qo.spark.io.files.find_file_problem`` parses this text."""

    def __init__(self, path: str, kind: str, cause: object) -> None:
        super().__init__(f"qo: the file s3://{path} is {kind}: {' '.join(str(cause).split())}")


class ParquetSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        raise ValueError(f"{NAME} has no schema of its own: give it one with .schema(...)")

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(schema, _lower_keys(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Writer(_lower_keys(self.options))


def _lower_keys(options: Any) -> dict[str, str]:
    return {str(key).lower(): str(value) for key, value in options.items()}


@dataclass
class _Group(InputPartition):
    paths: Sequence[str]

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(None)
        self.paths = paths


class _Reader(DataSourceReader):
    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        paths = json.loads(self._options["files"])
        size = -(-len(paths) // GROUPS_MAX)
        return [_Group(paths[at : at + size]) for at in range(0, len(paths), size)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Group) or hasattr(partition, "paths")
        target = to_arrow_schema(self._schema, timezone="UTC")
        filesystem = open_filesystem(self._options)
        for path in getattr(partition, "paths", ()):
            yield from _rows(filesystem, path, self._options["kind"], target)


def _rows(filesystem: FileSystem, path: str, kind: str, target: Schema) -> Iterator[Batch]:
    """Yield the rows of one file, with the columns of the target. Raises BadFile, and OSError for failed access."""
    try:
        for batch in _batches(filesystem, path, kind, target):
            if batch.num_rows:
                yield _conform(batch, target)
    except FileNotFoundError as error:
        raise BadFile(path, "missing", error) from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise BadFile(path, "corrupt", error) from None
    except OSError as error:
        if any(word in str(error) for word in _DAMAGE):
            raise BadFile(path, "corrupt", error) from None
        raise


def _batches(filesystem: FileSystem, path: str, kind: str, target: Schema) -> Iterator[Batch]:
    with filesystem.open_input_file(path) as file:
        if kind == "parquet":
            parquet = pq.ParquetFile(file)
            names = {name.lower() for name in target.names}
            present = [name for name in parquet.schema_arrow.names if name.lower() in names]
            yield from parquet.iter_batches(batch_size=BATCH_ROWS, columns=present)
        elif file.size() > 0:
            yield from parse_text(file, kind, target).to_batches(max_chunksize=BATCH_ROWS)


def parse_text(file: Any, kind: str, target: Schema | None) -> Table:
    """Return a text file as a table; without a schema, its types are inferred."""
    if kind == "json":
        if target is None:
            return arrow_json.read_json(file)
        options = arrow_json.ParseOptions(explicit_schema=target, unexpected_field_behavior="ignore")
        return arrow_json.read_json(file, parse_options=options)
    if target is None:
        return arrow_csv.read_csv(file)
    types = {each.name: each.type for each in target}
    options = arrow_csv.ConvertOptions(
        column_types=types, include_columns=list(types), include_missing_columns=True, strings_can_be_null=True
    )
    return arrow_csv.read_csv(file, convert_options=options)


def _conform(batch: Batch, target: Schema) -> Batch:
    """Return the columns of the schema, in its order and types; null where the file has none."""
    places = {name.lower(): at for at, name in enumerate(batch.schema.names)}
    columns: list[Any] = []
    for each in target:
        at = places.get(each.name.lower())  # As Spark compares names.
        column = pa.nulls(batch.num_rows, each.type) if at is None else batch.column(at)
        columns.append(column if column.type == each.type else column.cast(each.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, filesystem: FileSystem, path: str, schema: Schema) -> None:
        self._schema = schema
        self._footers: list[Any] = []
        self._stream = filesystem.open_output_stream(path)
        self._writer = pq.ParquetWriter(self._stream, schema, metadata_collector=self._footers)

    def write(self, batch: Batch) -> None:
        self._writer.write_batch(batch.cast(self._schema))

    def close(self) -> dict[str, Any]:
        """Return size and description of the file."""
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        return {"size": size, "stats": _describe(self._footers[0]) if self._footers else None}

    def abandon(self) -> None:
        with suppress(Exception):
            self._stream.close()


@dataclass
class _NewFiles(WriterCommitMessage):
    files: list[dict[str, Any]]  # The name, size and description of each.


class _Writer(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._directory = options["directory"]
        self._field_ids: dict[str, int] = json.loads(options.get("fieldids", "{}"))
        self._by = options.get("by")  # A column: rows with other values of it go to files of their own.

    def write(self, iterator: Iterator[Batch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        # With the attempt in its name: one that was abandoned may still be writing.
        name = f"part-{context.partitionId():05d}-{context.taskAttemptId()}.parquet"
        filesystem = open_filesystem(self._options)
        open_files: dict[str, _OpenFile] = {}
        try:
            for batch in iterator:
                for directory, rows in self._split(batch):
                    path = f"{directory}{name}"
                    if path not in open_files:
                        schema = _with_field_ids(rows.schema, self._field_ids)
                        open_files[path] = _OpenFile(filesystem, f"{self._directory}/{path}", schema)
                    open_files[path].write(rows)
            return _NewFiles([{"name": path, **each.close()} for path, each in open_files.items()])
        except BaseException:
            for each in open_files.values():
                each.abandon()
            raise

    def _split(self, batch: Batch) -> Iterator[tuple[str, Batch]]:
        """Yield the rows of each directory, without the column that names it."""
        if not batch.num_rows:
            return
        if self._by is None:
            yield "", batch
            return
        at = batch.schema.get_field_index(self._by)
        values = batch.column(at)
        others = [number for number in range(batch.num_columns) if number != at]
        for value in compute.unique(values).to_pylist():
            yield f"{self._by}={value}/", batch.filter(compute.equal(values, value)).select(others)

    def commit(self, messages: Any) -> None:
        """Write the list of files as one object, so that nobody has to list the directory."""
        files = [file for each in messages if each is not None for file in each.files]
        with open_filesystem(self._options).open_output_stream(f"{self._directory}/{FILE_LIST}") as file:
            file.write(json.dumps(sorted(files, key=lambda each: str(each["name"]))).encode())

    def abort(self, messages: Any) -> None:
        filesystem = open_filesystem(self._options)
        for file in (file for each in messages if each is not None for file in each.files):
            # Credentials of an attempt delete nothing: qo collect does, once nobody needs the files.
            with suppress(OSError):
                filesystem.delete_file(f"{self._directory}/{file['name']}")


def _with_field_ids(schema: Schema, ids: Mapping[str, int]) -> Schema:
    if set(ids) != set(schema.names):
        return schema
    fields = [each.with_metadata({b"PARQUET:field_id": str(ids[each.name]).encode()}) for each in schema]
    return pa.schema(fields)


def _describe(footer: Any) -> dict[str, Any]:
    """Return rows and columns of a file as JSON can hold them: size, values, nulls, least and greatest value."""
    columns: dict[str, list[Any]] = {}
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    for at in range(footer.num_columns):
        chunks = [each.column(at) for each in groups]
        stats = [each.statistics for each in chunks]
        nulls: list[Any] = [
            each.null_count if each is not None and each.has_null_count else None for each in stats
        ]
        all_count = None not in nulls
        full = [
            each
            for chunk, each in zip(chunks, stats, strict=True)
            if not all_count or each.null_count < chunk.num_values
        ]
        has_bounds = bool(full) and all(each is not None and each.has_min_max for each in full)
        columns[footer.schema.column(at).path] = [
            sum(each.total_compressed_size for each in chunks),
            sum(each.num_values for each in chunks),
            sum(nulls) if all_count else None,
            _plain_value(min(each.min for each in full)) if has_bounds else None,
            _plain_value(max(each.max for each in full)) if has_bounds else None,
        ]
    return {"rows": footer.num_rows, "columns": columns}


def _plain_value(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_CHARS_MAX else None
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None  # JSON has no others.
    return str(value) if isinstance(value, date | Decimal) else None
