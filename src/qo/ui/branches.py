"""An embedded store and the queues in directories below it, presented as one bucket.

In a bucket, the queue of a runtime is a prefix, ``queues/spark/``. Embedded, it is a store of its own in a
subdirectory (``.qo/queues/spark``). This store maps it back to the prefix, so that the page finds it in the same place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from qo.errors import NotFound
from qo.store.port import (
    LIST_LIMIT_MAX,
    Deletion,
    Entry,
    ObjectStore,
    Page,
    PutResult,
    Stored,
    Unchanged,
    Version,
    VersionEntry,
    VersionMark,
    VersionPage,
)
from qo.store.sqlite_file import FILE

ROOT = "queues/"
_AFTER = ROOT + "\U0010ffff"


class _Place(NamedTuple):
    store: ObjectStore
    prefix: str  # Removed from each key before the store sees it.


class Branches:
    """An ``ObjectStore``. It opens the queues' stores on first use, and closes them with itself."""

    def __init__(
        self, trunk: ObjectStore, directory: Path, opener: Callable[[Path], Awaitable[ObjectStore]]
    ) -> None:
        self._trunk = trunk
        self._directory = directory / ROOT
        self._opener = opener
        self._open: dict[str, ObjectStore] = {}

    def prefixes(self) -> list[str]:
        """Return the prefixes of the queues that exist now, in key order."""
        names = (each.parent.name for each in self._directory.glob(f"*/{FILE}"))
        return sorted(f"{ROOT}{name}/" for name in names)

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        place = await self._place(key)
        return None if place is None else await place.store.get(key[len(place.prefix) :], version=version)

    async def get_if_changed(self, key: str, etag: str) -> Stored | Unchanged | None:
        place = await self._place(key)
        return None if place is None else await place.store.get_if_changed(key[len(place.prefix) :], etag)

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        place = await self._require_place(key)
        return await place.store.put(key[len(place.prefix) :], body, if_match=if_match, if_absent=if_absent)

    async def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> None:
        place = await self._require_place(key)
        await place.store.delete(key[len(place.prefix) :], if_match=if_match, version=version)

    async def delete_many(self, deletions: Sequence[Deletion]) -> None:
        for each in deletions:
            place = await self._require_place(each.key)
            await place.store.delete_many([each._replace(key=each.key[len(place.prefix) :])])

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        entries: list[Entry] = []
        for begin, end, place in await self._spans(prefix):
            if start_after >= end:
                continue
            skip = len(place.prefix)
            inner, after = prefix[skip:], max(start_after, begin)[skip:]
            page = await place.store.list(inner, start_after=after, limit=limit - len(entries))
            listed = [each._replace(key=place.prefix + each.key) for each in page.entries]
            entries += [each for each in listed if each.key < end]
            if page.truncated and len(entries) >= limit:
                return Page(entries, truncated=True)
            if len(entries) >= limit:
                # Only the next page would show whether anything follows; an empty one does no harm.
                return Page(entries, truncated=end != _END)
        return Page(entries, truncated=False)

    async def versions(self, key: str) -> Sequence[Version]:
        place = await self._place(key)
        return [] if place is None else await place.store.versions(key[len(place.prefix) :])

    async def list_versions(
        self, prefix: str, *, after: VersionMark | None = None, limit: int = LIST_LIMIT_MAX
    ) -> VersionPage:
        entries: list[VersionEntry] = []
        for begin, end, place in await self._spans(prefix):
            if after is not None and after.key >= end:
                continue
            skip = len(place.prefix)
            mark = after if after is not None and after.key > begin else (VersionMark(begin) if begin else None)
            mark = None if mark is None else mark._replace(key=mark.key[skip:])
            page = await place.store.list_versions(prefix[skip:], after=mark, limit=limit - len(entries))
            listed = [each._replace(key=place.prefix + each.key) for each in page.entries]
            entries += [each for each in listed if each.key < end]
            if len(entries) >= limit:
                # Only the next page would show whether anything follows; an empty one does no harm.
                last = entries[-1]
                more = page.next is not None or end != _END
                return VersionPage(entries, VersionMark(last.key, last.version.version) if more else None)
        return VersionPage(entries, None)

    def versioned(self) -> Awaitable[bool]:
        return self._trunk.versioned()

    def presign(self, key: str, *, expires_s: int, method: str = "GET") -> Awaitable[str]:
        return self._trunk.presign(key, expires_s=expires_s, method=method)

    def now(self) -> Awaitable[datetime]:
        return self._trunk.now()

    async def close(self) -> None:
        for each in (*self._open.values(), self._trunk):
            await each.close()

    async def _spans(self, prefix: str) -> list[tuple[str, str, _Place]]:
        """Return the key ranges in order, each with the store that holds it."""
        below = [each for each in self.prefixes() if prefix.startswith(each) or each.startswith(prefix)]
        spans = [("", ROOT, _Place(self._trunk, ""))]
        spans += [(each, each + "\U0010ffff", _Place(await self._branch(each), each)) for each in below]
        spans.append((_AFTER, _END, _Place(self._trunk, "")))
        return spans

    async def _place(self, key: str) -> _Place | None:
        if not key.startswith(ROOT):
            return _Place(self._trunk, "")
        name, slash, _ = key[len(ROOT) :].partition("/")
        prefix = f"{ROOT}{name}/"
        if not slash or prefix not in self.prefixes():
            return None
        return _Place(await self._branch(prefix), prefix)

    async def _require_place(self, key: str) -> _Place:
        place = await self._place(key)
        if place is None:
            raise NotFound(f"there is no queue for {key!r}")
        return place

    async def _branch(self, prefix: str) -> ObjectStore:
        if prefix not in self._open:
            store = await self._opener(self._directory / prefix[len(ROOT) : -1])
            if (raced := self._open.setdefault(prefix, store)) is not store:
                await store.close()
                return raced
        return self._open[prefix]


_END = "\U0010ffff\U0010ffff"
