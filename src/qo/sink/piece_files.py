"""The rows of committed pieces, from their Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from qo.api.contract.task import Piece
from qo.config.location import local_path
from qo.errors import ConfigError, CorruptRecord, NotFound, UsageError

BATCH_ROWS = 10_000


class Files(Protocol):
    """Whole files by URI, as ``qo.store.blocking_files`` has them. Blocks."""

    def read(self, uri: str) -> bytes: ...


def file_uris(piece: Piece) -> list[str]:
    """Return the files of a piece. Raises UsageError for one that is not Parquet."""
    uris = [name if ":/" in name else f"{(piece.location or '').rstrip('/')}/{name}" for name in piece.files]
    for uri in uris:
        if not uri.lower().endswith(".parquet"):
            raise UsageError(
                f"{uri} is no Parquet file, and a sink loads no others: let the job write .parquet, or publish the "
                "output of a job that does"
            )
    return uris


def open_file(uri: str, files: Files) -> Any:
    """Open a Parquet file, a context. Raises CorruptRecord, also if it is gone, and ConfigError without pyarrow."""
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise ConfigError(
            "loading Parquet files needs pyarrow: install qo with its extra, from a checkout, pip install '.[sink]'"
        ) from None
    arrow: Any = pa
    parquet: Any = pq
    try:
        source: Any = local_path(uri) if uri.startswith("file:") else arrow.BufferReader(files.read(uri))
        return parquet.ParquetFile(source)
    except (NotFound, FileNotFoundError):
        # Not NotFound: that is how the dispatcher answers for a sink that has ended.
        raise CorruptRecord(f"{uri} is committed, and gone: remove the partition, or make it again") from None
    except arrow.ArrowException as error:
        raise CorruptRecord(f"{uri} cannot be read as Parquet: {str(error).partition(chr(10))[0]}") from error


def batches(file: Any) -> Iterator[Any]:
    yield from file.iter_batches(batch_size=BATCH_ROWS)
