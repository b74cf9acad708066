"""The two listeners of a dispatcher, for people and for workers and tasks, in one event loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette

from qo.config.dispatcher import DispatcherSettings
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.apps import internal_app, public_app
from qo.dispatcher.http.protocol import PatientProtocol, choose_protocol
from qo.errors import ConfigError

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 30  # A worker's connection is idle between heartbeats.
FINISH_S = 10  # For requests that are being answered when the dispatcher stops.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The URLs of the two listeners, with the actual port where port 0 was set."""

    public: str
    internal: str


async def serve(
    context: Context,
    settings: DispatcherSettings,
    stop: asyncio.Event,
    on_start: Callable[[Addresses], None] | None = None,
) -> None:
    """Serve until ``stop``, then finish the requests that are being answered.

    Raises ConfigError if an address cannot be listened on; nothing is served then.
    """
    public_socket = _bind(settings.listen, "dispatcher.listen")
    try:
        internal_socket = _bind(settings.internal_listen, "dispatcher.internal_listen")
    except ConfigError:
        public_socket.close()
        raise
    addresses = Addresses(_url(public_socket), _url(internal_socket))
    protocol = choose_protocol(settings.coalesce_writes)
    listeners = (
        (_server(public_app(context), protocol), public_socket),
        (_server(internal_app(context), protocol), internal_socket),
    )
    for server, bound in listeners:
        await server.startup([bound])
    log.info("serving people at %s, workers at %s", addresses.public, addresses.internal)
    if on_start is not None:
        on_start(addresses)
    await stop.wait()
    await asyncio.gather(*(server.shutdown([bound]) for server, bound in listeners))


def _server(app: Starlette, protocol: type[PatientProtocol]) -> uvicorn.Server:
    """Build a server to be started and stopped by us: its own ``serve`` handles signals, which are the process's, and
    polls ten times a second whether to stop."""
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,  # Logging is set up already.
        access_log=False,  # Paths may hold what callers would rather not have in a log.
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FINISH_S,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


def _bind(address: str, setting: str) -> socket.socket:
    try:
        family, place = _resolve(address)
        # With the protocol named: asyncio sets TCP_NODELAY only on such sockets. Without it the second packet of a
        # response would wait 40 ms for the client to acknowledge the first.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
        except OSError:
            bound.close()
            raise
    except (OSError, ValueError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "something else listens there" if in_use else str(getattr(error, "strerror", None) or error)
        raise ConfigError(f"cannot serve at {address!r}: {reason}; set {setting} to a free host:port") from None
    return bound


def _resolve(address: str) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("that is no host:port")
    family, _, _, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    return family, place


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
