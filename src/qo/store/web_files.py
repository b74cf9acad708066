"""Files behind URLs, for callers that block a thread of their own: whole, limited, and from allowed addresses only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx

from qo.config.fetch import FetchSettings
from qo.core.words import plural
from qo.errors import AccessDenied, NotFound, QoError, Unavailable, UsageError
from qo.store.guarded_transport import GuardedTransport

T = TypeVar("T")

WAITS_S = (0.5, 2.0)  # Between tries. A task is tried again besides.
PART_BYTES = 1024 * 1024
REDIRECTS_MAX = 5
_ABSENT = (404, 410)
_BUSY = (408, 425, 429)


def is_web(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


class WebFiles:
    def __init__(self, settings: FetchSettings) -> None:
        self._settings = settings

    def read(self, url: str, *, bytes_max: int | None = None) -> bytes:
        """Return a file. Raises NotFound, UsageError if it is too large or nowhere to fetch from, Unavailable."""

        def collect(parts: Iterator[bytes]) -> bytes:
            return b"".join(parts)

        return self._try(url, collect, bytes_max)

    def copy(self, url: str, path: Path, check: Callable[[], None]) -> None:
        """Write a file to a path. ``check`` is called for each part, and raises to stop."""

        def write(parts: Iterator[bytes]) -> None:
            with path.open("wb") as file:
                for part in parts:
                    check()
                    file.write(part)

        self._try(url, write, None)

    def _try(self, url: str, use: Callable[[Iterator[bytes]], T], bytes_max: int | None) -> T:
        for wait_s in WAITS_S:
            try:
                return self._fetch(url, use, bytes_max)
            except Unavailable:
                threading.Event().wait(wait_s)
        return self._fetch(url, use, bytes_max)

    def _fetch(self, url: str, use: Callable[[Iterator[bytes]], T], bytes_max: int | None) -> T:
        limit = min(bytes_max or self._settings.bytes_max, self._settings.bytes_max)
        with httpx.Client(
            transport=GuardedTransport(self._settings.allowed),
            timeout=self._settings.timeout_s,
            follow_redirects=True,
            max_redirects=REDIRECTS_MAX,
            headers={"Accept-Encoding": "identity"},  # A file that is compressed stays so, as its name says.
        ) as client:
            try:
                with client.stream("GET", url) as response:
                    _require_success(url, response.status_code)
                    return use(_limited(response.iter_bytes(PART_BYTES), limit, url))
            except httpx.TransportError as error:
                raise Unavailable(
                    f"{_without_query(url)} cannot be fetched: {error or type(error).__name__}"
                ) from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise UsageError(
                    f"{_without_query(url)} cannot be fetched: {error or type(error).__name__}"
                ) from None


def _require_success(url: str, status: int) -> None:
    if 200 <= status < 300:
        return
    error: type[QoError] = UsageError
    if status in _ABSENT:
        error = NotFound
    elif status in (401, 403):
        error = AccessDenied
    elif status >= 500 or status in _BUSY:
        error = Unavailable
    raise error(f"{_without_query(url)} answered {status}")


def _limited(parts: Iterator[bytes], limit: int, url: str) -> Iterator[bytes]:
    size = 0
    for part in parts:
        size += len(part)
        if size > limit:
            raise UsageError(
                f"{_without_query(url)} has more than {plural(limit, 'byte')}: if so large a file is meant, raise the "
                "setting fetch.bytes_max (QO_FETCH_BYTES_MAX)"
            )
        yield part


def _without_query(url: str) -> str:
    """Return a URL for a message: what comes after ? may be a signature."""
    return url.partition("?")[0]
