"""The objects of a store, such as a bucket under a prefix, as a ``Directory``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from io import BytesIO
from typing import BinaryIO

from qo.errors import ConcurrentWrite, Contended, NotFound, PreconditionFailed, UsageError
from qo.store.directory import PAGE, Accepts, Change, File
from qo.store.port import DELETE_LIMIT_MAX, Deletion, Entry, ObjectStore

TRIES = 5  # Of an update that others come before.


class BucketDirectory:
    shows_partial_files = False  # A store shows an object when it is whole.

    def __init__(self, store: ObjectStore, root: str) -> None:
        """``store`` is closed with the directory; ``root`` begins the URL of every file, its last slash included."""
        self._store = store
        self._root = root

    async def list(self, *, accepts: Accepts | None = None, under: str = "") -> AsyncIterator[Sequence[File]]:
        after, more = "", True
        while more:
            page = await self._store.list(under, start_after=after, limit=PAGE)
            more = page.truncated and bool(page.entries)
            if page.entries:
                after = page.entries[-1].key
            yield [
                _file(entry)
                for entry in page.entries
                if accepts is None or all(map(accepts, entry.key.rstrip("/").split("/")))
            ]

    async def find(self, path: str) -> File | None:
        page = await self._store.list(path, limit=1)  # In key order: the object itself comes first.
        return next((_file(entry) for entry in page.entries if entry.key == path), None)

    async def read(self, path: str, *, bytes_max: int | None = None) -> bytes:
        if bytes_max is not None and (file := await self.find(path)) is not None and file.size > bytes_max:
            raise UsageError(f"{self.url(path)} has {file.size} bytes: more than {bytes_max}")
        stored = await self._store.get(path)
        if stored is None:
            raise NotFound(f"there is no object {self.url(path)}")
        if bytes_max is not None and len(stored.body) > bytes_max:  # Replaced since its size was read.
            raise UsageError(f"{self.url(path)} has {len(stored.body)} bytes: more than {bytes_max}")
        return stored.body

    async def open(self, path: str) -> BinaryIO:
        return BytesIO(await self.read(path))

    async def write(self, path: str, body: bytes) -> None:
        await self._store.put(path, body)

    async def create(self, path: str, body: bytes) -> bool:
        try:
            await self._store.put(path, body, if_absent=True)
        except PreconditionFailed:
            return False
        return True

    async def update(self, path: str, change: Change) -> bool:
        for _ in range(TRIES):
            stored = await self._store.get(path)
            body = change(None if stored is None else stored.body)
            if body is None:
                return False
            etag = None if stored is None else stored.etag
            try:
                await self._store.put(path, body, if_match=etag, if_absent=etag is None)
            except (PreconditionFailed, ConcurrentWrite):
                continue
            return True
        raise Contended(f"others write {self.url(path)} all the time: try again later")

    async def delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), DELETE_LIMIT_MAX):
            await self._store.delete_many([Deletion(path) for path in paths[start : start + DELETE_LIMIT_MAX]])

    def url(self, path: str) -> str:
        return f"{self._root}{path}"

    async def close(self) -> None:
        await self._store.close()


def _file(entry: Entry) -> File:
    return File(entry.key, entry.etag.strip('"'), entry.size)
