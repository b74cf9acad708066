"""Requests on their way to a dispatcher, for those that ask all day: aiohttp carries what httpx describes.

A worker asks a few small questions for each task. By httpx's own client each took 2 ms of CPU, longer than the
dispatcher takes to answer most of them; aiohttp by itself takes a fifth of that.
"""

from __future__ import annotations

import aiohttp
import httpx
from yarl import URL

CONNECTIONS_MAX = 100
IDLE_S = 20.0  # Sooner than the dispatcher gives a connection up.
UNWANTED_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Carrier(httpx.AsyncBaseTransport):
    """Belongs to the event loop that first uses it. Neither proxies nor cookies of the environment play a part."""

    def __init__(self, *, connect_s: float, answer_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=answer_s)
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx's ConnectError and ConnectTimeout for what was never sent, ReadTimeout and ReadError for what
        got no whole answer."""
        session = self._opened()
        try:
            async with session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=dict(request.headers),
                data=request.content or None,
                allow_redirects=False,
            ) as answer:
                body = await answer.read()
        except aiohttp.ConnectionTimeoutError as error:
            raise httpx.ConnectTimeout(str(error), request=request) from error
        except aiohttp.ClientConnectorError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error), request=request) from error
        except (aiohttp.ClientError, OSError) as error:
            raise httpx.ReadError(str(error), request=request) from error
        return httpx.Response(answer.status, headers=list(answer.raw_headers), content=body, request=request)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=IDLE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=UNWANTED_HEADERS,
                auto_decompress=False,  # httpx does that.
                timeout=self._timeout,
            )
        return self._session
