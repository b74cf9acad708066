"""Which files have been announced: exactly while the process lives, in a few kilobytes when it does not.

In memory stands each file with its mark. What is kept with the dispatcher is a digest of the files in each of 1,024
buckets, about 12 kB however many files there are. After a restart, a bucket whose digest is unchanged is known; the
files of any other are announced again, about one in a thousand for each file that came or went in the meantime. That
does no harm, because the dispatcher recognises each announcement by its key.
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
    def __init__(self, memory: Any = None) -> None:
        self._announced: dict[str, str] = {}  # Mark by path.
        self._remembered = _unpacked(memory)  # None once it has been compared: from then on, memory is exact.

    def __len__(self) -> int:
        return len(self._announced)

    def fresh(self, present: Mapping[str, str]) -> list[str]:
        """The paths that have not been announced as they are now, in order. What is gone is forgotten."""
        if self._remembered is not None:
            known, now = self._remembered, digests(present.items())
            self._announced = {
                path: mark for path, mark in present.items() if known[_bucket(path)] == now[_bucket(path)]
            }
            self._remembered = None
        self._announced = {path: mark for path, mark in self._announced.items() if path in present}
        return sorted(path for path, mark in present.items() if self._announced.get(path) != mark)

    def announced(self, path: str, mark: str) -> None:
        self._announced[path] = mark

    def memory(self) -> dict[str, Any]:
        """What to keep. Equal if the same files have been announced."""
        packed = zlib.compress(b"".join(digests(self._announced.items())), 9)
        return {"buckets": base64.b85encode(packed).decode(), "files": len(self._announced)}


def digests(files: Iterable[tuple[str, str]]) -> list[bytes]:
    """One digest for each bucket, whatever the order of the files."""
    sums = [0] * BUCKETS
    for path, mark in files:
        sums[_bucket(path)] ^= int.from_bytes(_hash(f"{path}\x00{mark}"))
    return [each.to_bytes(_DIGEST_LEN) for each in sums]


def _bucket(path: str) -> int:
    return int.from_bytes(_hash(path)) % BUCKETS


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_LEN).digest()


def _unpacked(memory: Any) -> list[bytes]:
    told = cast("dict[str, Any]", memory) if isinstance(memory, dict) else {}
    try:
        flat = zlib.decompress(base64.b85decode(str(told["buckets"])))
    except (KeyError, ValueError, zlib.error):
        return [_EMPTY] * BUCKETS  # Nothing is known: everything is announced, as at the first time.
    if len(flat) != BUCKETS * _DIGEST_LEN:
        return [_EMPTY] * BUCKETS
    return [flat[at : at + _DIGEST_LEN] for at in range(0, len(flat), _DIGEST_LEN)]
