"""The server itself: connections as tasks of one event loop, each with limits on time and size.

A client that is slow costs others nothing. Every step that waits for a client has a time limit, the number of
connections is bounded, and when it is reached, the connection that has waited longest gives way.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from qo.http_server.messages import (
    Head,
    Malformed,
    Reply,
    Request,
    awaits_continue,
    body_length,
    encode_reply,
    parse_head,
)

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 32_768
DISCARDED_BYTES_MAX = 65_536  # So much of a refused body is read and dropped, to keep the connection usable.
GIVES_WAY_AFTER_S = 0.2  # A client that keeps the server waiting for longer may be disconnected for another one.

Handler = Callable[[Request], Awaitable[Reply]]
Admit = Callable[[Head], Awaitable[Reply | None]]
_Answer = TypeVar("_Answer", bound=Reply | None)


@dataclass(frozen=True, slots=True)
class Limits:
    idle_s: float = 75.0  # How long a connection without a request is kept.
    step_s: float = 30.0  # Within which a head, a body, and the taking of a reply must each be over.
    keep_alive: bool = True  # False: each connection serves one request.
    connections_max: int = 128


async def _admit_all(_: Head) -> Reply | None:
    return None


class Server:
    """Use ``await Server.open(...)``, and close it."""

    def __init__(self, handler: Handler, admit: Admit, limits: Limits) -> None:
        self._handler = handler
        self._admit = admit
        self._limits = limits
        self._connections: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], float] = {}  # For their client, and since when; longest first.
        self._server: asyncio.Server | None = None
        self.port = 0

    @classmethod
    async def open(
        cls,
        handler: Handler,
        listening: socket.socket,
        *,
        admit: Admit = _admit_all,
        limits: Limits = Limits(),  # noqa: B008 - It is frozen.
    ) -> Server:
        """Serve on a socket (``listening.listen``), which the server closes at its end.

        ``admit`` sees the head of each request before the body is read. It returns a refusal, whose body is never
        kept, or None: then ``handler`` gets the whole request.
        """
        server = cls(handler, admit, limits)
        server._server = await asyncio.start_server(server._accept, sock=listening, limit=HEAD_BYTES_MAX)
        server.port = listening.getsockname()[1]
        return server

    async def close(self) -> None:
        """Free the port, and disconnect every client."""
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        if len(self._connections) >= self._limits.connections_max and not self._disconnect_slowest():
            writer.close()
            return
        self._connections.add(connection)
        writer.transport.set_write_buffer_limits(high=0)  # So that ``drain`` waits for the whole reply.
        try:
            await self._serve(reader, writer)
            writer.close()
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # The client has disconnected, or is too slow.
        except asyncio.CancelledError:
            pass  # The server is closing or needs the place; asyncio would log a cancelled task.
        finally:
            self._connections.discard(connection)
            writer.transport.abort()  # Nothing of a finished reply is left to send.
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    def _disconnect_slowest(self) -> bool:
        connection, since = next(iter(self._waiting.items()), (None, 0.0))
        if connection is None or asyncio.get_running_loop().time() - since < GIVES_WAY_AFTER_S:
            return False
        del self._waiting[connection]
        connection.cancel()
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        keep_alive = True
        while keep_alive:
            head = None
            try:
                head, may_keep = parse_head(await self._read_head(reader))
                keep_alive = may_keep and self._limits.keep_alive
                length = body_length(head.headers)
                reply = await self._guard(head, self._admit(head))
                if reply is None:
                    request = await self._read_body(reader, writer, head, length)
                    reply = await self._guard(head, self._handler(request))
                else:
                    keep_alive = await self._discard_body(reader, head, length) and keep_alive
            except Malformed as error:
                reply, keep_alive = Reply(error.status, f"{error}\n".encode()), False
            without_body = head is not None and head.method == "HEAD"
            async with self._client_has(self._limits.step_s):
                writer.write(encode_reply(reply, keep_alive=keep_alive, without_body=without_body))
                await writer.drain()

    @asynccontextmanager
    async def _client_has(self, seconds: float) -> AsyncGenerator[None]:
        """Wait for the client, at most so long in all: a limit per read would begin anew with each byte."""
        connection, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert connection is not None
        self._waiting[connection] = loop.time()
        try:
            async with asyncio.timeout(seconds):
                yield
        finally:
            self._waiting.pop(connection, None)

    async def _guard(self, head: Head, answer: Awaitable[_Answer]) -> _Answer | Reply:
        try:
            return await answer
        except Exception:
            log.exception("cannot answer %s %s", head.method, head.path)
            return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"this went wrong; the log says why\n")

    async def _read_head(self, reader: asyncio.StreamReader) -> bytes:
        async with self._client_has(self._limits.idle_s):
            head = await reader.readexactly(1)
        async with self._client_has(self._limits.step_s):
            try:
                head += await reader.readuntil(b"\r\n")
            except asyncio.LimitOverrunError:
                raise Malformed(414, "the request line is too long") from None
            while not head.endswith(b"\r\n\r\n"):
                try:
                    head += await reader.readuntil(b"\r\n")
                except asyncio.LimitOverrunError:
                    raise Malformed(431, "a header is too long") from None
                if len(head) > HEAD_BYTES_MAX:
                    raise Malformed(431, "the head of the request is too long")
        return head

    async def _read_body(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: Head, length: int
    ) -> Request:
        async with self._client_has(self._limits.step_s):
            if awaits_continue(head):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(length)
        return Request(head.method, head.path, head.query, head.headers, body)

    async def _discard_body(self, reader: asyncio.StreamReader, head: Head, length: int) -> bool:
        """Read past the body of a refused request; False if that is too much, so that the connection must end.

        To close with something unread would reset the connection, and the reply could be lost.
        """
        if length > DISCARDED_BYTES_MAX or awaits_continue(head):
            return False
        async with self._client_has(self._limits.step_s):
            await reader.readexactly(length)
        return True
