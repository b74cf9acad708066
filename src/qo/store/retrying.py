"""Repeat idempotent requests that got no reply.

A conditional write is never repeated here: it may have happened, and the repetition would then be refused as if another
writer had come first. ``qo.store.register`` reads before it writes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar

from qo.ambient import SYSTEM, Ambient
from qo.errors import Unavailable
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

ATTEMPTS = 5
REST_FIRST_S = 0.05
REST_MAX_S = 2.0

T = TypeVar("T")


class Retrying:
    """Wraps a store so that idempotent requests survive ``attempts`` - 1 failures in a row."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        ambient: Ambient = SYSTEM,
        attempts: int = ATTEMPTS,
        rest_first_s: float | None = None,
    ) -> None:
        """``rest_first_s``: the rest before the second attempt; it doubles each time, up to REST_MAX_S."""
        self._store = store
        self._ambient = ambient
        self._attempts = attempts
        self._rest_first_s = rest_first_s

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        return await self._retry(lambda: self._store.get(key, version=version))

    async def get_if_changed(self, key: str, etag: str) -> Stored | Unchanged | None:
        return await self._retry(lambda: self._store.get_if_changed(key, etag))

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        if if_match is not None or if_absent:
            return await self._store.put(key, body, if_match=if_match, if_absent=if_absent)
        return await self._retry(lambda: self._store.put(key, body))

    async def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> None:
        if if_match is not None:
            return await self._store.delete(key, if_match=if_match)
        return await self._retry(lambda: self._store.delete(key, version=version))

    async def delete_many(self, deletions: Sequence[Deletion]) -> None:
        await self._retry(lambda: self._store.delete_many(deletions))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        return await self._retry(lambda: self._store.list(prefix, start_after=start_after, limit=limit))

    async def versions(self, key: str) -> Sequence[Version]:
        return await self._retry(lambda: self._store.versions(key))

    async def list_versions(
        self, prefix: str, *, after: VersionMark | None = None, limit: int = LIST_LIMIT_MAX
    ) -> VersionPage:
        return await self._retry(lambda: self._store.list_versions(prefix, after=after, limit=limit))

    async def versioned(self) -> bool:
        return await self._retry(self._store.versioned)

    async def presign(self, key: str, *, expires_s: int, method: str = "GET") -> str:
        return await self._retry(lambda: self._store.presign(key, expires_s=expires_s, method=method))

    async def now(self) -> datetime:
        return await self._retry(self._store.now)

    async def close(self) -> None:
        await self._store.close()

    async def _retry(self, send: Callable[[], Awaitable[T]]) -> T:
        rest_s = REST_FIRST_S if self._rest_first_s is None else self._rest_first_s
        for _ in range(self._attempts - 1):
            try:
                return await send()
            except Unavailable:
                await asyncio.sleep(rest_s * (0.5 + self._ambient.unit()))
                rest_s = min(2 * rest_s, REST_MAX_S)
        return await send()
