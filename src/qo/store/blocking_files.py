"""Files by URI, on this machine or in any bucket, for callers that block a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from qo.config.fetch import FetchSettings
from qo.config.location import local_path
from qo.config.settings import Settings
from qo.errors import UsageError
from qo.store.directory import Directory, open_directory
from qo.store.local_directory import read_file, write_file

T = TypeVar("T")

OpenBucket = Callable[[str], Awaitable[Directory]]


class BlockingFiles:
    """Reads and writes whole files at ``file:PATH`` and ``s3://BUCKET/KEY``, and reads those behind URLs. Never call it
    in an event loop.

    With a ``loop``, that one talks to the buckets, which stay open until ``close``; without, each call opens its bucket
    anew. Without ``settings`` there are only files; ``fetch`` adds those behind URLs. ``open_bucket`` opens s3://BUCKET
    in another way than by the settings: with other credentials, say.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        open_bucket: OpenBucket | None = None,
        fetch: FetchSettings | None = None,
    ) -> None:
        self._open_bucket = open_bucket or (None if settings is None else partial(_open_by_settings, settings))
        self._fetch = fetch or (None if settings is None else settings.fetch)
        self._loop = loop
        self._buckets: dict[str, Directory] = {}
        self._opening = asyncio.Lock()

    def read(self, uri: str, *, bytes_max: int | None = None) -> bytes:
        """Raises NotFound, UsageError if there are more than ``bytes_max``, OSError or StoreError."""
        if uri.startswith("file:"):
            return read_file(local_path(uri), bytes_max)
        if self._fetch is not None and uri.startswith(("http://", "https://")):
            from qo.store.web_files import WebFiles  # Loads httpx.

            return WebFiles(self._fetch).read(uri, bytes_max=bytes_max)
        return self._in_bucket(uri, lambda bucket, key: bucket.read(key, bytes_max=bytes_max))

    def write(self, uri: str, body: bytes) -> None:
        """Write a file whole or not at all. Raises OSError or StoreError."""
        if uri.startswith("file:"):
            write_file(local_path(uri), body)
        else:
            self._in_bucket(uri, lambda bucket, key: bucket.write(key, body))

    def exists(self, uri: str) -> bool:
        if uri.startswith("file:"):
            return local_path(uri).is_file()
        return self._in_bucket(uri, lambda bucket, key: bucket.find(key)) is not None

    async def close(self) -> None:
        for bucket in self._buckets.values():
            await bucket.close()

    def _in_bucket(self, uri: str, operation: Callable[[Directory, str], Awaitable[T]]) -> T:
        if self._open_bucket is None or not uri.startswith("s3://"):
            raise UsageError(f"{uri} cannot be read or written here: it begins with neither file: nor s3://")
        name, _, key = uri.removeprefix("s3://").partition("/")
        if self._loop is None:
            return asyncio.run(_run_once(self._open_bucket, f"s3://{name}", key, operation))
        call = self._run(self._open_bucket, f"s3://{name}", key, operation)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _run(
        self, open_bucket: OpenBucket, location: str, key: str, operation: Callable[[Directory, str], Awaitable[T]]
    ) -> T:
        async with self._opening:
            if location not in self._buckets:
                self._buckets[location] = await open_bucket(location)
        return await operation(self._buckets[location], key)


async def _open_by_settings(settings: Settings, location: str) -> Directory:
    return await open_directory(location, settings)


async def _run_once(
    open_bucket: OpenBucket, location: str, key: str, operation: Callable[[Directory, str], Awaitable[T]]
) -> T:
    bucket = await open_bucket(location)
    try:
        return await operation(bucket, key)
    finally:
        await bucket.close()
