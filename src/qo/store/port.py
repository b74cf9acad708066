"""What qo needs of a bucket, and nothing more. ``qo.testing.conformance`` holds every adapter to it.

Four answers to a conditional write are kept apart, because each asks for something else:
    404                     the key was never there: for ``get`` that is None, for a condition a 412
    412                     ``PreconditionFailed``: another write came first (or our own, whose reply was lost)
    409                     ``ConcurrentWrite``: two writes met; nothing is known to have happened
    no answer, or 5xx       ``Unavailable``: it may have happened
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable


class Stored(NamedTuple):
    """An object as it was read."""

    body: bytes
    etag: str
    version: str | None


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


class Deletion(NamedTuple):
    """What to delete. With a version, that version is removed for good, leaving no delete marker. With an ETag,
    the object is removed only if it still has that; a server that does not know this condition ignores it."""

    key: str
    version: str | None = None
    etag: str | None = None


LIST_LIMIT_MAX = 1000
DELETE_LIMIT_MAX = 1000


@runtime_checkable
class ObjectStore(Protocol):
    """Each call returns something to await. Some adapters start the work at once, others when it is awaited, so
    who wants two calls under way at the same time says so (``asyncio.gather``, ``asyncio.ensure_future``)."""

    def get(self, key: str, *, version: str | None = None) -> Awaitable[Stored | None]:
        """The object, or None where there is none (never written, deleted, or a delete marker)."""
        ...

    def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Awaitable[PutResult]:
        """Write an object; with a condition, only if the key is unmoved (``if_match``) or free (``if_absent``).

        Raises PreconditionFailed if the condition does not hold, a missing key under ``if_match`` included
        (servers answer 404 or 412 to that; neither has written anything).
        """
        ...

    def delete(self, key: str, *, if_match: str | None = None) -> Awaitable[None]:
        """Delete one object; deleting what is not there is no error. ``if_match`` as for put: a key that is
        gone already counts as deleted, a key with another ETag raises PreconditionFailed."""
        ...

    def delete_many(self, deletions: Sequence[Deletion]) -> Awaitable[None]:
        """Delete up to DELETE_LIMIT_MAX objects in one request."""
        ...

    def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Awaitable[Page]:
        """Up to ``limit`` live objects under the prefix with keys after ``start_after``, in key order."""
        ...

    def versions(self, key: str) -> Awaitable[Sequence[Version]]:
        """Every version of exactly this key, newest first; empty if it never existed."""
        ...

    def versioned(self) -> Awaitable[bool]:
        """Whether old versions are kept."""
        ...

    def presign(self, key: str, *, expires_s: int, method: str = "GET") -> Awaitable[str]:
        """A link that lets its bearer read (or PUT) one object for a while; UsageError if the store has none."""
        ...

    def now(self) -> Awaitable[datetime]:
        """The store's time, UTC. Costs a request only if none was made in the last ten minutes."""
        ...

    def close(self) -> Awaitable[None]: ...
