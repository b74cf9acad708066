"""The files of an http source: those behind a list of URLs, or behind an index that lists them.

Each is asked for with a conditional GET, so an unchanged file costs a reply without a body; the body of a changed one
is not read, since only its ETag matters here. Where a server sends no ETag, its Last-Modified counts. A file that is
not there (404, 410) counts as one that has not arrived yet. The events name the URLs, and the job that reads them
fetches the files (``qo.store.web_files``).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from qo.config.settings import Settings
from qo.core.pipeline.partitions import Partitions
from qo.core.pipeline.url_pattern import fill_url, list_keys
from qo.errors import Unavailable, UsageError
from qo.scheduler.file_listing import File, Place
from qo.store.guarded_transport import GuardedTransport

log = logging.getLogger(__name__)

TIMEOUT_S = 30.0
CONCURRENT_REQUESTS = 8
INDEX_BYTES_MAX = 1024 * 1024
URLS_MAX = 10_000
NEWEST = 32  # Partitions that are asked for at each look.
WHOLE_EVERY = timedelta(days=1)
_NOT_MODIFIED = 304
_ABSENT = (404, 410)


async def open_urls(config: Mapping[str, Any], settings: Settings) -> Place:
    """Open the files of a source of the kind ``http``. Raises UsageError for a config without URLs."""
    urls, index_url = config.get("urls") or (), config.get("index_url")
    url = config.get("url")
    if not urls and not index_url and not url:
        raise UsageError("an http source needs urls, an index_url or a url")
    client = httpx.AsyncClient(
        transport=GuardedTransport(settings.fetch.allowed, is_async=True), timeout=TIMEOUT_S, follow_redirects=True
    )
    if url:
        declared = config.get("partitions")
        partitions = None if declared is None else msgspec.convert(declared, Partitions)
        return PartitionUrls(client, str(url), partitions)
    return UrlFiles(client, tuple(map(str, urls)), str(index_url) if index_url else None)


class UrlFiles:
    """The files behind URLs, as they were at the last look."""

    settles = False  # A server that sends an ETag has the whole file.

    def __init__(self, client: httpx.AsyncClient, urls: Sequence[str], index_url: str | None) -> None:
        self._client = client
        self._urls = tuple(urls)  # Of an index: those that it listed last.
        self._index_url = index_url
        self._index_etag: str | None = None
        self._files: dict[str, File] = {}  # By URL.
        self._keys: dict[str, str] = {}  # Of partitions, by URL, where each has one of its own.
        self.problem: str | None = None

    async def files(self, at: datetime | None = None) -> AsyncIterator[list[File]]:
        """Raises Unavailable if the index, or every one of several files, cannot be asked for."""
        if self._index_url is not None:
            await self._read_index(self._index_url)
        limit = asyncio.Semaphore(CONCURRENT_REQUESTS)

        async def look(url: str) -> File | None:
            async with limit:
                return await self._look(url)

        results = await asyncio.gather(*map(look, self._urls), return_exceptions=True)
        failures: list[Unavailable | UsageError] = []
        for url, result in zip(self._urls, results, strict=True):
            if isinstance(result, Unavailable | UsageError):
                log.warning("%s", result)  # It keeps the state of the last look.
                failures.append(result)
            elif isinstance(result, BaseException):
                raise result
            elif result is None:
                self._files.pop(url, None)
            else:
                self._files[url] = result
        if failures and len(failures) == len(self._urls):
            raise failures[0]
        of_all = f"{len(failures)} of {len(self._urls)} files could not be looked at"
        self.problem = f"{of_all}: {failures[0]}" if failures else None
        yield [self._files[url] for url in self._urls if url in self._files]

    async def close(self) -> None:
        await self._client.aclose()

    async def _look(self, url: str) -> File | None:
        """Return the file as it is now; None if there is none."""
        last = self._files.get(url)
        request = self._client.build_request("GET", url, headers=_condition(last.etag if last else None))
        try:
            response = await self._client.send(request, stream=True)
            await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"{url} cannot be reached: {error or type(error).__name__}") from None
        if response.status_code == _NOT_MODIFIED and last is not None:
            return last
        if response.status_code in _ABSENT:
            return None
        if not response.is_success:
            raise Unavailable(f"{url} answered {response.status_code}: expected 200 or 304")
        etag = _etag(response)
        if etag is None:
            raise UsageError(f"{url} has neither ETag nor Last-Modified: without one, a change cannot be seen")
        folder, slash, name = url.rpartition("/")
        path = url.partition("://")[2]
        return File(path, etag, _size(response), folder + slash, name)

    async def _read_index(self, index_url: str) -> None:
        try:
            request = self._client.build_request("GET", index_url, headers=_condition(self._index_etag))
            response = await self._client.send(request, stream=True)
            try:
                if response.status_code == _NOT_MODIFIED and self._index_etag is not None:
                    return
                if not response.is_success:
                    raise Unavailable(
                        f"the index {index_url} answered {response.status_code}: expected 200 or 304"
                    )
                body = await _read_limited(response, index_url)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(
                f"the index {index_url} cannot be reached: {error or type(error).__name__}"
            ) from None
        self._urls = parse_index(body, index_url)
        self._index_etag = _etag(response)
        self._files = {url: file for url, file in self._files.items() if url in set(self._urls)}


class PartitionUrls(UrlFiles):
    """One file for each partition of time. The newest are asked for at each look, the others once a day."""

    def __init__(self, client: httpx.AsyncClient, url: str, partitions: Partitions | None) -> None:
        super().__init__(client, (), None)
        self._url, self._partitions = url, partitions
        self._whole_at: datetime | None = None  # When all were asked for.

    async def files(self, at: datetime | None = None) -> AsyncIterator[list[File]]:
        """Raises Unavailable if none of them can be asked for."""
        if at is None or self._partitions is None:
            return  # Without the time, or in a check before a deploy, there is nothing to ask for.
        is_whole = self._whole_at is None or at - self._whole_at >= WHOLE_EVERY
        keys = list_keys(self._partitions, int(at.timestamp()), URLS_MAX if is_whole else NEWEST)
        by_url = {fill_url(self._url, key): key for key in keys}
        self._urls = tuple(by_url)
        async for _ in super().files(at):
            pass
        if is_whole:
            self._whole_at = at
        self._keys.update(by_url)
        yield [replace(file, key=self._keys[url]) for url, file in self._files.items()]


async def _read_limited(response: httpx.Response, url: str) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > INDEX_BYTES_MAX:
            raise UsageError(
                f"the index {url} has more than {INDEX_BYTES_MAX:,} bytes: split it into several sources"
            )
    return bytes(body)


def parse_index(body: bytes, index_url: str) -> tuple[str, ...]:
    """Return the URLs of an index: a JSON array of texts, or lines, of which those that begin with # are comments.

    Raises UsageError for anything else, and for a URL that is not http or https.
    """
    try:
        text = body.decode()
        lines: list[Any] = json.loads(text) if text.lstrip().startswith("[") else text.splitlines()
    except ValueError as error:
        raise UsageError(f"the index {index_url} is neither lines of text nor a JSON array: {error}") from None
    if not all(isinstance(line, str) for line in lines):
        raise UsageError(f"the index {index_url} lists something that is not text: write URLs")
    names = [line.strip() for line in cast("list[str]", lines)]
    urls = dict.fromkeys(urljoin(index_url, name) for name in names if name and not name.startswith("#"))
    for url in urls:
        if urlsplit(url).scheme not in ("http", "https"):
            raise UsageError(f"the index {index_url} lists {url[:200]!r}: write http:// or https:// addresses")
    if len(urls) > URLS_MAX:
        raise UsageError(f"the index {index_url} lists {len(urls):,} files: {URLS_MAX:,} are the most")
    return tuple(urls)


def _condition(etag: str | None) -> dict[str, str]:
    if etag is None:
        return {}
    return {"If-None-Match": etag} if etag.startswith(('"', "W/")) else {"If-Modified-Since": etag}


def _etag(response: httpx.Response) -> str | None:
    return response.headers.get("ETag") or response.headers.get("Last-Modified")


def _size(response: httpx.Response) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() and "Content-Encoding" not in response.headers else None
