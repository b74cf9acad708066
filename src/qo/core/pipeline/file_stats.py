"""What a worker measures of each file that it writes, so that tables can be described without opening files.

Bounds are encoded as single values of Apache Iceberg: little-endian numbers, UTF-8 texts, days, microseconds. Bounds of
long texts are shortened, an upper one so that it is still above every value.
"""

from __future__ import annotations

import msgspec

from qo.core.struct_preload import preload


class ColumnStats(msgspec.Struct, frozen=True, array_like=True):
    """One column of one file."""

    size: int  # Compressed bytes.
    values: int  # Nulls included.
    nulls: int
    lower: bytes | None = None  # None: unknown, or there are only nulls.
    upper: bytes | None = None


class FileStats(msgspec.Struct, frozen=True, array_like=True):
    """One file; columns by name."""

    rows: int
    bytes: int
    columns: dict[str, ColumnStats] = {}


preload(FileStats)
