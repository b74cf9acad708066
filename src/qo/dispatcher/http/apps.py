"""The two applications: the public one for people, the internal one for workers and tasks. Both serve health."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import Scope

from qo.asgi import error_responses
from qo.asgi.request_limits import Limits
from qo.asgi.traffic import TrafficMiddleware
from qo.dispatcher.http import (
    attempts,
    backfills,
    bundles,
    catalog,
    catalog_errors,
    dags,
    dashboard_routes,
    datasets,
    fastapi_routes,
    garbage,
    health,
    planning,
    quality,
    reading,
    run_log,
    runtime_routes,
    scaling_routes,
    segments,
    sinks,
    sources,
    starlette_routes,
    statistics,
    task_exchanges,
    tasks,
    token_exchange,
    tokens,
    workers,
)
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.queue_routes import PREFIX as QUEUE_PREFIX
from qo.dispatcher.http.queue_routes import queue_routes
from qo.dispatcher.http.rights import INTERNAL, PUBLIC
from qo.dispatcher.http.routes import Operation, Routes
from qo.queue_api.api_routes import waits

API_VERSION = "1"


def public_app(context: Context) -> FastAPI:
    """Build the application for people and their programs, and for the senders of webhooks."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.router.routes.extend([*_public_routes(), *queue_routes(context)])
    _set_up(app, context, _public_operations(), public_openapi, catalog_errors.reshape)
    _allow_origins(app, context.settings.dispatcher.cors_origins)
    return app


def internal_app(context: Context) -> Starlette:
    """Build the application for workers, running tasks and sources. Never expose it to public networks."""
    app = Starlette()
    app.router.routes.extend(_internal_routes())
    executor = starlette_routes.frequent_calls_executor(context)
    app.state.frequent_calls_executor = executor
    app.state.gatherers = starlette_routes.build_gatherers(_internal_operations().values(), context, executor)
    _set_up(app, context, _internal_operations(), internal_openapi)
    return app


def close_app(internal: Starlette) -> None:
    """End the threads of an internal application that answers no more requests."""
    internal.state.frequent_calls_executor.shutdown(wait=False, cancel_futures=True)


@cache
def public_openapi() -> dict[str, Any]:
    description = "Deploy pipelines, run them, and see what became of them."
    error_bodies = {each.error_body for each in _public_operations().values()}
    return fastapi_routes.describe(
        _public_routes(),
        "qo dispatcher",
        description,
        API_VERSION,
        sorted(error_bodies, key=lambda each: each.__name__),
    )


@cache
def internal_openapi() -> dict[str, Any]:
    routes = fastapi_routes.build_routes(_internal_operations().values())
    description = "Claim tasks, report on them, complete them."
    return fastapi_routes.describe(routes, "qo dispatcher, internal", description, API_VERSION)


@cache
def _public_operations() -> Mapping[str, Operation]:
    routes = Routes(PUBLIC)
    for part in (
        health,
        dags,
        dashboard_routes,
        planning,
        datasets,
        reading,
        catalog,
        token_exchange,
        backfills,
        garbage,
        quality,
        statistics,
        tasks,
        run_log,
        runtime_routes,
        scaling_routes,
        sources,
        bundles,
        tokens,
    ):
        part.install(routes)
    return routes.operations


@cache
def _internal_operations() -> Mapping[str, Operation]:
    routes = Routes(INTERNAL)
    for part in (health, workers, attempts, task_exchanges, segments, sinks):
        part.install(routes)
    return routes.operations


# Built once in a process: FastAPI takes longer to build them than to answer most requests.


@cache
def _public_routes() -> list[BaseRoute]:
    return fastapi_routes.build_routes(_public_operations().values())


@cache
def _internal_routes() -> list[BaseRoute]:
    return starlette_routes.build_routes(_internal_operations().values())


def _set_up(
    app: Starlette,
    context: Context,
    operations: Mapping[str, Operation],
    openapi: Callable[[], dict[str, Any]],
    reshape: error_responses.Reshape | None = None,
) -> None:
    """Add what both applications have."""
    app.router.redirect_slashes = False
    app.add_route("/openapi.json", _openapi)
    app.state.context = context
    app.state.operations = operations
    app.state.openapi = openapi
    app.state.missing_path_hint = partial(_other_listener_hint, "claim_task" in operations)
    error_responses.install(app, reshape)
    settings = context.settings.dispatcher
    serve = context.settings.serve
    app.add_middleware(
        Limits,
        body_bytes_max=settings.body_max_bytes,
        setting="dispatcher.body_max_bytes",
        larger={bundles.UPLOADS: bundles.BYTES_MAX, f"{QUEUE_PREFIX}/": serve.body_max_bytes},
        waits=_waits_for_task,
        waits_max=serve.waits_max,
    )
    app.add_middleware(TrafficMiddleware, traffic=context.traffic)


def _waits_for_task(scope: Scope) -> bool:
    return scope["path"].startswith(f"{QUEUE_PREFIX}/") and waits(scope)


def _other_listener_hint(is_internal: bool, path: str) -> str:
    """Name the other listener to a caller that has mistaken one for the other."""
    for_tasks = path.startswith(("/internal/", "/v1/task/"))
    if is_internal and not for_tasks:
        return "; this listener is for workers, and people are served by the other one, by default on port 8470"
    if for_tasks and not is_internal:
        return "; this listener is for people, and workers are served by the other one, by default on port 8471"
    return ""


async def _openapi(request: Request) -> JSONResponse:
    return JSONResponse(request.app.state.openapi())


def _allow_origins(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Let pages of these origins read the answers. They send a token as every client does: no cookie is accepted."""
    if not origins:
        return
    from starlette.middleware.cors import CORSMiddleware

    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["authorization", "content-type"],
        max_age=600,
    )
