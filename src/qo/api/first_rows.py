"""Read the first rows of a dataset from its files, without Spark."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from qo.config.location import local_path
from qo.errors import ConfigError, CorruptRecord, NotFound, UsageError

if TYPE_CHECKING:
    from qo.api.contract.reading import ReadingAnswer
    from qo.config.settings import Settings

PAGE = 500


class Reading(Protocol):
    """Whatever asks the dispatcher."""

    async def get(self, path: str, **params: Any) -> Any: ...


Rows = tuple[list[str], list[list[Any]]]  # The names of the columns, and the rows.


async def first_rows(
    client: Reading, settings: Settings, path: str, most: int, partition: str | None, revision: int | None
) -> Rows:
    """Return up to ``most`` rows of the first files. Raises NotFound for an unknown partition or a missing file,
    CorruptRecord if a file cannot be read in the format that its name says."""
    columns: list[str] = []
    rows: list[list[Any]] = []
    partition_found = False
    async for page in _pages(client, path, revision):
        columns = columns or [each.name for each in page.columns or ()]
        for piece in page.pieces:
            if partition is not None and piece.partition_key != partition:
                continue
            partition_found = True
            for name in piece.files:
                uri = name if ":/" in name else f"{(piece.location or '').rstrip('/')}/{name}"
                names, file_rows = await _read(uri, settings, most - len(rows))
                columns = columns or names
                rows += [_reorder(columns, names, row) for row in file_rows]
                if len(rows) >= most:
                    return columns, rows
    if partition is not None and not partition_found:
        raise NotFound(f"there is no partition {partition!r}: see qo dataset partitions")
    return columns, rows


async def every_page(
    client: Reading, path: str, revision: int | None, generation: str | None = None
) -> list[ReadingAnswer]:
    """Return all pages of committed pieces, as of one revision."""
    return [page async for page in _pages(client, path, revision, generation)]


async def _pages(
    client: Reading, path: str, revision: int | None, generation: str | None = None
) -> AsyncIterator[ReadingAnswer]:
    from qo.api.contract.reading import ReadingAnswer

    query: dict[str, Any] = {"limit": PAGE, "revision": revision, "generation_id": generation}
    while True:
        page = ReadingAnswer.model_validate(await client.get(path, **query))
        yield page
        if page.after is None:
            return
        query |= {"generation_id": page.generation_id, "revision": page.revision, "after": page.after}


def _reorder(columns: Sequence[str], names: Sequence[str], row: Sequence[Any]) -> list[Any]:
    """Return the row in the order of the columns; one that the file lacks is None."""
    at = dict(zip(names, row, strict=True))
    return [at.get(name) for name in columns]


async def _read(uri: str, settings: Settings, most: int) -> Rows:
    source = await _locate(uri, settings)
    kind = uri.rpartition(".")[2].lower()
    try:
        return await asyncio.to_thread(_rows, kind, source, most)
    except (ValueError, csv.Error) as error:
        raise CorruptRecord(f"{uri} cannot be read as {kind}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _rows(kind: str, source: Path | bytes, most: int) -> Rows:
    """Parse up to ``most`` rows. Raises ValueError or csv.Error if the content is not of the kind."""
    if kind == "parquet":
        return _parquet(source, most)
    with _text(source) as file:
        match kind:
            case "jsonl" | "ndjson" | "json":
                return _json(islice(file, most))
            case "csv":
                return _csv(file, most)
            case _:
                return ["line"], [[line.rstrip("\r\n")] for line in islice(file, most)]


async def _locate(uri: str, settings: Settings) -> Path | bytes:
    """Return the path of a local file, or the body of an object."""
    if uri.startswith("file:"):
        path = local_path(uri)
        if not await asyncio.to_thread(path.is_file):
            raise NotFound(f"{path} is missing: it was collected, or is on another machine")
        return path
    if not uri.startswith("s3://"):
        raise UsageError(f"{uri} cannot be read here: only file: and s3:// are supported")
    from qo.store.directory import open_directory

    name, _, key = uri.removeprefix("s3://").partition("/")
    bucket = await open_directory(f"s3://{name}", settings)
    try:
        return await bucket.read(key)
    except NotFound as error:
        raise NotFound(f"{error}: it was collected") from None
    finally:
        await bucket.close()


def _parquet(source: Path | bytes, most: int) -> Rows:
    try:
        import pyarrow as arrow  # pyright: ignore[reportMissingTypeStubs]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise ConfigError(
            "reading Parquet files needs pyarrow: install qo with its extra, from a checkout, pip install '.[spark]'"
        ) from None
    pa: Any = arrow
    pq: Any = parquet
    names: list[str] = []
    rows: list[list[Any]] = []
    try:
        with pq.ParquetFile(source if isinstance(source, Path) else pa.BufferReader(source)) as file:
            names += file.schema_arrow.names
            for batch in file.iter_batches(batch_size=most):
                rows += [list(row.values()) for row in batch.to_pylist()]
                if len(rows) >= most:
                    break
    except OSError as error:
        if error.errno is not None:
            raise  # An error of the system; pyarrow's errors about the content have no errno.
        raise ValueError(str(error)) from error
    return names, rows[:most]


def _csv(file: TextIO, most: int) -> Rows:
    lines = list(islice((row for row in csv.reader(file) if row), most + 1))
    header, rows = (lines[0], lines[1:]) if lines else ([], [])
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} fields, and the header {len(header)}")
    return header, [[*row] for row in rows]


def _json(lines: Iterable[str]) -> Rows:
    values = [_value(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not all(isinstance(each, dict) for each in values):
        return ["value"], [[each] for each in values]
    names = list(dict.fromkeys(name for each in values for name in each))
    return names, [[each.get(name) for name in names] for each in values]


def _value(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not a JSON value: {error}") from error


def _text(source: Path | bytes) -> TextIO:
    binary = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
    return io.TextIOWrapper(binary, encoding="utf-8", errors="replace", newline="")
