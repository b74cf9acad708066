"""Files of datasets, wherever the data root is: ``file:PATH`` or ``s3://BUCKET/PREFIX``.

Small on purpose: whole objects in, whole objects out. What reads and writes by the gigabyte is Spark.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from qo.config.location import S3, parse
from qo.errors import NotFound, UsageError

if TYPE_CHECKING:
    from qo.config.settings import Settings
    from qo.store.port import ObjectStore

T = TypeVar("T")


class Storage(Protocol):
    """Blocking: operators call it on their own threads."""

    def read(self, uri: str) -> bytes: ...

    def write(self, uri: str, body: bytes) -> None: ...


class FileStorage:
    def read(self, uri: str) -> bytes:
        try:
            return path_of(uri).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"there is no file {uri}") from None

    def write(self, uri: str, body: bytes) -> None:
        path = path_of(uri)
        try:
            path.write_bytes(body)  # Nobody reads it before the attempt that wrote it is committed.
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)


def path_of(uri: str) -> Path:
    """The file that a ``file:`` URI names."""
    if not uri.startswith("file:"):
        raise UsageError(f"{uri} is not a file on this machine: use read() and write()")
    return Path(uri.removeprefix("file:").removeprefix("//"))


def located(place: str, here: str) -> str:
    """The URI of a place as a job's config names it. ``here`` is where paths that are not absolute begin."""
    if place.startswith("s3://"):
        return place
    path = re.sub("^//+", "/", place.removeprefix("file:"))
    return f"file:{path}" if path.startswith("/") else f"file:{here}/{path.removeprefix('./')}"


class BucketStorage:
    """Objects of buckets, through the store's adapter, whose calls run in the worker's event loop."""

    def __init__(
        self, open_bucket: Callable[[str], Coroutine[Any, Any, ObjectStore]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._open = open_bucket
        self._loop = loop
        self._stores: dict[str, ObjectStore] = {}
        self._opening = asyncio.Lock()

    def read(self, uri: str) -> bytes:
        return self._wait(self._read(uri))

    def write(self, uri: str, body: bytes) -> None:
        self._wait(self._write(uri, body))

    async def close(self) -> None:
        for store in self._stores.values():
            await store.close()

    async def _read(self, uri: str) -> bytes:
        store, key = await self._found(uri)
        stored = await store.get(key)
        if stored is None:
            raise NotFound(f"there is no object {uri}")
        return stored.body

    async def _write(self, uri: str, body: bytes) -> None:
        store, key = await self._found(uri)
        await store.put(key, body)

    async def _found(self, uri: str) -> tuple[ObjectStore, str]:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        async with self._opening:
            if bucket not in self._stores:
                self._stores[bucket] = await self._open(bucket)
        return self._stores[bucket], key

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


class AnyStorage:
    """Whichever a URI asks for."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._files = FileStorage()
        self._buckets = BucketStorage(self._open_bucket, loop)

    def read(self, uri: str) -> bytes:
        return self._of(uri).read(uri)

    def write(self, uri: str, body: bytes) -> None:
        self._of(uri).write(uri, body)

    async def close(self) -> None:
        await self._buckets.close()

    def _of(self, uri: str) -> Storage:
        if uri.startswith("file:"):
            return self._files
        if uri.startswith("s3://"):
            return self._buckets
        raise UsageError(f"{uri} cannot be read or written here: it begins with neither file: nor s3://")

    async def _open_bucket(self, bucket: str) -> ObjectStore:
        from qo.store.s3 import S3Store

        named = parse(f"s3://{bucket}")
        assert isinstance(named, S3)
        s3 = self._settings.s3
        return await S3Store.open(named.bucket, prefix="", endpoint=s3.endpoint, region=s3.region)
