"""Bad networks on loopback: proxies that delay requests, drop their conditions, or lose replies.

One of them changes with what it is told, while connections go through it.

Each runs in a process of its own, so that it takes no time from the event loop under measurement, and ends with
the process that started it, whose end of its standard input then closes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Literal, Self, cast

CONDITIONS = (b"if-match:", b"if-none-match:")


class Proxy:
    """A proxy that runs until it is closed. ``endpoint`` takes the place of the server's."""

    def __init__(self, kind: str, host: str, port: int, argument: float | int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, kind, host, str(port), str(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.host, self.port = "127.0.0.1", int(self._process.stdout.readline())
        self.endpoint = f"http://{self.host}:{self.port}"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LatencyProxy(Proxy):
    """Makes every request take ``delay_s`` longer."""

    def __init__(self, host: str, port: int, delay_s: float) -> None:
        super().__init__("latency", host, port, delay_s)


class HeaderDroppingProxy(Proxy):
    """Takes If-Match and If-None-Match off every request, as a server does that does not know them."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__("header-dropping", host, port)


class LostReplyProxy(Proxy):
    """Lets every nth conditional PUT through, and closes the connection instead of passing on the reply."""

    def __init__(self, host: str, port: int, every: int = 1) -> None:
        super().__init__("lost-reply", host, port, every)


Weather = Literal["fair", "drop", "slow", "cut"]


class FickleProxy(Proxy):
    """Fair until it is told otherwise.

    ``drop``: every connection ends, and none is made. ``slow``: whatever is sent waits. ``cut``: of every third
    piece of a reply one half comes through, and the connection ends.
    """

    def __init__(self, host: str, port: int, delay_s: float = 0.5) -> None:
        super().__init__("fickle", host, port, delay_s)

    def turn(self, weather: Weather) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{weather}\n".encode())
        self._process.stdin.flush()


class Upstream(asyncio.Protocol):
    """The connection to the server, on behalf of one client."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def data_received(self, data: bytes) -> None:
        self._link.answer(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.client.close()


class Link(asyncio.Protocol):
    """One client's connection. As it stands it passes everything on unchanged."""

    client: asyncio.Transport

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Transport | None = None
        self._early: list[bytes] = []  # What came before the server was connected.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.client = cast("asyncio.Transport", transport)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            server, _ = await asyncio.get_running_loop().create_connection(lambda: Upstream(self), *self._target)
        except OSError:
            self.client.abort()
            return
        self._server = server
        for data in self._early:
            server.write(data)
        if self.client.is_closing():
            server.close()

    def data_received(self, data: bytes) -> None:
        self.forward(data)

    def forward(self, data: bytes) -> None:
        if self._server is None:
            self._early.append(data)
        else:
            self._server.write(data)

    def answer(self, data: bytes) -> None:
        self.client.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._server is not None:
            self._server.close()


class DelayedLink(Link):
    def __init__(self, host: str, port: int, delay_s: float) -> None:
        super().__init__(host, port)
        self._delay_s = delay_s
        self._waiting: deque[bytes] = deque()

    def data_received(self, data: bytes) -> None:
        self._waiting.append(data)
        asyncio.get_running_loop().call_later(self._delay_s, self._forward_next)

    def _forward_next(self) -> None:
        self.forward(self._waiting.popleft())


class RequestLink(Link):
    """Sees whole requests: a head, up to and with its blank line, and a body."""

    _received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n") + 4) > 3:
            head = self._received[:end]
            total = end + content_length(head)
            if len(self._received) < total:
                return
            body, self._received = self._received[end:total], self._received[total:]
            self.request(head, body)

    def request(self, head: bytes, body: bytes) -> None:
        raise NotImplementedError


class HeaderDroppingLink(RequestLink):
    def request(self, head: bytes, body: bytes) -> None:
        kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(CONDITIONS)]
        self.forward(b"\r\n".join(kept) + body)


class LostReplyLink(RequestLink):
    seen = 0  # Conditional PUTs on all connections.
    _losing = False

    def __init__(self, host: str, port: int, every: int) -> None:
        super().__init__(host, port)
        self._every = every

    def request(self, head: bytes, body: bytes) -> None:
        lines = head.lower().split(b"\r\n")
        if lines[0].startswith(b"put ") and any(line.startswith(CONDITIONS) for line in lines):
            LostReplyLink.seen += 1
            self._losing = LostReplyLink.seen % self._every == 0
        self.forward(head + body)

    def answer(self, data: bytes) -> None:
        if self._losing:
            self.client.abort()
        else:
            super().answer(data)


class FickleLink(Link):
    weather: ClassVar[str] = "fair"  # The same for all.
    links: ClassVar[set[FickleLink]] = set()
    answered: ClassVar[int] = 0

    def __init__(self, host: str, port: int, delay_s: float) -> None:
        super().__init__(host, port)
        self._delay_s = delay_s
        self._waiting: deque[bytes] = deque()

    @classmethod
    def turn(cls, weather: str) -> None:
        cls.weather = weather
        if weather == "drop":
            for each in list(cls.links):
                each.client.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.links.add(self)
        if self.weather == "drop":
            self.client.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.links.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.weather != "slow" and not self._waiting:
            self.forward(data)
            return
        self._waiting.append(data)
        asyncio.get_running_loop().call_later(self._delay_s, self._forward_next)

    def _forward_next(self) -> None:
        self.forward(self._waiting.popleft())

    def answer(self, data: bytes) -> None:
        FickleLink.answered += 1
        if self.weather == "cut" and self.answered % 3 == 0:
            self.client.write(data[: len(data) // 2])
            self.client.close()  # What was written still goes out.
        elif not self.client.is_closing():
            self.client.write(data)


def content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve(make_link: Callable[[], Link]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(make_link, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    parent_gone = asyncio.Event()

    def told() -> None:
        words = os.read(sys.stdin.fileno(), 4096).decode().split()
        if words:
            FickleLink.turn(words[-1])
        else:
            parent_gone.set()

    loop.add_reader(sys.stdin.fileno(), told)
    await parent_gone.wait()


def main(kind: str, host: str, port: str, argument: str) -> None:
    links: dict[str, Callable[[], Link]] = {
        "latency": lambda: DelayedLink(host, int(port), float(argument)),
        "header-dropping": lambda: HeaderDroppingLink(host, int(port)),
        "fickle": lambda: FickleLink(host, int(port), float(argument)),
        "lost-reply": lambda: LostReplyLink(host, int(port), int(argument)),
    }
    asyncio.run(serve(links[kind]))


if __name__ == "__main__":
    main(*sys.argv[1:])
