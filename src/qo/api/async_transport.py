"""Requests on their way to a dispatcher, for those that ask all day, by aiohttp.

A worker asks a few small questions for each task. By httpx's own client each took 2 ms of CPU, longer than the
dispatcher takes to answer most of them; aiohttp by itself takes a fifth of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import aiohttp
from yarl import URL

from qo.api.transport import Reply, Unanswered, Unreached

CONNECTIONS_MAX = 100
IDLE_S = 20.0  # Sooner than the dispatcher gives a connection up.
UNWANTED_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class AioCarrier:
    """Belongs to the event loop that first uses it. Neither proxies nor cookies of the environment play a part."""

    def __init__(self, *, connect_s: float, answer_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=answer_s)
        self._session: aiohttp.ClientSession | None = None

    async def carry(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        session = self._opened()
        try:
            async with session.request(
                method, _parsed(url), headers=headers, data=body, allow_redirects=False
            ) as answer:
                return Reply(url, answer.status, await answer.read())
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise Unreached(str(error) or type(error).__name__) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unanswered(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=IDLE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=UNWANTED_HEADERS,
                timeout=self._timeout,
            )
        return self._session


@lru_cache(maxsize=64)
def _parsed(url: str) -> URL:
    """Most questions go to the same few places."""
    return URL(url, encoded=True)
