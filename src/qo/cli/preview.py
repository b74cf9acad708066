"""The first rows of a dataset, read from its files without Spark."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qo.errors import ConfigError, NotFound, UsageError

if TYPE_CHECKING:
    from qo.config.settings import Settings
    from qo.dispatcher.contract.reading import ReadingAnswer
    from qo.dispatcher.user_client import UserClient

PAGE = 500

Rows = tuple[list[str], list[list[Any]]]  # The names of the columns, and the rows.


async def first_rows(
    client: UserClient, settings: Settings, path: str, most: int, partition: str | None, revision: int | None
) -> Rows:
    """Up to so many, of the first files that have some. Raises NotFound where there are none at all."""
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
    from qo.dispatcher.contract.reading import ReadingAnswer

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
    match kind:
        case "parquet":
            return await asyncio.to_thread(_parquet, source, most)
        case "jsonl" | "ndjson" | "json":
            return _json(_lines(source, most))
        case "csv":
            names, *rows = [*csv.reader(_lines(source, most + 1))] or [[]]
            return names, [list(row) for row in rows]
        case _:
            return ["line"], [[line] for line in _lines(source, most)]


async def _opened(uri: str, settings: Settings) -> Path | bytes:
    """The file on this machine, or the body of the object."""
    if uri.startswith("file:"):
        path = Path(uri.removeprefix("file:").removeprefix("//"))
        if not await asyncio.to_thread(path.is_file):
            raise NotFound(f"{path} is not there: it was collected, or lies on another machine")
        return path
    if not uri.startswith("s3://"):
        raise UsageError(f"{uri} cannot be read here: it begins with neither file: nor s3://")
    from dataclasses import replace

    from qo.store.opening import open_store

    bucket, _, key = uri.removeprefix("s3://").partition("/")
    store = (await open_store(replace(settings, store=f"s3://{bucket}"))).store
    try:
        stored = await store.get(key)
    finally:
        await store.close()
    if stored is None:
        raise NotFound(f"there is no object {uri}: it was collected")
    return stored.body


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
    file: Any = pq.ParquetFile(source if isinstance(source, Path) else pa.BufferReader(source))
    with file:
        names: list[str] = list(file.schema_arrow.names)
        rows: list[list[Any]] = []
        for batch in file.iter_batches(batch_size=most):
            rows += [list(row.values()) for row in batch.to_pylist()]
            if len(rows) >= most:
                break
    return names, rows[:most]


def _json(lines: Sequence[str]) -> Rows:
    values = [json.loads(line) for line in lines if line.strip()]
    if not all(isinstance(each, dict) for each in values):
        return ["value"], [[each] for each in values]
    names = list(dict.fromkeys(name for each in values for name in each))
    return names, [[each.get(name) for name in names] for each in values]


def _lines(source: Path | bytes, most: int) -> list[str]:
    if isinstance(source, bytes):
        return source.decode("utf-8", "replace").splitlines()[:most]
    with source.open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in islice(file, most)]
