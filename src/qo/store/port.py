"""The port for object stores: all that qo needs of a bucket. ``qo.testing.conformance`` tests every adapter.

Four replies to a conditional write are told apart, because each needs another reaction:
    404                     the key does not exist: ``get`` returns None, a condition fails as with 412
    412                     ``PreconditionFailed``: another write came first (or our own, whose reply was lost)
    409                     ``ConcurrentWrite``: two writes collided; nothing is known to have happened
    no reply, or 5xx        ``Unavailable``: it may have happened
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import NamedTuple, Protocol, runtime_checkable


class Stored(NamedTuple):
    """An object as it was read."""

    body: bytes
    etag: str
    version: str | None


class Unchanged(Enum):
    """The answer to ``get_if_changed`` if the object still has the given ETag."""

    UNCHANGED = auto()


UNCHANGED = Unchanged.UNCHANGED


class PutResult(NamedTuple):
    etag: str
    version: str | None


class Entry(NamedTuple):
    """An object as it was listed."""

    key: str
    etag: str
    size: int
    modified: datetime


class Page(NamedTuple):
    """Entries in key order. If ``truncated``, list again with ``start_after`` the last key."""

    entries: Sequence[Entry]
    truncated: bool


class Version(NamedTuple):
    """One version of a key. A deleted one is a delete marker and has no body."""

    version: str
    etag: str
    size: int
    modified: datetime
    latest: bool
    deleted: bool


class VersionMark(NamedTuple):
    """A place in a listing of versions: after this version of the key, or after all its versions if None."""

    key: str
    version: str | None = None


class VersionEntry(NamedTuple):
    """One version in a listing of many keys."""

    key: str
    version: Version


class VersionPage(NamedTuple):
    """Versions in key order, newest first within a key. ``next``: where the next page begins; None: it was the last."""

    entries: Sequence[VersionEntry]
    next: VersionMark | None


class Deletion(NamedTuple):
    """An object to delete. With a version, that version is removed for good, leaving no delete marker. With an ETag,
    the object is removed only if it still has it; a server that does not support this condition ignores it."""

    key: str
    version: str | None = None
    etag: str | None = None


LIST_LIMIT_MAX = 1000
DELETE_LIMIT_MAX = 1000


@runtime_checkable
class ObjectStore(Protocol):
    """Each call returns an awaitable. Some adapters start the work at once, others when it is awaited, so run two calls
    concurrently with ``asyncio.gather`` or ``asyncio.ensure_future``."""

    def get(self, key: str, *, version: str | None = None) -> Awaitable[Stored | None]:
        """Return the object, or None if there is none (never written, deleted, or a delete marker)."""
        ...

    def get_if_changed(self, key: str, etag: str) -> Awaitable[Stored | Unchanged | None]:
        """Return the object unless it still has this ETag, or None if there is none. Unchanged, it is not transferred;
        the price is that of ``get``."""
        ...

    def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Awaitable[PutResult]:
        """Write an object; with a condition, only if it still has this ETag (``if_match``) or does not exist
        (``if_absent``).

        Raises PreconditionFailed if the condition does not hold, a missing key under ``if_match`` included
        (servers answer 404 or 412 to that; neither has written anything).
        """
        ...

    def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> Awaitable[None]:
        """Delete one object. A missing key is no error, also with ``if_match``; a key with another ETag raises
        PreconditionFailed. With ``version``, exactly that version is removed for good, leaving no delete marker."""
        ...

    def delete_many(self, deletions: Sequence[Deletion]) -> Awaitable[None]:
        """Delete up to DELETE_LIMIT_MAX objects in one request."""
        ...

    def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Awaitable[Page]:
        """List up to ``limit`` live objects under the prefix with keys after ``start_after``, in key order."""
        ...

    def versions(self, key: str) -> Awaitable[Sequence[Version]]:
        """Return every version of exactly this key, newest first; empty if it never existed."""
        ...

    def list_versions(
        self, prefix: str, *, after: VersionMark | None = None, limit: int = LIST_LIMIT_MAX
    ) -> Awaitable[VersionPage]:
        """List up to ``limit`` versions of all keys under the prefix, delete markers and deleted keys included."""
        ...

    def versioned(self) -> Awaitable[bool]:
        """Whether old versions are kept."""
        ...

    def presign(self, key: str, *, expires_s: int, method: str = "GET") -> Awaitable[str]:
        """Return a link that lets its bearer read (or PUT) one object for a while. Raises UsageError if the store has
        no such links."""
        ...

    def now(self) -> Awaitable[datetime]:
        """Return the store's time, UTC. Costs a request only if none was made in the last ten minutes."""
        ...

    def close(self) -> Awaitable[None]: ...
