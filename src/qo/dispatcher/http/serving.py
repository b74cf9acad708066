"""The two listeners of a dispatcher, for people and for workers and tasks, in one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from qo.asgi.listener import bind, build_server, url_of
from qo.asgi.protocol import choose_protocol
from qo.config.dispatcher import DispatcherSettings
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.apps import close_app, internal_app, public_app
from qo.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The URLs of the two listeners, with the actual port where port 0 was set."""

    public: str
    internal: str


async def serve(
    context: Context,
    settings: DispatcherSettings,
    stop: asyncio.Event,
    on_start: Callable[[Addresses], None] | None = None,
) -> None:
    """Serve until ``stop``, then finish the requests that are being answered.

    Raises ConfigError if an address cannot be listened on; nothing is served then.
    """
    public_socket = bind(settings.listen, "dispatcher.listen")
    try:
        internal_socket = bind(settings.internal_listen, "dispatcher.internal_listen")
    except ConfigError:
        public_socket.close()
        raise
    addresses = Addresses(url_of(public_socket), url_of(internal_socket))
    protocol, internal = choose_protocol(settings.coalesce_writes), internal_app(context)
    listeners = (
        (build_server(public_app(context), protocol), public_socket),
        (build_server(internal, protocol), internal_socket),
    )
    for server, bound in listeners:
        await server.startup([bound])
    log.info("serving people at %s, workers at %s", addresses.public, addresses.internal)
    if on_start is not None:
        on_start(addresses)
    await stop.wait()
    for end_waits in context.on_stop:
        await end_waits()
    await asyncio.gather(*(server.shutdown([bound]) for server, bound in listeners))
    close_app(internal)
