"""How much a caller may ask of us: the size of a body, the time to send it, and requests at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qo.dispatcher.http import errors

REQUESTS_MAX = 200  # At a time. They wait for threads and for the database; more of them only wait longer.
BODY_S = 30.0  # A client that sends more slowly is given up.
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
        body_s: float = BODY_S,
    ) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._larger = dict(larger or {})
        self._requests_max = requests_max
        self._body_s = body_s
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
        if _declared(scope) > most:
            refusal = errors.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", _too_large(most))
            await refusal(scope, receive, send)
            return
        self._requests += 1
        try:
            await self._app(scope, self._counted(receive, most), send)
        finally:
            self._requests -= 1

    def _counted(self, receive: Receive, most: int) -> Receive:
        """A body may come in pieces that nobody announced: count them as they come."""
        got, whole = 0, False

        async def counted() -> Message:
            nonlocal got, whole
            if whole:
                return await receive()  # Now it waits for the client to hang up, however long that takes.
            try:
                async with asyncio.timeout(self._body_s):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {self._body_s:g} s: send it faster"
                ) from None
            got += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if got > most:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(most))
            return message

        return counted


def _declared(scope: Scope) -> int:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    said = next((value for name, value in headers if name == b"content-length"), b"0")
    return int(said[:20]) if said.isdigit() else 0  # Longer ones are too large in any case.


def _too_large(most: int) -> str:
    return f"the body is larger than {most:,} bytes: send less at a time, or raise dispatcher.body_max_bytes"


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    headers: dict[str, Any] = {"Retry-After": str(errors.RETRY_AFTER_S)}
    said = "too many requests at a time: come back in a moment"
    refusal = errors.answer(HTTPStatus.SERVICE_UNAVAILABLE, "busy", said, headers=headers)
    await refusal(scope, receive, send)
