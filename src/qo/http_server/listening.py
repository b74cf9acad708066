"""Sockets that listen, and addresses as settings spell them."""

from __future__ import annotations

import errno
import re
import socket
from contextlib import suppress

from qo.errors import ConfigError

LOOPBACK = "127.0.0.1"
BACKLOG = 64


def listen(address: str, *, what: str, remedy: str) -> socket.socket:
    """Return a socket that listens at "host:port"; without a host, for this machine only. Port 0 is any free port.

    Raises ConfigError if that is impossible, naming ``what`` was to be served, and the ``remedy``.
    """
    try:
        return _bind(address)
    except (OSError, ValueError) as error:  # A host name that cannot be encoded is a ValueError.
        raise ConfigError(f"cannot serve {what} at {address!r}: {_reason(error)}; {remedy}") from error


def address_of(listening: socket.socket) -> str:
    """Return the address of a socket as "host:port", with the port that was found for port 0."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if listening.family is socket.AF_INET6 else f"{host}:{port}"


def _bind(address: str) -> socket.socket:
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("that is not host:port")
    family, _, _, _, resolved = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Not SO_REUSEPORT: two processes at one port would answer for each other.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(resolved)
        listening.listen(BACKLOG)
    except BaseException:
        with suppress(OSError):
            listening.close()
        raise
    return listening


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "something else listens there"
    return str(getattr(error, "strerror", None) or error)
