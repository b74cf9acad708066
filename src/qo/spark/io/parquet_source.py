"""A data source for Spark that reads and writes files of a bucket with pyarrow, where there are no jars of s3a.

    spark.read.format("qo_parquet").schema(schema).options(files=..., **access).load()

The files are named by whoever reads; which of them were written, ``_files.json`` says: tasks that failed and were
done again leave files behind that are in no list. Columns that the schema does not have are not read.

This module travels to the executors by value, so it depends on nothing of qo: they need pyarrow, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
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

# They carry no types of their own.
pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")
arrow_csv: Any = import_module("pyarrow.csv")
arrow_json: Any = import_module("pyarrow.json")
arrow_fs: Any = import_module("pyarrow.fs")
to_arrow_schema: Any = import_module("pyspark.sql.pandas.types").to_arrow_schema

Table = Batch = Shape = Way = Any

NAME = "qo_parquet"
LIST = "_files.json"
GROUPS_MAX = 128  # So many Spark tasks read at most.
BATCH_ROWS = 32_768
_DAMAGE = ("Corrupt", "corrupt", "thrift", "Unexpected end", "magic bytes", "footer", "Not a Parquet")


def filesystem(options: Mapping[str, str]) -> Way:
    """The way to the bucket. What is not given is left to the AWS chain of whoever asks."""
    scheme, _, host = options.get("endpoint", "").rpartition("://")
    return arrow_fs.S3FileSystem(
        access_key=options.get("accesskey"),
        secret_key=options.get("secretkey"),
        session_token=options.get("sessiontoken"),
        region=options.get("region"),
        endpoint_override=host or None,
        scheme=scheme or "https",
    )


class BadFile(Exception):
    """A file that is not there, or is not what it should be. ``qo.spark.io.files.trouble`` knows these words."""

    def __init__(self, path: str, wrong: str, cause: object) -> None:
        super().__init__(f"qo: the file s3://{path} is {wrong}: {' '.join(str(cause).split())}")


class ParquetSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        raise ValueError(f"{NAME} has no schema of its own: give it one with .schema(...)")

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(schema, _plain(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Writer(_plain(self.options))


def _plain(options: Any) -> dict[str, str]:
    return {str(key).lower(): str(value) for key, value in options.items()}


# Reading


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
        way = filesystem(self._options)
        for path in getattr(partition, "paths", ()):
            yield from _rows(way, path, self._options["kind"], target)


def _rows(way: Way, path: str, kind: str, target: Shape) -> Iterator[Batch]:
    """Of one file, as Spark wants them. Raises BadFile; an OSError is about the way there."""
    try:
        for batch in _batches(way, path, kind, target):
            if batch.num_rows:
                yield _fitted(batch, target)
    except FileNotFoundError as error:
        raise BadFile(path, "missing", error) from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise BadFile(path, "corrupt", error) from None
    except OSError as error:
        if any(word in str(error) for word in _DAMAGE):
            raise BadFile(path, "corrupt", error) from None
        raise


def _batches(way: Way, path: str, kind: str, target: Shape) -> Iterator[Batch]:
    with way.open_input_file(path) as file:
        if kind == "parquet":
            opened = pq.ParquetFile(file)
            wanted = {name.lower() for name in target.names}
            present = [name for name in opened.schema_arrow.names if name.lower() in wanted]
            yield from opened.iter_batches(batch_size=BATCH_ROWS, columns=present)
        elif file.size() > 0:
            yield from parsed(file, kind, target).to_batches(max_chunksize=BATCH_ROWS)


def parsed(file: Any, kind: str, target: Shape | None) -> Table:
    """A text file as a table; without a schema, with the types that its values look like."""
    if kind == "json":
        if target is None:
            return arrow_json.read_json(file)
        given = arrow_json.ParseOptions(explicit_schema=target, unexpected_field_behavior="ignore")
        return arrow_json.read_json(file, parse_options=given)
    if target is None:
        return arrow_csv.read_csv(file)
    types = {each.name: each.type for each in target}
    wanted = arrow_csv.ConvertOptions(
        column_types=types, include_columns=list(types), include_missing_columns=True, strings_can_be_null=True
    )
    return arrow_csv.read_csv(file, convert_options=wanted)


def _fitted(batch: Batch, target: Shape) -> Batch:
    """The columns of the schema, in its order and types; null where the file has none."""
    places = {name.lower(): at for at, name in enumerate(batch.schema.names)}
    columns: list[Any] = []
    for each in target:
        at = places.get(each.name.lower())  # As Spark compares names.
        column = pa.nulls(batch.num_rows, each.type) if at is None else batch.column(at)
        columns.append(column if column.type == each.type else column.cast(each.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


# Writing


@dataclass
class _Part(WriterCommitMessage):
    name: str | None  # None: there were no rows.
    size: int


class _Writer(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._directory = options["directory"]

    def write(self, iterator: Iterator[Batch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        # The attempt is in the name: one that was given up may still be writing.
        name = f"part-{context.partitionId():05d}-{context.taskAttemptId()}.parquet"
        way = filesystem(self._options)
        filled = (batch for batch in iterator if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return _Part(None, 0)
        with way.open_output_stream(f"{self._directory}/{name}") as file:
            with pq.ParquetWriter(file, first.schema) as writer:
                writer.write_batch(first)
                for batch in filled:
                    writer.write_batch(batch)
            size = file.tell()
        return _Part(name, size)

    def commit(self, messages: Any) -> None:
        """What was written, in one object: nobody looks for files."""
        made = [{"name": each.name, "size": each.size} for each in messages if each is not None and each.name]
        with filesystem(self._options).open_output_stream(f"{self._directory}/{LIST}") as file:
            file.write(json.dumps(sorted(made, key=lambda each: str(each["name"]))).encode())

    def abort(self, messages: Any) -> None:
        way = filesystem(self._options)
        for each in messages:
            if each is not None and each.name:
                way.delete_file(f"{self._directory}/{each.name}")
