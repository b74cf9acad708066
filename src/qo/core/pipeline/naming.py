"""Partition keys for things that have a name: files, and subjects of messages.

A name that is a valid partition key is used as it is. In any other, invalid characters become ``-`` and a hash of the
whole name is appended, so that different names always have different keys:

    orders.csv         orders.csv
    2024/01/a b.csv    2024-01-a-b.csv-7b0f1d6c9a34e25f
"""

from __future__ import annotations

import hashlib
import re

from qo.core.pipeline.event import PARTITION_KEY

_HASH_LEN = 16
_REPLACED = re.compile(r"[^A-Za-z0-9_.=+-]+")
_HASHED = re.compile(rf".*-[0-9a-f]{{{_HASH_LEN}}}\Z", re.DOTALL)
_LEN_MAX = 120  # Leaves room for longer keys that contain it.

KEY_MAX = 200  # Of an idempotency key.


def partition_key(name: str) -> str:
    """Return the partition key of a name. Different names have different keys."""
    # A name that looks like a hashed key could be the key of another name.
    if len(name) <= _LEN_MAX and PARTITION_KEY.match(name) and not _HASHED.match(name):
        return name
    readable = _REPLACED.sub("-", name).strip("-.=+_")[: _LEN_MAX - _HASH_LEN - 1]
    return f"{readable or 'x'}-{digest(name)}"


def digest(text: str) -> str:
    """Return a short hash of a text, long enough to tell millions apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LEN]


def idempotency_key(kind: str, *parts: str) -> str:
    """Return the key of a list of parts: readable where it fits, a hash where it does not.

    No two lists of parts have the same key, whatever characters are in them.
    """
    plain = ":".join((kind, *parts))
    if len(plain) <= KEY_MAX and not any(":" in part for part in parts) and not plain.startswith(f"{kind}:#"):
        return plain
    whole = "\x1f".join(part.replace("\\", "\\\\").replace("\x1f", "\\u") for part in parts)
    return f"{kind}:#{hashlib.sha256(whole.encode('utf-8', 'surrogatepass')).hexdigest()}"
