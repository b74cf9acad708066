"""What the footer of a Parquet file says about it: rows, and the sizes, nulls and bounds of its columns.

Bounds become those of Iceberg (``qo.core.iceberg``); floating-point numbers stay numbers. A bound that any row group
lacks is unknown for the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from importlib import import_module
from io import BytesIO
from math import isnan
from pathlib import Path
from typing import Any

from qo.api.contract.task import ColumnBody
from qo.core.iceberg.iceberg_types import FLOATING, encode_bound, is_atomic
from qo.core.pipeline.file_stats import ColumnStats, FileStats

SUFFIX = ".parquet"
FileMetadata = Any  # pyarrow has no types.


def named_columns(columns: Sequence[ColumnBody] | Mapping[str, Any] | None) -> list[ColumnBody] | None:
    """Return columns that may be given as their types by name."""
    if isinstance(columns, Mapping):
        return [ColumnBody(name=name, type=type_) for name, type_ in columns.items()]
    return None if columns is None else list(columns)


def column_types(columns: Sequence[ColumnBody] | None) -> dict[str, Any]:
    """Return the types of columns by name in lower case."""
    return {each.name.lower(): each.type for each in columns or ()}


def read_footer(source: Path | bytes) -> FileMetadata | None:
    """Return the footer of a local file or of its bytes; None if it is damaged, or nothing can read it here."""
    try:
        parquet: Any = import_module("pyarrow.parquet")  # Loaded only when it is needed.
        return parquet.read_metadata(BytesIO(source) if isinstance(source, bytes) else source)
    except (ImportError, OSError, ValueError):
        return None


def footer_stats(metadata: FileMetadata, size: int, types: Mapping[str, Any]) -> FileStats:
    """Return the statistics of a file of ``size`` bytes. ``types``: of columns; bounds of others are not known."""
    columns: dict[str, ColumnStats] = {}
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    for at in range(metadata.num_columns):
        chunks = [group.column(at) for group in groups]
        name = metadata.schema.column(at).path
        type_ = types.get(name.lower())
        if type_ is not None and is_atomic(type_) and chunks:
            columns[name] = _column_stats(chunks, type_)
    return FileStats(metadata.num_rows, size, columns)


def _column_stats(chunks: Sequence[Any], type_: Any) -> ColumnStats:
    size = sum(each.total_compressed_size for each in chunks)
    values = sum(each.num_values for each in chunks)
    stats = [each.statistics for each in chunks]
    nulls = sum(each.null_count for each in stats if each is not None and each.has_null_count)
    lower, upper = _bounds(chunks, stats)
    return ColumnStats(
        size=size,
        values=values,
        nulls=nulls if all(each is not None and each.has_null_count for each in stats) else None,
        lower=None if lower is None else encode_bound(lower, type_, upper=False),
        upper=None if upper is None else encode_bound(upper, type_, upper=True),
        least=_number(lower, type_),
        greatest=_number(upper, type_),
    )


def _number(bound: Any, type_: str) -> float | None:
    """Return the bound of a column of floating-point numbers; None for other columns, and for NaN."""
    return bound if type_ in FLOATING and isinstance(bound, float) and not isnan(bound) else None


def _bounds(chunks: Sequence[Any], stats: Sequence[Any]) -> tuple[Any, Any]:
    """Return the least and the greatest value; None where a row group does not say."""
    # A row group of nulls has no bounds, and needs none.
    with_values: list[Any] = [
        each
        for chunk, each in zip(chunks, stats, strict=True)
        if each is None or not each.has_null_count or each.null_count < chunk.num_values
    ]
    if not with_values or any(each is None or not each.has_min_max for each in with_values):
        return None, None
    try:
        return min(each.min for each in with_values), max(each.max for each in with_values)
    except (TypeError, ValueError, OverflowError):
        return None, None  # A value that Python does not have, such as a year above 9999.


def described_stats(description: Mapping[str, Any], size: int, types: Mapping[str, Any]) -> FileStats | None:
    """Return the statistics of a file that a process without qo has described as JSON; None for what is not that."""
    try:
        columns = {
            name: ColumnStats(
                size=compressed,
                values=values,
                nulls=nulls,
                lower=_described_bound(lower, type_, upper=False),
                upper=_described_bound(upper, type_, upper=True),
                least=_number(lower, type_),
                greatest=_number(upper, type_),
            )
            for name, (compressed, values, nulls, lower, upper) in description["columns"].items()
            if (type_ := types.get(name.lower())) is not None and is_atomic(type_)
        }
        return FileStats(description["rows"], size, columns)
    except (KeyError, TypeError, ValueError):
        return None


def _described_bound(value: Any, type_: str, *, upper: bool) -> bytes | None:
    if value is None:
        return None
    parsed = _PARSERS.get(type_.partition("(")[0], lambda same: same)(value)
    return encode_bound(parsed, type_, upper=upper)


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp_ntz": datetime.fromisoformat,
    "decimal": Decimal,
}
