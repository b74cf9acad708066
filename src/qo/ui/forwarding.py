"""The dispatcher's API for people, on the origin of the page: so that no other origin has to be let in.

The page shows a token that was drawn for it, and the request goes on with another, which never leaves this process.
That one is a writer's, or a reader's where the dashboard only shows: whatever a page asks for, it is no admin. Where
its owner gave an admin's token for a dispatcher elsewhere, that one is used to create the page's, and for nothing else.

A path is read once, here: taken apart, checked, and put together again from its parts. So what was checked is what is
sent, and no other program gets to read it in another way.

Where no dispatcher is named, its routes are asked in this process, as commands do (``Inside``).
"""

from __future__ import annotations

import asyncio
import hmac
import http.client
import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from qo.ambient import SYSTEM, Ambient
from qo.http_server.messages import Head, Reply, Request

log = logging.getLogger(__name__)

ROOT = "/v1/"
ANSWER_S = 30.0
ANSWER_BYTES_MAX = 64 * 2**20
TOKENS = "/v1/tokens"
PAGE_TOKEN_S = 12 * 3600.0  # The life of a token that is created for the page; it is renewed at half of it.

_REQUEST_HEADERS = ("accept", "content-type", "idempotency-key")
_RESPONSE_HEADERS = ("content-type", "retry-after")

# What names of ours are made of: whatever else a program might take for the end of a path, or for another way to write
# one, is refused. First as it is encoded, then each segment as it is decoded.
_ENCODED = re.compile(r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-7][0-9A-Fa-f])*\Z", re.ASCII)
_SEGMENT = re.compile(r"[A-Za-z0-9 ._~!$&'()*+,=:@\[\]-]+\Z", re.ASCII)
_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*\Z", re.ASCII)


class Dispatcher(Protocol):
    async def ask(self, request: Request) -> Reply: ...


class Upstream:
    """A dispatcher elsewhere: where it is, and what it is shown.

    ``role``: the token may be an admin's, so the page gets one of this role that is created with it. A token that may
    create none is itself no admin's, and is used as it is.
    """

    def __init__(self, url: str, token: str | None, *, role: str | None = None, ambient: Ambient = SYSTEM) -> None:
        self.url = url
        self._original_token = token
        self._role = role if token is not None else None
        self._ambient = ambient
        self._created: _Created | None = None
        self._creating = asyncio.Lock()

    async def ask(self, request: Request) -> Reply:
        try:
            token = await self._token()
            if isinstance(token, Reply):
                return token
            return await asyncio.to_thread(self._ask, request, token)
        except (OSError, http.client.HTTPException) as error:
            reason = f"the dispatcher at {self.url} does not answer: {error or type(error).__name__}"
            return _problem(503, "unavailable", reason)

    async def close(self) -> None:
        """Revoke the page's token, if one was created. One that cannot be revoked ends by itself."""
        created, self._created = self._created, None
        if created is None or created.id is None:
            return
        revocation = Request("DELETE", f"{TOKENS}/{created.id}", "", {})
        with suppress(OSError, http.client.HTTPException):
            await asyncio.to_thread(self._ask, revocation, self._original_token)

    async def _token(self) -> str | Reply | None:
        """What to show, or the dispatcher's answer where it does not create a token for now."""
        if self._role is None:
            return self._original_token
        async with self._creating:
            if self._created is None or self._ambient.monotonic() >= self._created.renew_at:
                created = await asyncio.to_thread(self._create, self._role)
                if isinstance(created, Reply):
                    return created
                self._created = created
            return self._created.token

    def _create(self, role: str) -> _Created | Reply:
        body = json.dumps({"name": "dashboard", "role": role, "ttl_s": PAGE_TOKEN_S}).encode()
        reply = self._ask(
            Request("POST", TOKENS, "", {"content-type": "application/json"}, body), self._original_token
        )
        if reply.status == 403:
            return _Created(self._original_token, None, float("inf"))
        if reply.status != 201:
            return reply
        created = json.loads(reply.body)
        renew_at = self._ambient.monotonic() + PAGE_TOKEN_S / 2
        return _Created(created["token"], created["id"], renew_at)

    def _ask(self, request: Request, token: str | None) -> Reply:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=ANSWER_S)
        try:
            target = parts.path.rstrip("/") + _target(request)
            headers = _request_headers(request, token)
            connection.request(request.method, target, body=request.body or None, headers=headers)
            answer = connection.getresponse()
            return _reply(answer.status, answer.headers, answer.read(ANSWER_BYTES_MAX))
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class _Created:
    """The token that the page's requests go on with. ``id``: None if it was not created here."""

    token: str | None = field(repr=False)
    id: str | None
    renew_at: float


class Inside:
    """The routes of a dispatcher, in this process: ``app`` is its ASGI application, ``token`` one that it knows, of a
    reader or a writer."""

    def __init__(self, app: Any, token: str) -> None:
        import httpx

        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, timeout=ANSWER_S)
        self._place = httpx.URL("http://qo")
        self._token = token

    async def ask(self, request: Request) -> Reply:
        headers = _request_headers(request, self._token)
        url = self._place.copy_with(raw_path=_target(request).encode("ascii"))
        answer = await self._client.request(request.method, url, content=request.body or None, headers=headers)
        return _reply(answer.status_code, answer.headers, answer.content)


class Forwarding:
    def __init__(self, dispatcher: Dispatcher, token: str, *, read_only: bool) -> None:
        self._dispatcher = dispatcher
        self._token = token
        self._read_only = read_only

    def admit(self, head: Head) -> Reply | None:
        """The refusal of a request, from its head alone; None for one that may go on."""
        authorization = head.headers.get("authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode()):
            reason = "the page's token is not valid here: open the link that qo printed"
            return _problem(401, "unauthenticated", reason)
        if self._read_only and head.method not in ("GET", "HEAD"):
            return _problem(403, "forbidden", "this dashboard was started with --read-only")
        segments = read_path(head.path)
        if segments is None or not _QUERY.match(head.query):
            return _problem(400, "usage", "the path or the query holds characters that no route here has")
        if segments[1] == "tokens":
            return _problem(403, "forbidden", "the dashboard does not give out tokens: use qo token")
        return None

    async def answer(self, request: Request) -> Reply:
        if (refusal := self.admit(request)) is not None:
            return refusal
        segments = read_path(request.path)
        assert segments is not None  # Or it would not have been admitted.
        return await self._dispatcher.ask(
            Request(request.method, write_path(segments), request.query, request.headers, request.body)
        )


def read_path(path: str) -> tuple[str, ...] | None:
    """The segments of a path below the API, decoded once; None for one that could be read in more than one way."""
    if not _ENCODED.match(path):
        return None
    segments = tuple(unquote(each, errors="strict") for each in path.removeprefix("/").split("/"))
    plain = all(_SEGMENT.match(each) and each not in (".", "..") for each in segments)
    return segments if plain and len(segments) > 1 and segments[0] == "v1" else None


def write_path(segments: tuple[str, ...]) -> str:
    return "".join(f"/{quote(each, safe='')}" for each in segments)


def _target(request: Request) -> str:
    return request.path + (f"?{request.query}" if request.query else "")


def _request_headers(request: Request, token: str | None) -> dict[str, str]:
    headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
    return headers if token is None else {**headers, "Authorization": f"Bearer {token}"}


def _reply(status: int, headers: Mapping[str, str] | Any, body: bytes) -> Reply:
    returned = {name.title(): str(value) for name in _RESPONSE_HEADERS if (value := headers.get(name)) is not None}
    return Reply(status, body, {**returned, "Cache-Control": "no-store"})


def _problem(status: int, code: str, error: str) -> Reply:
    body = json.dumps({"error": error, "code": code, "detail": []}).encode()
    return Reply(status, body, {"Content-Type": "application/json", "Cache-Control": "no-store"})
