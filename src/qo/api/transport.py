"""HTTP calls of a dispatcher, repeated while it is away; its errors are raised as the classes that it raised."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import urlsplit

import httpx
import msgspec

from qo import errors
from qo.ambient import SYSTEM, Ambient
from qo.errors import ConfigError, Contended, NotFound, QoError, Unavailable, UsageError

TIMEOUT_S = 30.0  # For one response.
CONNECT_S = 5.0
TIMEOUTS = {"timeout": httpx.Timeout(TIMEOUT_S, connect=CONNECT_S).as_dict()}
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=20.0)
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0

_AWAY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})

# The classes by the code in the body of an error, and for bodies without one, by status.
_BY_CODE: Mapping[str, type[QoError]] = {
    "lease_lost": errors.LeaseLost,
    "cancelled": errors.Cancelled,
    "idempotency_conflict": errors.IdempotencyConflict,
    "refused": errors.Refused,
    "not_found": errors.NotFound,
    "unauthenticated": errors.Unauthenticated,
    "forbidden": errors.Forbidden,
    "held_back": errors.HeldBack,
    "unavailable": errors.Unavailable,
    "contended": errors.Contended,
    "corrupt": errors.CorruptRecord,
    "busy": errors.Unavailable,
}
_BY_STATUS: Mapping[int, type[QoError]] = {
    HTTPStatus.UNAUTHORIZED: errors.Unauthenticated,
    HTTPStatus.FORBIDDEN: errors.Forbidden,
    HTTPStatus.NOT_FOUND: errors.NotFound,
    HTTPStatus.CONFLICT: errors.Refused,
}


class Encodable(Protocol):
    """A body of the contract. A protocol, so that a caller that sends none does not load them all."""

    def model_dump_json(self) -> str: ...


RequestBody = Encodable | Mapping[str, Any] | bytes


class Response(NamedTuple):
    """A complete response, of any status."""

    url: str
    status: int
    content: bytes


class NotSent(Exception):
    """The request was never sent."""


class NoResponse(Exception):
    """The request got no complete response: the dispatcher may have executed it."""


class Transport(Protocol):
    """A way to send one request."""

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        """Raises NotSent or NoResponse."""
        ...

    async def close(self) -> None: ...


@cache
def _ssl_context(encrypted: bool) -> ssl.SSLContext:
    """Return the authorities that servers are checked against, read once, because that takes longer than a request.
    Without TLS there is no server to check: the context then knows no authority, and would refuse every server."""
    return httpx.create_ssl_context(trust_env=False) if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class HttpxTransport:
    """Sends by httpx's transport without its client. What the client adds (proxies of the environment, cookies,
    redirects) does not belong between a worker and its dispatcher, and takes longer than the rest."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport(
            verify=_ssl_context(urlsplit(url).scheme == "https"), limits=LIMITS, trust_env=False
        )

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        request = httpx.Request(method, url, content=body, headers=headers, extensions=TIMEOUTS)
        try:
            response = await self._transport.handle_async_request(request)
            return Response(url, response.status_code, await response.aread())
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotSent(str(error) or type(error).__name__) from error
        except httpx.TransportError as error:
            raise NoResponse(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        await self._transport.aclose()


class RetryingClient:
    """Sends requests to one dispatcher. ``patience_s``: for how long it may be away before a call gives up."""

    def __init__(
        self,
        url: str,
        *,
        patience_s: float,
        transport: Transport | None = None,
        ambient: Ambient = SYSTEM,
    ) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._ambient = ambient
        self._transport = transport or HttpxTransport(url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def send(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: RequestBody | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        repeat_body: RequestBody | None = None,
    ) -> Response:
        """Send a request and return the response of a successful one.

        A request without a response is repeated only if it is ``repeatable``; one that was never sent, always.
        ``repeat_body``: what is sent instead of the body after the first time.
        Raises the QoError that the dispatcher raised; Unavailable or Contended when patience runs out.
        """
        query = {key: value for key, value in params.items() if value is not None} if params else {}
        url = f"{self.url}{path}?{httpx.QueryParams(query)}" if query else self.url + path
        content, all_headers = _encode(body), _headers(token, body, headers)
        give_up_at, backoff_s = self._ambient.monotonic() + self._patience_s, FIRST_BACKOFF_S
        while True:
            try:
                response = await self._transport.send(method, url, all_headers, content)
            except NotSent as error:
                problem: QoError = self._unavailable(error)
            except NoResponse as error:
                problem = self._unavailable(error)
                if not repeatable:
                    raise problem from error
            else:
                if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                    return response
                problem = error_from_response(response)
                if response.status not in _AWAY or not isinstance(problem, (Unavailable, Contended)):
                    raise problem
            backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)
            wait_s = backoff_s * (0.5 + self._ambient.unit() / 2)
            if self._ambient.monotonic() + wait_s > give_up_at:
                raise problem
            await asyncio.sleep(wait_s)
            content = content if repeat_body is None else _encode(repeat_body)

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(
            f"the dispatcher at {self.url} does not answer: {error}; check that it runs, and at this address"
        )


class ClientBase:
    """A client that closes its connections at the end of its context."""

    _client: RetryingClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()


def error_from_response(response: Response) -> QoError:
    """Return the error that the dispatcher raised."""
    try:
        body = msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        body = {}
    status = response.status
    from_dispatcher = "error" in body
    reason = httpx.codes.get_reason_phrase(status)
    message = str(body.get("error") or f"{response.url} answered {status} {reason}")
    detail: list[Any] = body.get("detail") or []
    if len(detail) == 1 and body.get("code") == "invalid":
        message = f"the request is refused: {detail[0]}"
    elif detail:
        message = "\n  ".join([message, *map(str, detail)])
    if status in _AWAY and not from_dispatcher:
        return Unavailable(message)
    if status == HTTPStatus.NOT_FOUND and not from_dispatcher:
        return NotFound(f"{message}: check that this is the address of a dispatcher")
    if kind := _BY_CODE.get(str(body.get("code"))) or _BY_STATUS.get(status):
        return kind(message)
    return UsageError(message) if 400 <= status < 500 else QoError(message)


def _encode(body: RequestBody | None) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    if isinstance(body, Mapping):
        return msgspec.json.encode(body)
    return body.model_dump_json().encode()


def _headers(token: str | None, body: object, more: Mapping[str, str] | None) -> dict[str, str]:
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigError("the token has characters that no token has: copy it again")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None and not isinstance(body, bytes):
        headers["Content-Type"] = "application/json"
    return {**headers, **(more or {})}
