"""``qo serve``: the API on a listener of its own, and the process around it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qo.ambient import SYSTEM
from qo.asgi import error_responses
from qo.asgi.exposition import CONTENT_TYPE
from qo.asgi.listener import bind, build_server, url_of
from qo.asgi.protocol import choose_protocol
from qo.asgi.request_limits import Limits
from qo.asgi.stopping import stop_on_signals
from qo.asgi.traffic import Traffic, TrafficMiddleware
from qo.config.settings import Settings
from qo.core import keys
from qo.errors import QoError, Unavailable
from qo.queue.connecting import connect
from qo.queue.queue import Queue
from qo.queue_api import token_file
from qo.queue_api.api_routes import QueueApi, build_mount, describe, waits
from qo.queue_api.guard import Guard, Rates, TokenGuard, WaitShares
from qo.queue_api.metrics_page import exposition
from qo.queue_api.watcher import Watcher

log = logging.getLogger(__name__)

PREFIX = "/v1"
READY_FOR_S = 5.0  # An answer of the store counts for so long, so that probes cost little.
UNREADY_FOR_S = 1.0  # That it gave none, for so long.


def queue_api(queue: Queue, settings: Settings, guard: Guard) -> QueueApi:
    serve = settings.serve
    watcher = Watcher(queue, reads_per_s=serve.wait_reads_per_s)
    return QueueApi(queue, guard, watcher, Rates(serve.rate_per_s, SYSTEM), WaitShares(serve.waits_max))


def build_app(api: QueueApi, settings: Settings) -> Starlette:
    """Build the application of ``qo serve``."""
    app = Starlette(routes=[build_mount(PREFIX, api)])
    app.router.redirect_slashes = False
    traffic = Traffic()
    readiness = _Readiness(api.queue)

    async def livez(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> JSONResponse:
        await readiness.check()
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        await api.guard.authorise(request, "metrics")
        return Response(exposition(traffic, api.watcher), media_type=CONTENT_TYPE)

    async def openapi(_: Request) -> JSONResponse:
        return JSONResponse(describe(PREFIX))

    for path, page in (("/livez", livez), ("/readyz", readyz), ("/metrics", metrics), ("/openapi.json", openapi)):
        app.add_route(path, page)
    error_responses.install(app)
    app.add_middleware(
        Limits,
        body_bytes_max=settings.serve.body_max_bytes,
        setting="serve.body_max_bytes",
        waits=waits,
        waits_max=settings.serve.waits_max,
    )
    app.add_middleware(TrafficMiddleware, traffic=traffic)
    return app


class _Readiness:
    """Whether the store answers. Anybody may ask, so it is asked by one request at a time and once in a while, and the
    answer does not say which store that is."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._until = float("-inf")
        self._is_ready = False
        self._lock = asyncio.Lock()

    async def check(self) -> None:
        """Raises Unavailable."""
        async with self._lock:
            if self._queue.ambient.monotonic() >= self._until:
                await self._ask()
        if not self._is_ready:
            raise Unavailable("the store does not answer: see the log of the server")

    async def _ask(self) -> None:
        try:
            await self._queue.store.get(keys.QUEUE)
            self._is_ready, for_s = True, READY_FOR_S
        except QoError as error:
            log.warning("not ready, because the store does not answer: %s", error)
            self._is_ready, for_s = False, UNREADY_FOR_S
        self._until = self._queue.ambient.monotonic() + for_s


async def run_server(
    settings: Settings,
    *,
    stop: asyncio.Event | None = None,
    on_start: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until ``stop``, or SIGTERM, SIGINT or SIGHUP; a second signal ends the process at once.

    Requests that wait are answered at once then, all others finished. ``on_start`` gets the URL.
    Raises ConfigError for an address that cannot be listened on.
    """
    stopped = stop or asyncio.Event()
    bound = bind(settings.serve.listen, "serve.listen")
    try:
        async with connect(settings) as queue:
            tokens = token_file.TokenFile(token_file.path_of(settings), token_file.local_token(settings))
            token_file.load(
                token_file.path_of(settings)
            )  # Raises now for a broken file, not at the first request.
            api = queue_api(queue, settings, TokenGuard(tokens, queue.store))
            server = build_server(build_app(api, settings), choose_protocol(True))
            await server.startup([bound])
            with stop_on_signals(stopped):
                log.info("serving the queue %s at %s", settings.store, url_of(bound))
                on_start(url_of(bound))
                await stopped.wait()
            await api.watcher.stop()
            await server.shutdown([bound])
    finally:
        bound.close()
