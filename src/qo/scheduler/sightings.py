"""Which files have been announced: exact in memory, and in a few kilobytes across restarts.

In memory each file is listed with its ETag. The dispatcher keeps a digest of the files in each of 1,024 buckets, about
12 kB however many files there are. After a restart, the files of a bucket whose digest is unchanged count as announced;
those of any other bucket are announced again, about one in a thousand for each file that came or went in the meantime.
That does no harm, because the dispatcher recognises each announcement by its key.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

BUCKETS = 1024
_DIGEST_LEN = 8
_EMPTY = bytes(_DIGEST_LEN)


class Sightings:
    """The files of one source that have been announced."""

    def __init__(self, memory: Any = None) -> None:
        self._announced: dict[str, str] = {}  # ETag by path.
        self._saved_digests = _unpack(
            memory
        )  # None once it has been compared: from then on, ``_announced`` is exact.

    def __len__(self) -> int:
        return len(self._announced)

    def fresh(self, present: Mapping[str, str]) -> list[str]:
        """Return the paths that have not been announced with their present ETag, sorted. Forget files that are gone."""
        if self._saved_digests is not None:
            before, now = self._saved_digests, digests(present.items())
            self._announced = {
                path: etag for path, etag in present.items() if before[_bucket(path)] == now[_bucket(path)]
            }
            self._saved_digests = None
        self._announced = {path: etag for path, etag in self._announced.items() if path in present}
        return sorted(path for path, etag in present.items() if self._announced.get(path) != etag)

    def mark_announced(self, path: str, etag: str) -> None:
        self._announced[path] = etag

    def memory(self) -> dict[str, Any]:
        """Return the value to keep. It is equal if the same files have been announced."""
        packed = zlib.compress(b"".join(digests(self._announced.items())), 9)
        return {"buckets": base64.b85encode(packed).decode(), "files": len(self._announced)}


def digests(files: Iterable[tuple[str, str]]) -> list[bytes]:
    """Return one digest for each bucket, whatever the order of the files."""
    sums = [0] * BUCKETS
    for path, etag in files:
        sums[_bucket(path)] ^= int.from_bytes(_hash(f"{path}\x00{etag}"))
    return [each.to_bytes(_DIGEST_LEN) for each in sums]


def _bucket(path: str) -> int:
    return int.from_bytes(_hash(path)) % BUCKETS


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_LEN).digest()


def _unpack(memory: Any) -> list[bytes]:
    fields = cast("dict[str, Any]", memory) if isinstance(memory, dict) else {}
    try:
        flat = zlib.decompress(base64.b85decode(str(fields["buckets"])))
    except (KeyError, ValueError, zlib.error):
        return [_EMPTY] * BUCKETS  # Nothing is known, so everything is announced, as at the first poll.
    if len(flat) != BUCKETS * _DIGEST_LEN:
        return [_EMPTY] * BUCKETS
    return [flat[at : at + _DIGEST_LEN] for at in range(0, len(flat), _DIGEST_LEN)]
