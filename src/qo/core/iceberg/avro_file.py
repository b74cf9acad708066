"""Files of Avro, which manifests are: values in its binary encoding, and the container of their records.

Records are encoded by hand, without a library that goes through a schema: manifests have a dozen fields that never
change, and a thousand files in each.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

_MAGIC = b"Obj\x01"
_BLOCK_BYTES = 64_000  # Before compression; a reader decodes one block at a time.
_LEVEL = 1
_RAW_DEFLATE = -15

NULL, VALUE = b"\x00", b"\x02"  # Which of the two an optional field has; its value follows.
_END = b"\x00"  # Of an array or a map.


@lru_cache(maxsize=8192)
def encode_long(number: int) -> bytes:
    """Return an int or a long: seven bits in each byte, the sign in the lowest one."""
    rest = number << 1 ^ number >> 63
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def encode_bytes(body: bytes) -> bytes:
    return encode_long(len(body)) + body


def encode_text(text: str) -> bytes:
    return encode_bytes(text.encode())


def encode_boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def encode_array(items: Sequence[bytes]) -> bytes:
    """Return an array of encoded items, in one block."""
    return encode_long(len(items)) + b"".join(items) + _END if items else _END


def encode_optional(value: bytes | None) -> bytes:
    """Return an encoded value, or the lack of one, as a field that is null by default."""
    return NULL if value is None else VALUE + value


def encode_file(schema: bytes, records: Iterable[bytes], header: Mapping[str, bytes], marker: bytes) -> bytes:
    """Return a file of encoded records. ``marker``: 16 bytes that separate its blocks."""
    about = {"avro.codec": b"deflate", "avro.schema": schema, **header}
    entries = [encode_text(name) + encode_bytes(value) for name, value in about.items()]
    parts = [_MAGIC, encode_array(entries), marker]
    for count, block in _blocks(records):
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
        body = compressor.compress(block) + compressor.flush()
        parts += (encode_long(count), encode_bytes(body), marker)
    return b"".join(parts)


def _blocks(records: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of records of each block, and their bytes."""
    block: list[bytes] = []
    size = 0
    for each in records:
        block.append(each)
        size += len(each)
        if size >= _BLOCK_BYTES:
            yield len(block), b"".join(block)
            block, size = [], 0
    if block:
        yield len(block), b"".join(block)
