"""Remove the objects that a store's checks have written, in all their versions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from qo.store.port import DELETE_LIMIT_MAX, Deletion, ObjectStore

KEYS_AT_ONCE = 100


async def erase(store: ObjectStore, keys: Iterable[str]) -> None:
    """Remove these keys with all their versions. Raises StoreError if the store does not answer."""
    used = sorted(keys)
    for start in range(0, len(used), KEYS_AT_ONCE):
        batch = used[start : start + KEYS_AT_ONCE]
        await store.delete_many([Deletion(key) for key in batch])
        if await store.versioned():
            await _erase_versions(store, batch)


async def _erase_versions(store: ObjectStore, keys: list[str]) -> None:
    histories = await asyncio.gather(*(store.versions(key) for key in keys))
    deletions = [
        Deletion(key, version.version) for key, history in zip(keys, histories, strict=True) for version in history
    ]
    for start in range(0, len(deletions), DELETE_LIMIT_MAX):
        await store.delete_many(deletions[start : start + DELETE_LIMIT_MAX])
