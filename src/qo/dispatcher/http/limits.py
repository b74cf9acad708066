"""How much a caller may ask of us: the size of a body, the time to send it, and requests and bodies at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qo.dispatcher.http import errors

REQUESTS_MAX = 200  # At a time. They wait for threads and for the database; more of them only wait longer.
SOON_S = 1.0  # A body that is whole so soon needs no place among those that are awaited.
BODIES_MAX = 100  # Awaited at a time: whoever sends slowly leaves room for all others.
CLIENT_BODIES_MAX = 25  # Of these, of one address.
BODY_S = 30.0  # For a whole body, however many pieces it comes in, ...
BYTES_PER_S_MIN = 262_144  # ... and a second more for each so many bytes of it.
_LATER = {"Retry-After": str(errors.RETRY_AFTER_S)}
OPEN = frozenset({"/livez", "/readyz"})  # Answered also by who is too busy for anything else.


class Limits:
    """ASGI middleware. ``larger``: the limits of paths, by prefix, that take larger bodies than all others."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_bytes_max: int,
        larger: Mapping[str, int] | None = None,
        requests_max: int = REQUESTS_MAX,
        places: Places | None = None,
        body_s: float = BODY_S,
        soon_s: float = SOON_S,
    ) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._larger = dict(larger or {})
        self._requests_max = requests_max
        self._places = places or Places()
        self._body_s = body_s
        self._soon_s = soon_s
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if self._requests >= self._requests_max and path not in OPEN:
            await _busy(scope, receive, send)
            return
        most = next(
            (most for prefix, most in self._larger.items() if path.startswith(prefix)), self._body_bytes_max
        )
        declared = _declared(scope)
        if declared is not None and declared > most:
            refusal = errors.problem_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", _too_large(most))
            await refusal(scope, receive, send)
            return
        body = _Body(
            receive,
            client=_client(scope),
            places=self._places,
            most=most,
            within_s=self._body_s + (declared or most) / BYTES_PER_S_MIN,
            soon_s=self._soon_s,
        )
        self._requests += 1
        try:
            await self._app(scope, body.receive, send)
        finally:
            self._requests -= 1
            body.leave()


class Places:
    """For bodies that are awaited: so many in all, and so many of one client."""

    def __init__(self, bodies_max: int = BODIES_MAX, client_bodies_max: int = CLIENT_BODIES_MAX) -> None:
        self._bodies_max = bodies_max
        self._client_bodies_max = client_bodies_max
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._taken.total()

    def take(self, client: str) -> bool:
        """Whether there was one left."""
        if self._taken[client] >= self._client_bodies_max or self.taken >= self._bodies_max:
            return False
        self._taken[client] += 1
        return True

    def give_back(self, client: str) -> None:
        self._taken[client] -= 1
        self._taken += Counter()  # Forgets clients that have none.


class _Body:
    """The body of one request: so large at most, and by one deadline for all of its pieces."""

    def __init__(
        self, receive: Receive, *, client: str, places: Places, most: int, within_s: float, soon_s: float
    ) -> None:
        self._receive = receive
        self._client = client
        self._places = places
        self._most = most
        self._within_s, self._soon_s = within_s, soon_s
        self._began: float | None = None  # When the first piece was asked for.
        self._size = 0
        self._whole = False
        self._has_place = False

    async def receive(self) -> Message:
        """The next piece. Raises HTTPException for a body that comes too slowly, is too large, or finds no place."""
        if self._whole:
            return await self._receive()  # Now it waits for the client to hang up, however long that takes.
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
        message = await self._awaited(self._began)
        # A body may come in pieces that nobody announced: they are counted as they come.
        self._size += len(message.get("body", b""))
        if self._size > self._most:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(self._most))
        if not message.get("more_body", False):
            self._whole = True
            self.leave()
        return message

    def leave(self) -> None:
        if self._has_place:
            self._has_place = False
            self._places.give_back(self._client)

    async def _awaited(self, began: float) -> Message:
        if not self._has_place:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + self._soon_s):
                    return await self._receive()
            self._has_place = self._places.take(self._client)
            if not self._has_place:
                reason = "too many bodies are awaited at a time: send them whole, or come back in a moment"
                raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, reason, headers=_LATER)
        try:
            async with asyncio.timeout_at(began + self._within_s):
                return await self._receive()
        except TimeoutError:
            reason = f"the body did not come within {self._within_s:.3g} s: send it faster"
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, reason) from None


def _client(scope: Scope) -> str:
    """Its address. Behind a proxy all have the same; so a body that comes at once never needs a place."""
    client: Sequence[Any] | None = scope.get("client")
    return str(client[0]) if client else ""


def _declared(scope: Scope) -> int | None:
    """None for a body that does not say how long it is."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    length = next((value for name, value in headers if name == b"content-length"), b"")
    return int(length[:20]) if length.isdigit() else None  # Longer ones are too large in any case.


def _too_large(most: int) -> str:
    return f"the body is larger than {most:,} bytes: send less at a time, or raise dispatcher.body_max_bytes"


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    reason = "too many requests at a time: come back in a moment"
    refusal = errors.problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "busy", reason, headers=_LATER)
    await refusal(scope, receive, send)
