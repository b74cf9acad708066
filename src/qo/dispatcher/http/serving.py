"""Both listeners of a dispatcher: one for people, one for workers and tasks, in one event loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from qo.config.dispatcher import DispatcherSettings
from qo.dispatcher.http.app import internal_app, public_app
from qo.dispatcher.http.context import Context
from qo.errors import ConfigError

log = logging.getLogger(__name__)

HEADERS_S = 10.0  # To say what one wants, from the first byte to the last header.
KEEP_ALIVE_S = 30  # A worker's connection rests between heartbeats.
FINISH_S = 10  # What is being answered when we stop may take so long.
TOGETHER_MAX = 16_384  # Bytes that wait for those that follow.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the two are served, as URLs, with the port that was found for port 0."""

    public: str
    internal: str


async def serve(
    context: Context,
    settings: DispatcherSettings,
    stop: asyncio.Event,
    on_start: Callable[[Addresses], None] | None = None,
) -> None:
    """Serve until ``stop``, then finish what is being answered.

    Raises ConfigError if an address cannot be listened on; nothing is served then.
    """
    outside = _bound(settings.listen, "dispatcher.listen")
    try:
        inside = _bound(settings.internal_listen, "dispatcher.internal_listen")
    except ConfigError:
        outside.close()
        raise
    addresses = Addresses(_url(outside), _url(inside))
    pairs = ((_server(public_app(context), stop), outside), (_server(internal_app(context), stop), inside))
    async with asyncio.TaskGroup() as group:
        for server, bound in pairs:
            group.create_task(server.serve(sockets=[bound]))
        group.create_task(_announce([server for server, _ in pairs], addresses, on_start))


async def _announce(
    servers: list[_Server], addresses: Addresses, on_start: Callable[[Addresses], None] | None
) -> None:
    for server in servers:
        await server.accepting.wait()
    log.info("serving people at %s, workers at %s", addresses.public, addresses.internal)
    if on_start is not None:
        on_start(addresses)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, stop: asyncio.Event) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # Once is enough: no header of ours changes.
        await self._stop.wait()  # Uvicorn would look ten times a second.

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield  # Signals are the process's; it sets the event.


class _Together:
    """A transport that sends at once what is written in one turn of the loop. Uvicorn writes the head of an answer and
    its body one after the other, and each would be a packet, to be sent here and to be woken for there."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._send)
        self._held.append(data)
        if len(data) > TOGETHER_MAX:
            self._send()  # Nothing is won, and whoever writes more has to hear that it is too much.

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._held:
            held, self._held = b"".join(self._held), []
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Protocol(H11Protocol):
    """Gives up clients that do not say what they want. Uvicorn itself would wait for them for ever."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        together: Any = _Together(transport, self.loop)
        super().connection_made(together)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def _watch(self) -> None:
        current: Any = self.cycle
        if current is not None and not current.response_complete:
            self._calm()
        elif self._patience is None:
            self._patience = self.loop.call_later(HEADERS_S, self.transport.close)

    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _server(app: Starlette, stop: asyncio.Event) -> _Server:
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,  # Ours is set up already.
        access_log=False,  # Paths may hold what callers would rather not have in a log.
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FINISH_S,
    )
    return _Server(config, stop)


def _bound(address: str, setting: str) -> socket.socket:
    try:
        family, place = _resolved(address)
        # Named, for only of such sockets asyncio knows that they should send at once: an answer's body would else wait
        # for 40 ms until the client has acknowledged its head.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
        except OSError:
            bound.close()
            raise
    except (OSError, ValueError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "something else listens there" if taken else str(getattr(error, "strerror", None) or error)
        raise ConfigError(f"cannot serve at {address!r}: {reason}; set {setting} to a free host:port") from None
    return bound


def _resolved(address: str) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("that is no host:port")
    family, _, _, _, found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    return family, found


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
