"""The first rows of a dataset, read from its files without Spark."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from qo.config.location import local_path
from qo.errors import ConfigError, CorruptRecord, NotFound, UsageError

if TYPE_CHECKING:
    from qo.api.contract.reading import ReadingAnswer
    from qo.api.public_client import UserClient
    from qo.config.settings import Settings

PAGE = 500

Rows = tuple[list[str], list[list[Any]]]  # The names of the columns, and the rows.


async def first_rows(
    client: UserClient, settings: Settings, path: str, most: int, partition: str | None, revision: int | None
) -> Rows:
    """Up to so many, of the first files that have some. Raises NotFound where there are none at all, CorruptRecord if
    one is not what its name says."""
    columns: list[str] = []
    found: list[list[Any]] = []
    seen = False
    async for page in _pages(client, path, revision):
        columns = columns or [each.name for each in page.columns or ()]
        for piece in page.pieces:
            if partition is not None and piece.partition_key != partition:
                continue
            seen = True
            for name in piece.files:
                uri = name if ":/" in name else f"{(piece.location or '').rstrip('/')}/{name}"
                names, rows = await _read(uri, settings, most - len(found))
                columns = columns or names
                found += [_arranged(columns, names, row) for row in rows]
                if len(found) >= most:
                    return columns, found
    if partition is not None and not seen:
        raise NotFound(f"there is no partition {partition!r}: see qo dataset partitions")
    return columns, found


async def every_page(client: UserClient, path: str, revision: int | None) -> list[ReadingAnswer]:
    """All committed pieces, of one state."""
    return [page async for page in _pages(client, path, revision)]


async def _pages(client: UserClient, path: str, revision: int | None) -> AsyncIterator[ReadingAnswer]:
    from qo.api.contract.reading import ReadingAnswer

    asked: dict[str, Any] = {"limit": PAGE, "revision": revision}
    while True:
        page = ReadingAnswer.model_validate(await client.get(path, **asked))
        yield page
        if page.after is None:
            return
        asked |= {"generation_id": page.generation_id, "revision": page.revision, "after": page.after}


def _arranged(columns: Sequence[str], names: Sequence[str], row: Sequence[Any]) -> list[Any]:
    """In the order of the columns; a file may be older than some of them."""
    at = dict(zip(names, row, strict=True))
    return [at.get(name) for name in columns]


async def _read(uri: str, settings: Settings, most: int) -> Rows:
    source = await _opened(uri, settings)
    kind = uri.rpartition(".")[2].lower()
    try:
        return await asyncio.to_thread(_rows, kind, source, most)
    except (ValueError, csv.Error) as error:
        raise CorruptRecord(f"{uri} cannot be read as {kind}: {_first(error)}") from error


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _rows(kind: str, source: Path | bytes, most: int) -> Rows:
    """Raises ValueError or csv.Error for what is not of the kind."""
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


async def _opened(uri: str, settings: Settings) -> Path | bytes:
    """The file on this machine, or the body of the object."""
    if uri.startswith("file:"):
        path = local_path(uri)
        if not await asyncio.to_thread(path.is_file):
            raise NotFound(f"{path} is not there: it was collected, or lies on another machine")
        return path
    if not uri.startswith("s3://"):
        raise UsageError(f"{uri} cannot be read here: it begins with neither file: nor s3://")
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
            "to read Parquet files needs pyarrow: install qo with its extra, from a checkout, pip install '.[spark]'"
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
            raise  # The system's; those without a number are of what is in the file.
        raise ValueError(str(error)) from error
    return names, rows[:most]


def _csv(file: TextIO, most: int) -> Rows:
    found = list(islice((row for row in csv.reader(file) if row), most + 1))
    header, rows = (found[0], found[1:]) if found else ([], [])
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
    opened = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
    return io.TextIOWrapper(opened, encoding="utf-8", errors="replace", newline="")
