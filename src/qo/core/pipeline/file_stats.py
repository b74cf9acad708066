"""What a worker measures of each file that it writes, so that tables can be described without opening files.

Bounds are encoded as single values of Apache Iceberg: little-endian numbers, UTF-8 texts, days, microseconds. Bounds of
long texts are shortened, an upper one so that it is still above every value. Floating-point numbers have no such
bounds, which would have to order NaN; their least and greatest number is measured for people.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Annotated

import msgspec

from qo.core.struct_preload import preload

PACKED_BYTES_MAX = 1 << 20  # As they travel and are stored.
UNPACKED_BYTES_MAX = 1 << 27
NUMBER_MAX = 2**62

_Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class ColumnStats(msgspec.Struct, frozen=True, array_like=True):
    """One column of one file."""

    size: _Number  # Compressed bytes.
    values: _Number  # Nulls included.
    nulls: _Number | None  # None: unknown.
    lower: bytes | None = None  # None: unknown, or there are only nulls.
    upper: bytes | None = None
    least: float | None = None  # Of floating-point numbers; NaN is left aside.
    greatest: float | None = None


class FileStats(msgspec.Struct, frozen=True, array_like=True):
    """One file; columns by name."""

    rows: _Number
    bytes: _Number
    columns: dict[str, ColumnStats] = {}


preload(FileStats)
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(dict[str, FileStats])


def pack_stats(stats: Mapping[str, FileStats], bytes_max: int = PACKED_BYTES_MAX) -> bytes:
    """Return the statistics of files by name, packed. Those of columns are left out if they take too much room."""
    packed = zlib.compress(_ENCODER.encode(dict(stats)), 1)
    if len(packed) <= bytes_max:
        return packed
    plain = {name: FileStats(each.rows, each.bytes) for name, each in stats.items()}
    return zlib.compress(_ENCODER.encode(plain), 1)


def unpack_stats(packed: bytes) -> dict[str, FileStats]:
    """Return the statistics of files by name; none if they cannot be understood, as those of a later qo."""
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(packed, UNPACKED_BYTES_MAX)
        return {} if stream.unconsumed_tail else _DECODER.decode(body)
    except (zlib.error, msgspec.MsgspecError):
        return {}
