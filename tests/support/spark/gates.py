"""A gate between a worker and its dispatcher, which a test closes at the moment of a commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.servers.proxies import RequestLink


class Gate:
    """Between a worker and its dispatcher. Closed, it keeps what is to be committed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.closed = False
        self.seen, self.missed = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: GateLink(self, self._port), "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()


class GateLink(RequestLink):
    def __init__(self, gate: Gate, port: int) -> None:
        super().__init__("127.0.0.1", port)
        self._gate = gate

    async def _connect(self) -> None:
        await super()._connect()
        if self._server is None:
            self._gate.missed.set()

    def request(self, head: bytes, body: bytes) -> None:
        if self._gate.closed and head.startswith(b"POST /v1/task/commit "):
            self._gate.seen.set()
        else:
            self.forward(head + body)
