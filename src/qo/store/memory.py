"""A bucket in memory, for tests and simulation: the model that the other stores are compared with.

It behaves like a versioned S3 bucket. The same calls (with the same ``clock``) return the same results, version ids
included, so that a simulation can be replayed.

One deviation, shared with ``local``: deleting a key that is not there leaves no delete marker.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice, takewhile
from typing import NamedTuple

from qo.errors import PreconditionFailed, UsageError
from qo.store.embedded import Clock, check_delete_many, check_limit, check_put, etag_of, page_of_versions
from qo.store.port import (
    LIST_LIMIT_MAX,
    UNCHANGED,
    Deletion,
    Entry,
    Page,
    PutResult,
    Stored,
    Unchanged,
    Version,
    VersionMark,
    VersionPage,
)

UNVERSIONED = "null"  # How S3 names the only version of an object in a bucket without versioning.


class _StoredVersion(NamedTuple):
    version: str
    body: bytes | None  # None: a delete marker.
    etag: str
    modified: datetime


class MemoryStore:
    """An ``ObjectStore`` that forgets everything with the process.

    ``clock`` supplies the time (default: the machine's); ``versioned=False`` keeps no old versions, as a bucket
    without versioning.
    """

    def __init__(self, clock: Callable[[], datetime] | None = None, versioned: bool = True) -> None:
        self._clock = Clock(clock)
        self._versioned = versioned
        self._version_count = 0
        self._history: dict[str, list[_StoredVersion]] = {}  # Every version of each key, oldest first.
        # The keys with a live object, sorted. Python compares strings by code point, which is the order of
        # their UTF-8 bytes and so that of S3.
        self._live: list[str] = []
        self._keys: list[str] = []  # The same for all keys that have versions, deleted ones included.
        # Threads with event loops of their own may share a store; checking and writing must be atomic.
        self._lock = threading.Lock()

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        with self._lock:
            if version is None:
                stored = self._current(key)
            else:
                stored = next((each for each in self._history.get(key, []) if each.version == version), None)
        if stored is None or stored.body is None:
            return None
        return Stored(stored.body, stored.etag, self._version_id(stored))

    async def get_if_changed(self, key: str, etag: str) -> Stored | Unchanged | None:
        with self._lock:
            stored = self._current(key)
        if stored is None or stored.body is None:
            return None
        return UNCHANGED if stored.etag == etag else Stored(stored.body, stored.etag, self._version_id(stored))

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        check_put(key, if_match, if_absent)
        etag = etag_of(body)
        with self._lock:
            current = self._current(key)
            if if_absent and current is not None:
                raise PreconditionFailed(f"{key} exists already")
            if if_match is not None and (current is None or current.etag != if_match):
                raise PreconditionFailed(f"{key} has changed since it was read")
            added = self._add(key, body, etag)
        return PutResult(etag, self._version_id(added))

    async def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> None:
        with self._lock:
            if version is not None:
                self._erase(key, version)
            else:
                self._delete(key, if_match)

    async def delete_many(self, deletions: Sequence[Deletion]) -> None:
        check_delete_many(deletions)
        with self._lock:
            for key, version, etag in deletions:
                if version is not None:
                    self._erase(key, version)
                else:
                    with suppress(PreconditionFailed):
                        self._delete(key, etag)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        limit = check_limit(limit)
        entries: list[Entry] = []
        with self._lock:
            if start_after < prefix:
                first = bisect_left(self._live, prefix)
            else:
                first = bisect_right(self._live, start_after)
            for key in self._live[first : first + limit + 1]:
                if not key.startswith(prefix):
                    break
                _, body, etag, modified = self._history[key][-1]
                entries.append(Entry(key, etag, len(body or b""), modified))
        return Page(entries[:limit], truncated=len(entries) > limit)

    async def versions(self, key: str) -> Sequence[Version]:
        with self._lock:
            return self._versions(key)

    async def list_versions(
        self, prefix: str, *, after: VersionMark | None = None, limit: int = LIST_LIMIT_MAX
    ) -> VersionPage:
        limit = check_limit(limit)
        start = max(prefix, "" if after is None else after.key)
        with self._lock:
            first = bisect_left(self._keys, start)
            keys = takewhile(lambda key: key.startswith(prefix), islice(self._keys, first, None))
            return page_of_versions(keys, self._versions, after, limit)

    async def versioned(self) -> bool:
        return self._versioned

    async def presign(self, key: str, *, expires_s: int, method: str = "GET") -> str:
        raise UsageError("the memory store has no presigned links: only an S3 bucket has")

    async def now(self) -> datetime:
        return self._clock.now()

    async def close(self) -> None:
        pass

    def _versions(self, key: str) -> list[Version]:
        return [
            Version(version, etag, len(body or b""), modified, latest=place == 0, deleted=body is None)
            for place, (version, body, etag, modified) in enumerate(self._history.get(key, [])[::-1])
        ]

    def _current(self, key: str) -> _StoredVersion | None:
        history = self._history.get(key)
        return history[-1] if history and history[-1].body is not None else None

    def _version_id(self, stored: _StoredVersion) -> str | None:
        return stored.version if self._versioned else None

    def _add(self, key: str, body: bytes | None, etag: str) -> _StoredVersion:
        self._version_count += 1
        version = str(self._version_count) if self._versioned else UNVERSIONED
        added = _StoredVersion(version, body, etag, self._clock.now())
        history = self._history.setdefault(key, [])
        if not self._versioned:
            history.clear()
        history.append(added)
        self._relist(key)
        return added

    def _delete(self, key: str, if_match: str | None) -> None:
        current = self._current(key)
        if current is None:
            return
        if if_match is not None and current.etag != if_match:
            raise PreconditionFailed(f"{key} has changed since it was read")
        if self._versioned:
            self._add(key, None, "")
        else:
            self._erase(key, UNVERSIONED)

    def _erase(self, key: str, version: str) -> None:
        """Remove one version for good; if it was the latest, the one before it is current again."""
        remaining = [each for each in self._history.pop(key, []) if each.version != version]
        if remaining:
            self._history[key] = remaining
        self._relist(key)

    def _relist(self, key: str) -> None:
        """Make the sorted keys agree with the history of the key."""
        _set_member(self._live, key, self._current(key) is not None)
        _set_member(self._keys, key, key in self._history)


def _set_member(keys: list[str], key: str, present: bool) -> None:
    """Insert the key into the sorted list, or remove it, unless that is done already."""
    place = bisect_left(keys, key)
    listed = place < len(keys) and keys[place] == key
    if present and not listed:
        keys.insert(place, key)
    elif listed and not present:
        del keys[place]
