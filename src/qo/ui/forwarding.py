"""The dispatcher's API for people, on the origin of the page: so that no other origin has to be let in.

The page shows a token that was drawn for it, and the request goes on with the real one, which never leaves this
process. Giving out tokens is no business of a page, so those routes end here.

Where no dispatcher is named, its routes are asked in this process, as commands do (``Inside``).
"""

from __future__ import annotations

import asyncio
import hmac
import http.client
import json
import re
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from qo.ui.server import Reply, Request

ROOT = "/v1/"
ANSWER_S = 30.0
ANSWER_BYTES_MAX = 64 * 2**20

_PASSED = ("accept", "content-type", "idempotency-key")
_RETURNED = ("content-type", "retry-after")


class Dispatcher(Protocol):
    async def ask(self, request: Request) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Upstream:
    """A dispatcher elsewhere: where it is, and what it is shown."""

    url: str
    token: str | None = field(repr=False)

    async def ask(self, request: Request) -> Reply:
        try:
            return await asyncio.to_thread(self._ask, request)
        except (OSError, http.client.HTTPException) as error:
            said = f"the dispatcher at {self.url} does not answer: {error or type(error).__name__}"
            return _problem(503, "unavailable", said)

    def _ask(self, request: Request) -> Reply:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=ANSWER_S)
        try:
            target = parts.path.rstrip("/") + _target(request)
            headers = _passed(request, self.token)
            connection.request(request.method, target, body=request.body or None, headers=headers)
            answer = connection.getresponse()
            return _returned(answer.status, answer.headers, answer.read(ANSWER_BYTES_MAX))
        finally:
            connection.close()


class Inside:
    """The routes of a dispatcher, in this process: ``app`` is its ASGI application, ``token`` one that it knows."""

    def __init__(self, app: Any, token: str) -> None:
        import httpx

        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://qo", timeout=ANSWER_S)
        self._token = token

    async def ask(self, request: Request) -> Reply:
        headers = _passed(request, self._token)
        answer = await self._client.request(
            request.method, _target(request), content=request.body or None, headers=headers
        )
        return _returned(answer.status_code, answer.headers, answer.content)


class Forwarding:
    def __init__(self, dispatcher: Dispatcher, token: str, *, read_only: bool) -> None:
        self._dispatcher = dispatcher
        self._token = token
        self._read_only = read_only

    async def answer(self, request: Request) -> Reply:
        shown = request.headers.get("authorization", "")
        if not hmac.compare_digest(shown.encode(), f"Bearer {self._token}".encode()):
            said = "the page's token is not valid here: open the link that qo printed"
            return _problem(401, "unauthenticated", said)
        if self._read_only and request.method not in ("GET", "HEAD"):
            return _problem(403, "forbidden", "this dashboard was started with --read-only")
        if not _open(request.path):
            return _problem(403, "forbidden", "the dashboard does not give out tokens: use qo token")
        return await self._dispatcher.ask(request)


def _target(request: Request) -> str:
    return request.path + (f"?{request.query}" if request.query else "")


def _passed(request: Request, token: str | None) -> dict[str, str]:
    headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
    return headers if token is None else {**headers, "Authorization": f"Bearer {token}"}


def _returned(status: int, headers: Any, body: bytes) -> Reply:
    found = {name.title(): str(value) for name in _RETURNED if (value := headers.get(name)) is not None}
    return Reply(status, body, {**found, "Cache-Control": "no-store"})


def _open(path: str) -> bool:
    """Plain paths below the API alone: what is encoded twice, or climbs, might mean another route there."""
    plain = unquote(path)
    parts = plain.split("/")
    return not (
        parts[2:3] == ["tokens"]
        or ".." in parts
        or "." in parts
        or "" in parts[1:-1]
        or re.search(r"[\x00-\x1f\\]", plain)
    )


def _problem(status: int, code: str, error: str) -> Reply:
    body = json.dumps({"error": error, "code": code, "detail": []}).encode()
    return Reply(status, body, {"Content-Type": "application/json", "Cache-Control": "no-store"})
