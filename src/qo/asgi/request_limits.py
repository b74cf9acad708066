"""Limits of requests: the size of a body, the time to send it, and how many requests and bodies at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qo.asgi import error_responses

WAITS_MAX = 1_000
REQUESTS_MAX = 200  # At a time. They wait for threads and for the database; more would only wait longer.
SOON_S = 1.0  # A body that is complete so soon does not count as slow.
BODIES_MAX = 100  # Slow ones at a time: slow senders must leave room for all others.
CLIENT_BODIES_MAX = 25  # Of these, of one address.
BODY_S = 30.0  # For a whole body, however many pieces it comes in, …
BYTES_PER_S_MIN = 262_144  # … and a second more for each so many bytes of it.
_LATER = {"Retry-After": str(error_responses.RETRY_AFTER_S)}
OPEN = frozenset({"/livez", "/readyz"})  # Answered even when the server is too busy for anything else.


class Limits:
    """ASGI middleware.

    ``larger``: the limits of body size, by prefix, of paths that take larger bodies than others. ``setting``: the one
    that raises the limit of the others. ``waits``: whether a request mostly waits for something to happen; such
    requests have a limit of their own, ``waits_max``, so that they leave room for the others.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_bytes_max: int,
        setting: str = "the limit of the server",
        larger: Mapping[str, int] | None = None,
        requests_max: int = REQUESTS_MAX,
        waits: Callable[[Scope], bool] = lambda _: False,
        waits_max: int = WAITS_MAX,
        slots: BodySlots | None = None,
        body_s: float = BODY_S,
        soon_s: float = SOON_S,
    ) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._larger = dict(larger or {})
        self._setting = setting
        self._waits = waits
        self._limit = {False: requests_max, True: waits_max}  # By whether the request waits.
        self._slots = slots or BodySlots()
        self._body_s = body_s
        self._soon_s = soon_s
        self._requests = {False: 0, True: 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        waits = self._waits(scope)
        if self._requests[waits] >= self._limit[waits] and path not in OPEN:
            await _busy(scope, receive, send)
            return
        bytes_max = next(
            (limit for prefix, limit in self._larger.items() if path.startswith(prefix)), self._body_bytes_max
        )
        declared = _content_length(scope)
        if declared is not None and declared > bytes_max:
            refusal = error_responses.problem_response(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", too_large_message(bytes_max, self._setting)
            )
            await refusal(scope, receive, send)
            return
        body = _Body(
            receive,
            client=_client(scope),
            slots=self._slots,
            bytes_max=bytes_max,
            within_s=self._body_s + (declared or bytes_max) / BYTES_PER_S_MIN,
            soon_s=self._soon_s,
            setting=self._setting,
        )
        self._requests[waits] += 1
        try:
            await self._app(scope, body.receive, send)
        finally:
            self._requests[waits] -= 1
            body.release_slot()


class BodySlots:
    """Slots for slow bodies: a number in all, and a number for each client."""

    def __init__(self, bodies_max: int = BODIES_MAX, client_bodies_max: int = CLIENT_BODIES_MAX) -> None:
        self._bodies_max = bodies_max
        self._client_bodies_max = client_bodies_max
        self._in_use: Counter[str] = Counter()

    @property
    def in_use(self) -> int:
        return self._in_use.total()

    def acquire(self, client: str) -> bool:
        """Take a slot; False if none is free."""
        if self._in_use[client] >= self._client_bodies_max or self.in_use >= self._bodies_max:
            return False
        self._in_use[client] += 1
        return True

    def release(self, client: str) -> None:
        self._in_use[client] -= 1
        self._in_use += Counter()  # Drops clients without any.


class _Body:
    """The body of one request, with a limit of size and one deadline for all of its pieces."""

    def __init__(
        self,
        receive: Receive,
        *,
        client: str,
        slots: BodySlots,
        bytes_max: int,
        within_s: float,
        soon_s: float,
        setting: str,
    ) -> None:
        self._receive = receive
        self._client = client
        self._slots = slots
        self._bytes_max = bytes_max
        self._within_s, self._soon_s = within_s, soon_s
        self._setting = setting
        self._began: float | None = None  # When the first piece was requested.
        self._size = 0
        self._is_complete = False
        self._has_slot = False

    async def receive(self) -> Message:
        """Return the next piece. Raises HTTPException for a body that is too slow, is too large, or finds no slot."""
        if self._is_complete:
            return await self._receive()  # The app waits for the client to disconnect, however long that takes.
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
        message = await self._receive_in_time(self._began)
        # Without a Content-Length the size is known only as the pieces arrive.
        self._size += len(message.get("body", b""))
        if self._size > self._bytes_max:
            message = too_large_message(self._bytes_max, self._setting)
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        if not message.get("more_body", False):
            self._is_complete = True
            self.release_slot()
        return message

    def release_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._slots.release(self._client)

    async def _receive_in_time(self, began: float) -> Message:
        if not self._has_slot:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + self._soon_s):
                    return await self._receive()
            self._has_slot = self._slots.acquire(self._client)
            if not self._has_slot:
                reason = (
                    "too many slow request bodies at a time: send bodies whole, or repeat the request in a moment"
                )
                raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, reason, headers=_LATER)
        try:
            async with asyncio.timeout_at(began + self._within_s):
                return await self._receive()
        except TimeoutError:
            reason = f"the body did not come within {self._within_s:.3g} s: send it faster"
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, reason) from None


def _client(scope: Scope) -> str:
    """Return its address. Behind a proxy all clients have the same, so a body that comes at once needs no slot."""
    client: Sequence[Any] | None = scope.get("client")
    return str(client[0]) if client else ""


def _content_length(scope: Scope) -> int | None:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    length = next((value for name, value in headers if name == b"content-length"), b"")
    return int(length[:20]) if length.isdigit() else None  # Longer ones are too large in any case.


def too_large_message(bytes_max: int, setting: str) -> str:
    return f"the body is larger than {bytes_max:,} bytes: send less at a time, or raise {setting}"


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    reason = "too many requests at a time: repeat the request in a moment"
    refusal = error_responses.problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "busy", reason, headers=_LATER)
    await refusal(scope, receive, send)
