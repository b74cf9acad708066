"""The rows of committed pieces as one file for others: Parquet, CSV or JSON.

The same pieces make the same bytes, so a loader that repeats a change recognises what it has written.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from qo.api.contract.task import Piece
from qo.core.words import plural
from qo.errors import UsageError
from qo.sink.arrow_columns import json_value
from qo.sink.piece_files import Files, batches, file_uris, open_file

FILE_BYTES_MAX = 2**30  # A file is made in memory.


class MadeFile(NamedTuple):
    body: bytes
    rows: int


class _Limited(io.BytesIO):
    def write(self, body: Any, /) -> int:
        if self.tell() + len(body) > FILE_BYTES_MAX:
            raise UsageError(
                f"a file for others would have more than {plural(FILE_BYTES_MAX, 'byte')}: write one for each "
                "partition, with {partition} in the name, or smaller partitions"
            )
        return super().write(body)


def make_file(format_: str, pieces: Sequence[Piece], files: Files) -> MadeFile:
    """Return a file with the rows of the pieces, in their order. A column that only some have is null in the others.

    Raises UsageError for columns that do not fit together or that the format has no form for, CorruptRecord.
    """
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

    uris = [uri for piece in pieces for uri in file_uris(piece)]
    schema = _common_schema(uris, files)
    buffer = _Limited()
    text, _, compression = format_.lstrip(".").partition(".")
    target: BinaryIO = buffer
    if compression:
        target = cast("BinaryIO", gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0))
    write = {"parquet": _write_parquet, "csv": _write_csv}.get(text, _write_json)
    try:
        rows = write(target, schema, _read_batches(uris, schema, files))
    except cast("Any", pa).ArrowException as error:
        raise UsageError(f"{uris[0]} cannot be written as {text}: {str(error).partition(chr(10))[0]}") from error
    if target is not buffer:
        target.close()
    return MadeFile(buffer.getvalue(), rows)


def _common_schema(uris: Sequence[str], files: Files) -> Any:
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

    arrow: Any = pa
    schemas: list[Any] = []
    for uri in uris:
        with open_file(uri, files) as file:
            schemas.append(file.schema_arrow.remove_metadata())
    try:
        return arrow.unify_schemas(schemas, promote_options="permissive")
    except arrow.ArrowException as error:
        raise UsageError(
            f"files of the dataset have columns of the same name with types that do not fit together: {error}. "
            "Write one file for each partition, with {partition} in the name, or let the job write what it wrote before"
        ) from error


def _read_batches(uris: Sequence[str], schema: Any, files: Files) -> Iterator[Any]:
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

    arrow: Any = pa
    for uri in uris:
        with open_file(uri, files) as file:
            for batch in batches(file):
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in batch.schema.names
                    else arrow.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield arrow.RecordBatch.from_arrays(columns, schema=schema)


def _write_parquet(target: BinaryIO, schema: Any, read: Iterator[Any]) -> int:
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

    rows = 0
    with cast("Any", pq).ParquetWriter(target, schema) as writer:
        for batch in read:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_csv(target: BinaryIO, schema: Any, read: Iterator[Any]) -> int:
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
    import pyarrow.csv as csv  # pyright: ignore[reportMissingTypeStubs]

    arrow: Any = pa
    shape = arrow.schema(
        [(field.name, arrow.string() if _needs_text(field.type) else field.type) for field in schema]
    )
    rows = 0
    with cast("Any", csv).CSVWriter(target, shape) as writer:
        for batch in read:
            columns = [
                _texts(column) if _needs_text(field.type) else column
                for field, column in zip(schema, batch.columns, strict=True)
            ]
            writer.write_batch(arrow.RecordBatch.from_arrays(columns, schema=shape))
            rows += batch.num_rows
    return rows


def _needs_text(type_: Any) -> bool:
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

    is_: Any = cast("Any", pa).types
    return is_.is_nested(type_) or is_.is_duration(type_) or "binary" in str(type_) or is_.is_dictionary(type_)


def _texts(column: Any) -> Any:
    """Return values that CSV has no form for as text: JSON for nested ones, base64 for bytes."""
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

    texts = [None if each is None else _text(each) for each in column.to_pylist()]
    return cast("Any", pa).array(texts, cast("Any", pa).string())


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict | list):
        return json.dumps(json_value(cast("Any", value)), ensure_ascii=False)
    return str(value)


def _write_json(target: BinaryIO, schema: Any, read: Iterator[Any]) -> int:
    rows = 0
    for batch in read:
        for row in batch.to_pylist():
            target.write(json.dumps(json_value(row), ensure_ascii=False).encode() + b"\n")
        rows += batch.num_rows
    return rows
