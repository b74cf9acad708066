"""Send signed requests to one bucket, and learn the store's time from every reply.

That time also dates the signatures, so a wrong clock on this machine does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from io import BytesIO
from math import inf
from typing import NamedTuple

import aiohttp
from yarl import URL

from qo.ambient import Ambient
from qo.core import storetime
from qo.errors import StoreError, Unavailable
from qo.store.s3.address import Address
from qo.store.s3.aws_credentials import CredentialSource
from qo.store.s3.replies import refusal
from qo.store.s3.sign import Signer

CONNECT_TIMEOUT_S = 5.0
UNWANTED_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
AT_ONCE_MAX_BYTES = 2**20  # aiohttp sends larger bodies in pieces, so as not to block the event loop.
TIME_ASKED_MAX = 2  # The second reply confirms or refutes a first that surprised.
NO_HEADERS: Mapping[str, str] = {}


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]  # Read with any case.
    body: bytes


class _ConnectionLost(Exception):
    """Hides a lost connection from aiohttp, which would otherwise repeat the request."""


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise  # Nothing was sent.
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ConnectionLost(str(error)) from error


class Transport:
    """Use ``await Transport.open(...)``, and close it."""

    def __init__(
        self, place: Address, credentials: CredentialSource, session: aiohttp.ClientSession, ambient: Ambient
    ) -> None:
        self.place = place
        self._credentials = credentials
        self._session = session
        self._ambient = ambient
        self._monotonic = ambient.monotonic
        self._signer = Signer(place.host, place.region)
        self._offset: storetime.Offset | None = None
        self._asked_at = -inf  # When the time was last requested although it was known.
        self._date, self._second = "", 0.0
        self._owns_session = True

    @classmethod
    async def open(
        cls, place: Address, credentials: CredentialSource, *, connections: int, timeout_s: float, ambient: Ambient
    ) -> Transport:
        """Raises Unavailable if nothing answers at the endpoint."""
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=UNWANTED_HEADERS,
            # Silence is limited, not the whole: a request may wait for its turn, and a large body takes its time.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s),
        )
        transport = cls(place, credentials, session, ambient)
        try:
            await transport.time()
        except BaseException:
            await transport.close()
            raise
        return transport

    def signing_with(self, credentials: CredentialSource) -> Transport:
        """Return a transport over the same connections that signs with other credentials. Close this one last."""
        other = Transport(self.place, credentials, self._session, self._ambient)
        other._offset, other._owns_session = self._offset, False
        return other

    async def send(
        self,
        method: str,
        key: str,
        query: str = "",
        *,
        body: bytes = b"",
        headers: Mapping[str, str] = NO_HEADERS,
        once: bool = False,
    ) -> Reply:
        """Send a signed request. With ``once``, it is never sent a second time. Raises Unavailable if no reply came."""
        reply = await self._send(method, key, query, body=body, headers=headers, once=once)
        if reply.status == 403 and refusal(reply.body).code == "RequestTimeTooSkewed":
            # The refusal itself carries the time; this machine may have slept, and its monotonic clock with it.
            # That time dates the repetition; the reply to that shows whether to trust it.
            clock = self._offset.suspect if self._offset is not None else None
            reply = await self._send(method, key, query, body=body, headers=headers, once=once, dated_by=clock)
        return reply

    async def time(self) -> float:
        """Return the store's time in epoch seconds. Makes an unsigned request for it only if no reply was recent, if
        all replies took too long to tell the time, or if the last one suggested that the store's clock was set.

        Raises Unavailable if the time is unknown and the server fails.
        """
        status = 0
        for _ in range(TIME_ASKED_MAX):
            if self._offset is not None:
                at = self._monotonic()
                if self._offset.is_usable(at, asked_at=self._asked_at):
                    break
                self._asked_at = at
            headers = {"Host": self.place.host}
            status = (await self._exchange("HEAD", self.place.path(""), "", b"", headers, once=False)).status
        if self._offset is not None:
            return self._offset.store_time(self._monotonic())
        if status >= 500:
            raise Unavailable(f"{self.place.origin} answers {status} when asked for the time. Is it starting up?")
        raise StoreError(f"The replies of {self.place.origin} carry no Date header, which qo takes the time from")

    async def presign_url(self, method: str, key: str, *, expires_s: int) -> str:
        credentials, path = await self._credentials.current(), self.place.path(key)
        query = self._signer.presigned_query(credentials, method, path, expires_s=expires_s, at=await self.time())
        return f"{self.place.origin}{path}?{query}"

    async def close(self) -> None:
        if self._owns_session:
            await self._session.close()

    async def _send(
        self,
        method: str,
        key: str,
        query: str,
        *,
        body: bytes,
        headers: Mapping[str, str],
        once: bool,
        dated_by: storetime.Offset | None = None,
    ) -> Reply:
        path = self.place.path(key)
        credentials = await self._credentials.current()
        clock = dated_by or self._offset
        at = clock.store_time(self._monotonic()) if clock is not None else await self.time()
        signed = self._signer.headers(credentials, method, path, query, body, at=at)
        signed.update(headers)
        return await self._exchange(method, path, query, body, signed, once=once)

    async def _exchange(
        self, method: str, path: str, query: str, body: bytes, headers: Mapping[str, str], *, once: bool
    ) -> Reply:
        target = f"{self.place.origin}{path}?{query}" if query else f"{self.place.origin}{path}"
        sent_at = self._monotonic()
        try:
            async with self._session.request(
                method,
                URL(target, encoded=True),
                data=BytesIO(body) if len(body) > AT_ONCE_MAX_BYTES else body or None,
                headers=headers,
                allow_redirects=False,
                middlewares=(_send_once,) if once else None,
            ) as response:
                if response.status < 500:  # The date of a proxy or a failing server need not be the store's time.
                    self._learn_time(response.headers, sent_at)
                return Reply(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, OSError, _ConnectionLost) as error:
            why = str(error) or type(error).__name__
            if isinstance(error, aiohttp.ClientConnectorError):
                why = f"{why}. Is the server up, and S3_ENDPOINT right?"
            raise Unavailable(f"No answer to {method} {path} from {self.place.origin}: {why}") from error

    def _learn_time(self, headers: Mapping[str, str], sent_at: float) -> None:
        date = headers.get("Date")
        if date is None:
            return
        if date != self._date:
            try:
                self._second = parsedate_to_datetime(date).timestamp()
            except ValueError:
                return
            self._date = date
        received_at = self._monotonic()
        self._offset = storetime.observe(
            self._offset, sent_at=sent_at, received_at=received_at, second=self._second
        )
