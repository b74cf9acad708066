"""Count the requests to a store, and what they would cost on S3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from qo.core import pricing
from qo.core.pricing import Operation
from qo.store.port import (
    LIST_LIMIT_MAX,
    Deletion,
    ObjectStore,
    Page,
    PutResult,
    Stored,
    Unchanged,
    Version,
    VersionMark,
    VersionPage,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Requests by operation. Subtract an earlier usage for the difference; add those of several stores."""

    counts: Mapping[Operation, int]

    def __add__(self, other: Usage) -> Usage:
        return Usage({o: n for o in Operation if (n := self._of(o) + other._of(o))})

    def __sub__(self, other: Usage) -> Usage:
        return Usage({o: n for o in Operation if (n := self._of(o) - other._of(o))})

    def _of(self, operation: Operation) -> int:
        return self.counts.get(operation, 0)

    @property
    def requests(self) -> int:
        return sum(self.counts.values())

    def dollars(self) -> float:
        return pricing.dollars(self.counts)


class Metered:
    """Counts each call as one request, refused ones too: that is how they are billed.

    Requests that the store makes by itself are not counted: repeated sends, further pages of ``versions``, a request
    for the time. Methods return the inner awaitable, so a call costs one increment.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.counts: Counter[Operation] = Counter()

    def snapshot(self) -> Usage:
        return Usage(dict(self.counts))

    def dollars(self) -> float:
        return pricing.dollars(self.counts)

    def reset(self) -> None:
        self.counts.clear()

    def get(self, key: str, *, version: str | None = None) -> Awaitable[Stored | None]:
        self.counts[Operation.GET] += 1
        return self.store.get(key, version=version)

    def get_if_changed(self, key: str, etag: str) -> Awaitable[Stored | Unchanged | None]:
        self.counts[Operation.GET] += 1
        return self.store.get_if_changed(key, etag)

    def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Awaitable[PutResult]:
        self.counts[Operation.PUT] += 1
        return self.store.put(key, body, if_match=if_match, if_absent=if_absent)

    def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> Awaitable[None]:
        self.counts[Operation.DELETE] += 1
        return self.store.delete(key, if_match=if_match, version=version)

    def delete_many(self, deletions: Sequence[Deletion]) -> Awaitable[None]:
        self.counts[Operation.DELETE_MANY] += 1
        return self.store.delete_many(deletions)

    def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Awaitable[Page]:
        self.counts[Operation.LIST] += 1
        return self.store.list(prefix, start_after=start_after, limit=limit)

    def versions(self, key: str) -> Awaitable[Sequence[Version]]:
        self.counts[Operation.VERSIONS] += 1
        return self.store.versions(key)

    def list_versions(
        self, prefix: str, *, after: VersionMark | None = None, limit: int = LIST_LIMIT_MAX
    ) -> Awaitable[VersionPage]:
        self.counts[Operation.VERSIONS] += 1
        return self.store.list_versions(prefix, after=after, limit=limit)

    def versioned(self) -> Awaitable[bool]:
        self.counts[Operation.VERSIONING] += 1
        return self.store.versioned()

    def presign(self, key: str, *, expires_s: int, method: str = "GET") -> Awaitable[str]:
        return self.store.presign(key, expires_s=expires_s, method=method)

    def now(self) -> Awaitable[datetime]:
        return self.store.now()

    def close(self) -> Awaitable[None]:
        return self.store.close()
