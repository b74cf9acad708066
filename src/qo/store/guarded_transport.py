"""HTTP that reaches public addresses, and those of networks that were allowed, and nothing else.

The name of a host is looked up once, and the request goes to the address that was checked: a second answer of the name
server, or a redirect, leads nowhere else. Where the environment names a proxy, the proxy decides what may be reached.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from urllib.request import getproxies, proxy_bypass

import httpx

from qo.core.web import Network, is_allowed
from qo.errors import UsageError


class AddressRefused(UsageError):
    """The host has no address that files may be fetched from."""


class GuardedTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """For a client or an asynchronous one. Raises AddressRefused."""

    def __init__(self, networks: Sequence[Network], *, is_async: bool = False) -> None:
        self._networks = tuple(networks)
        kind = httpx.AsyncHTTPTransport if is_async else httpx.HTTPTransport
        self._direct = kind(trust_env=False)
        self._proxied = {
            scheme: kind(proxy=url) for scheme, url in getproxies().items() if scheme in ("http", "https")
        }

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        transport = self._choose(request.url)
        assert isinstance(transport, httpx.HTTPTransport)
        if transport is not self._direct:
            return transport.handle_request(request)
        addresses = self._check(request.url.host, _look_up(request.url))
        for address in addresses[:-1]:
            try:
                return transport.handle_request(_to_address(request, address))
            except httpx.ConnectError:
                continue  # The next one, as browsers do.
        return transport.handle_request(_to_address(request, addresses[-1]))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        transport = self._choose(request.url)
        assert isinstance(transport, httpx.AsyncHTTPTransport)
        if transport is not self._direct:
            return await transport.handle_async_request(request)
        addresses = self._check(request.url.host, await asyncio.to_thread(_look_up, request.url))
        for address in addresses[:-1]:
            try:
                return await transport.handle_async_request(_to_address(request, address))
            except httpx.ConnectError:
                continue
        return await transport.handle_async_request(_to_address(request, addresses[-1]))

    def close(self) -> None:
        for each in (self._direct, *self._proxied.values()):
            if isinstance(each, httpx.HTTPTransport):
                each.close()

    async def aclose(self) -> None:
        for each in (self._direct, *self._proxied.values()):
            if isinstance(each, httpx.AsyncHTTPTransport):
                await each.aclose()

    def _choose(self, url: httpx.URL) -> httpx.HTTPTransport | httpx.AsyncHTTPTransport:
        proxied = self._proxied.get(url.scheme)
        return self._direct if proxied is None or proxy_bypass(url.host) else proxied

    def _check(self, host: str, addresses: Sequence[str]) -> list[str]:
        allowed = [each for each in addresses if is_allowed(each, self._networks)]
        if not allowed:
            raise AddressRefused(
                f"{host} is at {addresses[0]}, which is not public: if files may be fetched from there, allow its "
                "network with the setting fetch.networks (QO_FETCH_NETWORKS)"
            )
        return allowed


def _look_up(url: httpx.URL) -> list[str]:
    try:
        replies = socket.getaddrinfo(
            url.host, url.port or {"http": 80}.get(url.scheme, 443), type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError(f"{url.host} is not found: {error}") from None
    return list(dict.fromkeys(str(reply[4][0]) for reply in replies))


def _to_address(request: httpx.Request, address: str) -> httpx.Request:
    """Return the request for one address of its host. Its header and its certificate are those of the host."""
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )
