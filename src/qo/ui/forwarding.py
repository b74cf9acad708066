"""Forwards the dispatcher's public API on the page's own origin, so that the dispatcher needs no CORS rules.

The page sends a token that was generated for it; the forwarded request carries another, which never leaves this
process. That token is a writer's, or a reader's if the dashboard is read-only, so a page never acts as an admin. If the
user configured an admin's token for a remote dispatcher, it only creates and revokes the page's token.

A path is parsed once, here: split, checked, and rebuilt from its parts. So what was checked is what is sent, and no
other parser can read it differently.

Without a dispatcher's URL, its routes are called in this process (``Inside``).
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
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from qo.ambient import SYSTEM, Ambient
from qo.http_server.messages import Head, Reply, Request

if TYPE_CHECKING:
    from qo.ui.data_preview import Previews

log = logging.getLogger(__name__)

ROOT = "/v1/"
ANSWER_S = 30.0
ANSWER_BYTES_MAX = 64 * 2**20
TOKENS = "/v1/tokens"
PAGE_TOKEN_S = 12 * 3600.0  # Lifetime of the page's token; it is renewed after half of it.

_REQUEST_HEADERS = ("accept", "content-type", "idempotency-key")
_RESPONSE_HEADERS = ("content-type", "retry-after")

# The characters that names may contain, in the encoded path and in each decoded segment. All others are refused: some
# parser might take them for the end of a path, or for another spelling of one.
_ENCODED = re.compile(r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-7][0-9A-Fa-f])*\Z", re.ASCII)
_SEGMENT = re.compile(r"[A-Za-z0-9 ._~!$&'()*+,=:@\[\]-]+\Z", re.ASCII)
_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*\Z", re.ASCII)


class Dispatcher(Protocol):
    async def ask(self, request: Request) -> Reply: ...


class Upstream:
    """A remote dispatcher, reached over HTTP.

    With a ``role``, the token may be an admin's: it is used to create a token of that role for the page. A token that
    may not create others is no admin's, and is used itself.
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
            return problem_reply(503, "unavailable", reason)

    async def close(self) -> None:
        """Revoke the page's token, if one was created. If that fails, the token expires by itself."""
        created, self._created = self._created, None
        if created is None or created.id is None:
            return
        revocation = Request("DELETE", f"{TOKENS}/{created.id}", "", {})
        with suppress(OSError, http.client.HTTPException):
            await asyncio.to_thread(self._ask, revocation, self._original_token)

    async def _token(self) -> str | Reply | None:
        """Return the token to send, or the dispatcher's error reply if it cannot create one now."""
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
    """The token of forwarded requests. ``id`` is None if it was not created here."""

    token: str | None = field(repr=False)
    id: str | None
    renew_at: float


class Inside:
    """A dispatcher in this process: ``app`` is its ASGI application, ``token`` a reader's or writer's token for it."""

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
    """``previews`` answers what the dispatcher cannot: it never reads data."""

    def __init__(
        self, dispatcher: Dispatcher, token: str, *, read_only: bool, previews: Previews | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._previews = previews
        self._token = token
        self._read_only = read_only

    def admit(self, head: Head) -> Reply | None:
        """Return the refusal of a request, from its head alone; None if it may proceed."""
        authorization = head.headers.get("authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode()):
            reason = "the page's token is not valid here: open the link that qo printed"
            return problem_reply(401, "unauthenticated", reason)
        if self._read_only and head.method not in ("GET", "HEAD"):
            return problem_reply(403, "forbidden", "this dashboard was started with --read-only")
        segments = read_path(head.path)
        if segments is None or not _QUERY.match(head.query):
            return problem_reply(400, "usage", "the path or the query contains characters that no route accepts")
        if segments[1] == "tokens":
            return problem_reply(403, "forbidden", "the dashboard does not create tokens: use `qo token`")
        return None

    async def answer(self, request: Request) -> Reply:
        if (refusal := self.admit(request)) is not None:
            return refusal
        segments = read_path(request.path)
        assert segments is not None  # Otherwise admit would have refused it.
        if self._previews is not None and self._previews.concerns(request.method, segments):
            pieces = write_path((*segments[:-1], "pieces"))
            return await self._previews.answer(self._dispatcher, pieces, request.query)
        return await self._dispatcher.ask(
            Request(request.method, write_path(segments), request.query, request.headers, request.body)
        )


def read_path(path: str) -> tuple[str, ...] | None:
    """Return the decoded segments of a path of the API; None if the path is ambiguous or not below /v1."""
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


def problem_reply(status: int, code: str, error: str) -> Reply:
    body = json.dumps({"error": error, "code": code, "detail": []}).encode()
    return Reply(status, body, {"Content-Type": "application/json", "Cache-Control": "no-store"})
