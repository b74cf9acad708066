"""A server that answers as a test tells it to, for what real servers do only on bad days."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate

CLOSE = b"close"  # Close the connection instead of answering.
SILENCE = b"silence"  # Never answer.


class ScriptedServer:
    """Answers HEAD requests with 200, and other requests with what ``answers`` says, one after the other."""

    def __init__(self, answers: Sequence[bytes], head: Callable[[int], bytes]) -> None:
        self.requests: list[bytes] = []  # First the method, and then all that was sent; without HEAD requests.
        self.endpoint = ""
        self.asked = 0  # How many HEAD requests there were.
        self._answers = iter(answers)
        self.head = head

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (answer := await self._answer(reader)) is not CLOSE:
                if answer is SILENCE:
                    await reader.read()
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client has gone.
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"HEAD "):
            self.asked += 1
            return self.head(self.asked)
        lines = head.lower().split(b"\r\n")
        length = sum(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        self.requests.append(head + await reader.readexactly(length))
        return next(self._answers)


def answer(status: int, *headers: str, code: str = "", body: str = "", date: float | None = None) -> bytes:
    """A reply. The date is that of the real clock unless given in epoch seconds."""
    body = f"<Error><Code>{code}</Code></Error>" if code else body
    lines = [f"HTTP/1.1 {status} Said", f"Date: {formatdate(date, usegmt=True)}", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()


@asynccontextmanager
async def scripted_server(
    *answers: bytes, head: bytes | Callable[[int], bytes] | None = None
) -> AsyncIterator[ScriptedServer]:
    """``head`` is the answer to every HEAD request, or makes the one to the n-th."""
    if head is None or isinstance(head, bytes):
        always = head

        def head(_: int) -> bytes:
            return always or answer(200)

    script = ScriptedServer(answers, head)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield script
    finally:
        server.close()
