"""A transport by aiohttp, for clients that call all day.

A worker makes a few small calls for each task. By httpx's own client each took 2 ms of CPU, longer than the dispatcher
takes to answer most of them; aiohttp takes a fifth of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import aiohttp
from yarl import URL

from qo.api.transport import NoResponse, NotSent, Response

CONNECTIONS_MAX = 100
IDLE_S = 20.0  # Shorter than the dispatcher keeps a connection.
UNWANTED_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class AiohttpTransport:
    """Belongs to the event loop that first uses it. Ignores the proxies and cookies of the environment."""

    def __init__(self, *, connect_s: float, response_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=response_s)
        self._session: aiohttp.ClientSession | None = None

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        session = self._open_session()
        try:
            async with session.request(
                method, _parse(url), headers=headers, data=body, allow_redirects=False
            ) as response:
                return Response(url, response.status, await response.read())
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise NotSent(str(error) or type(error).__name__) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise NoResponse(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=IDLE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=UNWANTED_HEADERS,
                timeout=self._timeout,
            )
        return self._session


@lru_cache(maxsize=64)
def _parse(url: str) -> URL:
    """Cached: most requests go to the same few URLs."""
    return URL(url, encoded=True)
