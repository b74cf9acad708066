"""Asking a dispatcher over HTTP: patience when it is away, and its errors as our own again."""

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

TIMEOUT_S = 30.0  # For one answer.
CONNECT_S = 5.0
TIMEOUTS = {"timeout": httpx.Timeout(TIMEOUT_S, connect=CONNECT_S).as_dict()}
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=20.0)
FIRST_REST_S = 0.1
LONGEST_REST_S = 5.0

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


class Encoded(Protocol):
    """A body of the contract. Named by what is asked of it, so that who sends none need not load them all."""

    def model_dump_json(self) -> str: ...


Sent = Encoded | Mapping[str, Any] | bytes


class Reply(NamedTuple):
    """An answer, whatever it says."""

    url: str
    status: int
    content: bytes


class Unreached(Exception):
    """A request was never sent."""


class Unanswered(Exception):
    """A request got no whole answer: what it asks for may have been done."""


class Carrier(Protocol):
    """A way to the dispatcher."""

    async def carry(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Raises Unreached or Unanswered."""
        ...

    async def close(self) -> None: ...


@cache
def _trust(encrypted: bool) -> ssl.SSLContext:
    """The authorities that servers are checked against, read once: it takes longer than a request. Without TLS there
    is nobody to check; the context then knows no authority, and would refuse every server."""
    return httpx.create_ssl_context(trust_env=False) if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class HttpxCarrier:
    """No client around it: what that adds (proxies of the environment, cookies, redirects) has no business between a
    worker and its dispatcher, and takes longer than the rest."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport(
            verify=_trust(urlsplit(url).scheme == "https"), limits=LIMITS, trust_env=False
        )

    async def carry(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        request = httpx.Request(method, url, content=body, headers=headers, extensions=TIMEOUTS)
        try:
            response = await self._transport.handle_async_request(request)
            return Reply(url, response.status_code, await response.aread())
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unreached(str(error) or type(error).__name__) from error
        except httpx.TransportError as error:
            raise Unanswered(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        await self._transport.aclose()


class Asker:
    """One dispatcher at one address. ``patience_s``: for how long it may be away before a call gives up."""

    def __init__(
        self,
        url: str,
        *,
        patience_s: float,
        carrier: Carrier | None = None,
        ambient: Ambient = SYSTEM,
    ) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._ambient = ambient
        self._carrier = carrier or HttpxCarrier(url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._carrier.close()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: Sent | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
    ) -> Reply:
        """The answer to a request that was understood.

        A request that got no answer is repeated only if it is ``repeatable``; one that cannot have arrived, always.
        Raises the QoError that the dispatcher raised; Unavailable or Contended when patience runs out.
        """
        said = {key: value for key, value in params.items() if value is not None} if params else {}
        url = f"{self.url}{path}?{httpx.QueryParams(said)}" if said else self.url + path
        sent, told = _encoded(body), _headers(token, body, headers)
        give_up_at, rest_s = self._ambient.monotonic() + self._patience_s, FIRST_REST_S
        while True:
            try:
                reply = await self._carrier.carry(method, url, told, sent)
            except Unreached as error:
                problem: QoError = self._away(error)
            except Unanswered as error:
                problem = self._away(error)
                if not repeatable:
                    raise problem from error
            else:
                if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
                    return reply
                problem = problem_of(reply)
                if reply.status not in _AWAY or not isinstance(problem, (Unavailable, Contended)):
                    raise problem
            rest_s = min(rest_s * 2, LONGEST_REST_S)
            wait_s = rest_s * (0.5 + self._ambient.unit() / 2)
            if self._ambient.monotonic() + wait_s > give_up_at:
                raise problem
            await asyncio.sleep(wait_s)

    def _away(self, error: Exception) -> Unavailable:
        return Unavailable(f"the dispatcher at {self.url} does not answer: {error}; is it running, and there?")


class Closing:
    """What holds an asker, and closes it."""

    _asker: Asker

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._asker.close()


def problem_of(reply: Reply) -> QoError:
    """The error that the answer stands for."""
    try:
        said = msgspec.json.decode(reply.content, type=dict[str, Any])
    except msgspec.DecodeError:
        said = {}
    status = reply.status
    known = "error" in said
    reason = httpx.codes.get_reason_phrase(status)
    message = str(said.get("error") or f"{reply.url} answered {status} {reason}")
    detail: list[Any] = said.get("detail") or []
    if len(detail) == 1 and said.get("code") == "invalid":
        message = f"the request is refused: {detail[0]}"
    elif detail:
        message = "\n  ".join([message, *map(str, detail)])
    if status in _AWAY and not known:
        return Unavailable(message)
    if status == HTTPStatus.NOT_FOUND and not known:
        return NotFound(f"{message}: is that the address of a dispatcher?")
    if kind := _BY_CODE.get(str(said.get("code"))) or _BY_STATUS.get(status):
        return kind(message)
    return UsageError(message) if 400 <= status < 500 else QoError(message)


def _encoded(body: Sent | None) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    if isinstance(body, Mapping):
        return msgspec.json.encode(body)
    return body.model_dump_json().encode()


def _headers(token: str | None, body: object, more: Mapping[str, str] | None) -> dict[str, str]:
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigError("the token has characters that no token has: copy it again")
    said = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None and not isinstance(body, bytes):
        said["Content-Type"] = "application/json"
    return {**said, **(more or {})}
