"""A small HTTP/1.1 server on loopback, for a browser and its dozens of small requests.

Connections are kept, and each is a task of the event loop, so a browser may have as many as it likes under way. Bodies
have a length; nothing is streamed, and a body is read only after its head was admitted. What listens for status pages
(``qo.worker.observe.listener``) closes after each answer, which is right for strangers and slow for a page.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import TypeVar

from qo.errors import ConfigError

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
HEAD_BYTES_MAX = 32_768
BODY_BYTES_MAX = 16 * 2**20
IDLE_S = 75.0  # A connection without a request under way is kept so long.
SLOW_S = 30.0  # Within which a request, once begun, has to be there.
CONNECTIONS_MAX = 128
DISCARDED_BYTES_MAX = 65_536  # So much of a refused body is read and thrown away, to keep the connection.

_LINE = re.compile(r"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.([01])\Z")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a request before its body is read."""

    method: str
    path: str  # As it came, not decoded.
    query: str
    headers: Mapping[str, str]  # Names in lower case.


@dataclass(frozen=True, slots=True)
class Request(Head):
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Handler = Callable[[Request], Awaitable[Reply]]
Admit = Callable[[Head], Awaitable[Reply | None]]


async def _admit_all(_: Head) -> Reply | None:
    return None


_Answer = TypeVar("_Answer", bound=Reply | None)


class _Malformed(Exception):
    """Not HTTP as we speak it; the status says in what way."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Server:
    """Use ``await Server.open(...)``, and close it.

    ``admit`` is asked with the head of each request: its refusal, or None. The body of a refused one is never kept.
    """

    def __init__(self, handler: Handler, admit: Admit = _admit_all) -> None:
        self._handler = handler
        self._admit = admit
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @classmethod
    async def open(cls, handler: Handler, port: int = 0, *, admit: Admit = _admit_all) -> Server:
        """Listens on loopback alone; port 0: any free one. Raises ConfigError for a port that is taken."""
        made = cls(handler, admit)
        try:
            made._server = await asyncio.start_server(made._accept, LOOPBACK, port, limit=HEAD_BYTES_MAX)
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            reason = "something else listens there" if taken else str(error)
            raise ConfigError(
                f"cannot serve at {LOOPBACK}:{port}: {reason}; choose another port with --port"
            ) from None
        made.port = made._server.sockets[0].getsockname()[1]
        return made

    async def close(self) -> None:
        """Free the port, and hang up."""
        assert self._server is not None
        self._server.close()
        for each in self._connections:
            each.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # It has hung up, or has nothing more to say.
        except asyncio.CancelledError:
            pass  # We are closing; asyncio would log who was cancelled.
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = True
        while kept:
            head = None
            try:
                head, kept = await _receive_head(reader)
                length = body_length(head.headers)
                reply = await self._guarded(head, self._admit(head))
                if reply is None:
                    request = await _receive_body(reader, writer, head, length)
                    reply = await self._guarded(head, self._handler(request))
                else:
                    kept = kept and await _discard_body(reader, head, length)
            except _Malformed as error:
                reply, kept = Reply(error.status, f"{error}\n".encode()), False
            bodiless = head is not None and head.method == "HEAD"
            writer.write(_encoded(reply, kept=kept, bodiless=bodiless))
            async with asyncio.timeout(SLOW_S):
                await writer.drain()

    async def _guarded(self, head: Head, answering: Awaitable[_Answer]) -> _Answer | Reply:
        try:
            return await answering
        except Exception:
            log.exception("cannot answer %s %s", head.method, head.path)
            return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"this went wrong; the log says why\n")


async def _receive_head(reader: asyncio.StreamReader) -> tuple[Head, bool]:
    """The head of the next request, and whether the connection is to be kept after it."""
    async with asyncio.timeout(IDLE_S):
        first = await reader.readexactly(1)
    async with asyncio.timeout(SLOW_S):
        try:
            lines = first + await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise _Malformed(431, "the head of the request is too long") from None
    method, target, minor, headers = _head(lines)
    wish = headers.get("connection", "").lower()
    kept = "close" not in wish and (minor == "1" or "keep-alive" in wish)
    path, _, query = target.partition("?")
    return Head(method, path, query, headers), kept


async def _receive_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: Head, length: int
) -> Request:
    if _waits_to_send(head):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    async with asyncio.timeout(SLOW_S):  # For the whole body, however many pieces it comes in.
        body = await reader.readexactly(length)
    return Request(head.method, head.path, head.query, head.headers, body)


async def _discard_body(reader: asyncio.StreamReader, head: Head, length: int) -> bool:
    """Whether the next request can be found after the body of a refused one."""
    if length > DISCARDED_BYTES_MAX or _waits_to_send(head):
        return False
    async with asyncio.timeout(SLOW_S):
        await reader.readexactly(length)
    return True


def _waits_to_send(head: Head) -> bool:
    return head.headers.get("expect", "").lower() == "100-continue"


def _head(head: bytes) -> tuple[str, str, str, dict[str, str]]:
    line, *rest = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    found = _LINE.match(line)
    if found is None:
        raise _Malformed(400, "this is no request of HTTP/1.1")
    headers: dict[str, str] = {}
    for each in rest:
        name, colon, value = each.partition(":")
        # A line that continues the one before, or a name with a space, is read differently by different programs.
        if not colon or not _NAME.match(name):
            raise _Malformed(400, "a header is malformed")
        name, value = name.lower(), value.strip(" \t")
        if name in headers and name in ("host", "content-length", "authorization", "origin"):
            raise _Malformed(400, f"there is more than one {name} header")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return found[1], found[2], found[3], headers


def body_length(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise _Malformed(501, "a body needs a Content-Length here")
    length = headers.get("content-length", "0")
    if not re.fullmatch("[0-9]{1,12}", length):
        raise _Malformed(400, "the Content-Length is no number")
    if int(length) > BODY_BYTES_MAX:
        raise _Malformed(413, f"the body is larger than {BODY_BYTES_MAX} bytes")
    return int(length)


def _encoded(reply: Reply, *, kept: bool, bodiless: bool) -> bytes:
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = ""
    empty = reply.status in (204, 304)
    headers = {"Server": "qo", "Date": formatdate(usegmt=True), **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    if not empty:
        lines.append(f"Content-Length: {len(reply.body)}")
    lines.append(f"Connection: {'keep-alive' if kept else 'close'}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head if bodiless or empty else head + reply.body
