"""HTTP/1.1 messages as values: parsing the head of a request, encoding a reply.

The parser is strict. What two programs could read differently (folded lines, repeated Host headers, a chunked body)
is refused as Malformed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

BODY_BYTES_MAX = 16 * 2**20
HEADERS_MAX = 100

_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (\*|/[\x21-\x7e]*) HTTP/([0-9])\.([0-9])\Z")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_ONCE = frozenset({"host", "content-length", "authorization", "origin"})


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body."""

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


class Malformed(Exception):
    """A request that is not HTTP/1.1 as this server understands it. Carries the status of the reply."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse_head(head: bytes) -> tuple[Head, bool]:
    """Return the head of a request, and whether the client wants to keep the connection. Raises Malformed."""
    line, *header_lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    match = _REQUEST_LINE.match(line)
    if match is None:
        raise Malformed(400, "not an HTTP/1.1 request line")
    method, target, major, minor = match.groups()
    if major != "1":
        raise Malformed(505, "only HTTP/1.0 and HTTP/1.1 are served")
    headers = _parse_headers(header_lines)
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection and (minor != "0" or "keep-alive" in connection)
    path, _, query = target.partition("?")
    return Head(method, path, query, headers), keep_alive


def _parse_headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > HEADERS_MAX:
        raise Malformed(431, f"more than {HEADERS_MAX} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        # A line that continues the one before, or a name with a space, is read differently by different programs.
        if not colon or not _HEADER_NAME.match(name):
            raise Malformed(400, "a header is malformed")
        name, value = name.lower(), value.strip(" \t")
        if name in headers and name in _ONCE:
            raise Malformed(400, f"there is more than one {name} header")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def body_length(headers: Mapping[str, str]) -> int:
    """Return the length of the body that these headers announce. Raises Malformed if it cannot be read."""
    if "transfer-encoding" in headers:
        raise Malformed(501, "a body needs a Content-Length here")
    length = headers.get("content-length", "0")
    if not re.fullmatch("[0-9]{1,12}", length):
        raise Malformed(400, "the Content-Length is not a number")
    if int(length) > BODY_BYTES_MAX:
        raise Malformed(413, f"the body is larger than {BODY_BYTES_MAX} bytes")
    return int(length)


def awaits_continue(head: Head) -> bool:
    """Whether the client sends the body only after "100 Continue"."""
    return head.headers.get("expect", "").lower() == "100-continue"


def encode_reply(reply: Reply, *, keep_alive: bool, without_body: bool) -> bytes:
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = ""
    empty = reply.status in (204, 304)
    headers = {"Server": "qo", "Date": formatdate(usegmt=True), **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    if not empty:
        lines.append(f"Content-Length: {len(reply.body)}")
    lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head if without_body or empty else head + reply.body
