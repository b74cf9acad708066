"""A small HTTP server for a handful of pages, read by strangers.

Each client has a few seconds to say what it wants, and to take it. There is a bounded number of them at a time, and
when there is no room, the one that has dawdled longest goes: a client that hangs costs nobody else an answer.
"""

from __future__ import annotations

import errno
import logging
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from qo.errors import ConfigError

log = logging.getLogger(__name__)

THREADS_MAX = 16
CLIENT_TIMEOUT_S = 5.0
LOOPBACK = "127.0.0.1"

_TICK_S = 0.5  # How often it is seen to it that no client takes too long.
_REST_S = 0.1
_DAWDLE_S = 0.2  # Who keeps us waiting longer gives way to others.
_ROOM_TRIES = 10
_BODY_BYTES_MAX = 65_536
_TEXT = "text/plain; charset=utf-8"
_BUSY = b"too many requests at a time\n"
_REFUSAL = (
    b"HTTP/1.0 503 Service Unavailable\r\nServer: qo\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Retry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(_BUSY), _BUSY)
)


@dataclass(frozen=True, slots=True)
class Reply:
    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    timeout = _TICK_S
    allow_reuse_port = False  # Two workers at one port would answer for each other.

    def __init__(
        self,
        address: str,
        pages: Mapping[str, Callable[[], Reply]],
        *,
        client_timeout_s: float = CLIENT_TIMEOUT_S,
    ) -> None:
        """Listens at "host:port", without a host only for this machine. Pages by path; any thread may call them.

        Raises ConfigError if the address cannot be listened on.
        """
        self.pages = pages
        self.client_timeout_s = client_timeout_s
        self._room = threading.BoundedSemaphore(THREADS_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="qo-listener", daemon=True)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._awaited: dict[socket.socket, float] = {}  # Whom we wait for, to speak or to listen, and since when.
        try:
            self.address_family, host, port = _resolved(address)
            super().__init__((host, port), _Exchange)
        except (OSError, ValueError) as error:  # A host name that cannot be encoded is a ValueError.
            raise ConfigError(_unusable(address, error)) from error

    @property
    def at(self) -> str:
        """The address as "host:port", with the port that was found for port 0."""
        host = f"[{self.server_name}]" if self.address_family is socket.AF_INET6 else self.server_name
        return f"{host}:{self.server_port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Free the port, and hang up on whoever is there."""
        self._stopping.set()
        with suppress(OSError):  # A knock at the own door, so that it does not wait for the next client or tick.
            socket.create_connection((self.server_name, self.server_port), timeout=_TICK_S).close()
        self._thread.join()
        self.server_close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.handle_request()
            self._hurry()

    def verify_request(self, request: object, client_address: object) -> bool:
        return not self._stopping.is_set()

    def server_bind(self) -> None:
        # The stdlib's would look up the full name of the host, which can take as long as a name server likes.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(_REST_S)  # No file descriptor is left, as a rule: the next try would fail at once.
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._made_room():
            _refuse(request)
            self.close_request(request)
            return
        with self._lock:
            self._open.add(request)
            self._awaited[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # No thread could be started.
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
            self._awaited.pop(request, None)
        super().shutdown_request(request)

    def heard(self, request: socket.socket) -> None:
        """The client has asked: now it waits for us."""
        with self._lock:
            self._awaited.pop(request, None)

    def replying(self, request: socket.socket) -> None:
        with self._lock:
            self._awaited[request] = time.monotonic()

    def _hurry(self) -> None:
        """Cut off who takes too long in all: a timeout of the socket begins anew with each byte."""
        since = time.monotonic() - self.client_timeout_s
        with self._lock:
            for request in [each for each, begun in self._awaited.items() if begun < since]:
                self._cut_off(request)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for request in self._open:
                self._cut_off(request)

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a status request of %s broke off", client_address, exc_info=True)

    def _made_room(self) -> bool:
        if self._room.acquire(blocking=False):
            return True
        for _ in range(_ROOM_TRIES):
            with self._lock:
                slowest, since = next(iter(self._awaited.items()), (None, 0.0))
                if slowest is not None and since < time.monotonic() - _DAWDLE_S:
                    self._cut_off(slowest)
            if self._room.acquire(timeout=_REST_S):
                return True
        return False

    def _cut_off(self, request: socket.socket) -> None:
        """Its thread then finds the connection at its end, and closes."""
        self._awaited.pop(request, None)
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _Exchange(BaseHTTPRequestHandler):
    """One request and its reply. Connections are not kept (HTTP/1.0): they would keep threads."""

    error_message_format = "%(code)d %(message)s\n"
    error_content_type = _TEXT

    @property
    def _listener(self) -> Listener:
        assert isinstance(self.server, Listener)
        return self.server

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self._listener.client_timeout_s)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False  # It has been told why.
        length = self.headers.get("Content-Length", "")
        if re.fullmatch("[0-9]{1,9}", length):
            # Closing with something unread would reset the connection, and the reply could be lost.
            self.rfile.read(min(int(length), _BODY_BYTES_MAX))
        self._listener.heard(self.connection)
        if self.command in ("GET", "HEAD"):
            return True
        self._send(Reply(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n"), Allow="GET, HEAD")
        return False

    def do_GET(self) -> None:
        self._send(self._reply())

    def do_HEAD(self) -> None:
        self._send(self._reply())

    def _reply(self) -> Reply:
        pages = self._listener.pages
        if (page := pages.get(self.path.partition("?")[0])) is None:
            return Reply(HTTPStatus.NOT_FOUND, f"there is only: {' '.join(pages)}\n".encode())
        try:
            return page()
        except Exception:
            log.exception("cannot answer %r", self.path)
            return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"this went wrong; see the log of the worker\n")

    def _send(self, reply: Reply, **headers: str) -> None:
        self._listener.replying(self.connection)
        self.send_response(reply.status)
        headers = {
            "Content-Type": reply.content_type,
            "Content-Length": str(len(reply.body)),
            "Cache-Control": "no-store",
            "Connection": "close",
            **headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def version_string(self) -> str:
        return "qo"

    def log_message(self, format: str, *args: object) -> None:
        log.debug("%s: %r", self.address_string(), format % args)


def _refuse(request: socket.socket) -> None:
    request.settimeout(0.05)
    with suppress(OSError):
        request.recv(_BODY_BYTES_MAX)  # What is unread when we close would take the reply with it.
    with suppress(OSError):
        request.sendall(_REFUSAL)
        request.shutdown(socket.SHUT_WR)


def _resolved(address: str) -> tuple[socket.AddressFamily, str, int]:
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("that is no host:port")
    family, _, _, _, found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    return family, str(found[0]), int(port)


def _unusable(address: str, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        reason = "something else listens there"
    else:
        reason = str(getattr(error, "strerror", None) or error)
    return (
        f"cannot serve the worker's status at {address!r}: {reason}; set worker.http to a free address, or to off"
    )
