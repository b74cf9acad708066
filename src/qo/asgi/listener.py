"""A listener: a bound socket, and the server on it."""

from __future__ import annotations

import errno
import re
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette

from qo.asgi.protocol import PatientProtocol
from qo.errors import ConfigError

KEEP_ALIVE_S = 30  # A worker's connection is idle between heartbeats.
FINISH_S = 10  # For requests that are being answered when the server stops.
LOOPBACK = "127.0.0.1"


def build_server(app: Starlette, protocol: type[PatientProtocol]) -> uvicorn.Server:
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


def bind(address: str, setting: str) -> socket.socket:
    """Return a socket bound to "host:port"; port 0 is any free port. Raises ConfigError that names the setting."""
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


def url_of(bound: socket.socket) -> str:
    """Return the URL of a bound socket, with the actual port where port 0 was set."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
