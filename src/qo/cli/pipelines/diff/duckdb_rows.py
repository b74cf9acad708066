"""Compares rows in this process, with DuckDB: within bounded memory, however many there are."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qo.config.location import local_path
from qo.config.settings import Settings
from qo.core.pipeline.row_diff import AFTER, BEFORE, DUCKDB
from qo.errors import ConfigError, CorruptRecord, NotFound, UsageError

MEMORY = "1GB"  # What does not fit is written to the temporary directory.
_READERS = {
    "parquet": "read_parquet({files}, union_by_name = true, hive_partitioning = false)",
    "json": "read_json({files}, format = 'newline_delimited', union_by_name = true, hive_partitioning = false)",
    "csv": "read_csv({files}, header = true, all_varchar = true, union_by_name = true, hive_partitioning = false)",
}
_FORMATS = {"parquet": "parquet", "jsonl": "json", "ndjson": "json", "json": "json", "csv": "csv"}


class DuckdbRows:
    def __init__(self, connection: Any) -> None:
        self.dialect = DUCKDB
        self._connection = connection

    def types(self, relation: str) -> Mapping[str, str]:
        return {name: type_ for name, type_, *_ in self.rows(f"DESCRIBE {relation}")}

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        import duckdb  # pyright: ignore[reportMissingTypeStubs]

        try:
            return self._connection.execute(query).fetchall()
        except duckdb.IOException as error:
            raise NotFound(f"a file cannot be read: {_first_line(error)}") from error
        except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
            raise CorruptRecord(f"a file cannot be read as its name says: {_first_line(error)}") from error


@contextmanager
def open_duckdb(settings: Settings, before: Sequence[str], after: Sequence[str]) -> Generator[DuckdbRows]:
    """Open DuckDB over the files of two versions. Files in a bucket are first copied to this machine.

    Raises ConfigError without DuckDB, NotFound for a missing file, and UsageError for files that it cannot read.
    """
    try:
        import duckdb  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise ConfigError(
            "comparing rows needs duckdb: install qo with its extra, from a checkout, pip install '.[diff]'; or "
            "compare with --spark"
        ) from None
    with tempfile.TemporaryDirectory(prefix="qo-diff-") as scratch:
        config = {"memory_limit": MEMORY, "temp_directory": f"{scratch}/spill", "threads": os.cpu_count() or 1}
        connection: Any = duckdb.connect(":memory:", config={**config, "preserve_insertion_order": False})
        try:
            engine = DuckdbRows(connection)
            engine.rows("SET autoinstall_known_extensions = false")
            for relation, uris in ((BEFORE, before), (AFTER, after)):
                if uris:
                    paths = asyncio.run(_bring_here(uris, settings, Path(scratch, relation)))
                    engine.rows(f"CREATE VIEW {relation} AS SELECT * FROM {_reader(uris, paths)}")
            for empty, full in ((BEFORE, AFTER), (AFTER, BEFORE)):
                if not (before if empty == BEFORE else after):
                    engine.rows(f"CREATE VIEW {empty} AS SELECT * FROM {full} WHERE false")
            yield engine
        finally:
            connection.close()


def _reader(uris: Sequence[str], paths: Sequence[Path]) -> str:
    kinds = {_FORMATS.get(uri.removesuffix(".gz").rpartition(".")[2].lower()) for uri in uris}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        raise UsageError(
            "rows of Parquet, JSON lines or CSV files can be compared, and all files are of one format"
        )
    files = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    return _READERS[kind].format(files=f"[{files}]")


async def _bring_here(uris: Sequence[str], settings: Settings, directory: Path) -> list[Path]:
    """Return the paths of files on this machine, after copying those of buckets below the directory."""
    from qo.store.directory import Directory, open_directory

    paths: list[Path] = []
    buckets: dict[str, Directory] = {}
    try:
        for at, uri in enumerate(uris):
            if uri.startswith("file:"):
                path = local_path(uri)
                if not await asyncio.to_thread(path.is_file):
                    raise _missing(uri, "is on another machine")
                paths.append(path)
                continue
            if not uri.startswith("s3://"):
                raise UsageError(f"{uri} cannot be compared: it is neither on this machine nor in a bucket")
            name, _, key = uri.removeprefix("s3://").partition("/")
            if name not in buckets:
                buckets[name] = await open_directory(f"s3://{name}", settings)
            paths.append(directory / f"{at}-{key.rpartition('/')[2]}")
            try:
                source = await buckets[name].open(key)
            except NotFound:
                raise _missing(uri, "deleted by somebody else") from None
            await asyncio.to_thread(_copy, source, paths[-1])
    finally:
        for each in buckets.values():
            await each.close()
    return paths


def _missing(uri: str, otherwise: str) -> NotFound:
    return NotFound(f"{uri} is missing: it was collected, or {otherwise}")


def _copy(source: Any, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with source, path.open("wb") as target:
        shutil.copyfileobj(source, target)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
