"""The two applications: what people may ask, and what workers and tasks may. They share no route but health."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI

from qo.api.contract.body import Problem
from qo.dispatcher.http import (
    backfills,
    bundles,
    dags,
    datasets,
    errors,
    garbage,
    health,
    internal,
    planning,
    quality,
    reading,
    running,
    segments,
    sources,
    tasks,
    tokens,
)
from qo.dispatcher.http.context import Context
from qo.dispatcher.http.direct import Direct
from qo.dispatcher.http.limits import Limits
from qo.dispatcher.http.rights import INTERNAL, PUBLIC
from qo.dispatcher.http.routes import Routes
from qo.dispatcher.http.traffic import Counted

API_VERSION = "1"


def public_app(context: Context) -> FastAPI:
    """For people and their programs, and for who sends webhooks."""
    description = "Pipelines: deploy them, run them, and ask what became of them."
    app = _app(context, _public_routes(), "qo dispatcher", description)
    _let_pages_in(app, context.settings.dispatcher.cors_origins)
    return app


def internal_app(context: Context) -> FastAPI:
    """For workers, running tasks and sources. Never to be reached from public networks."""
    description = "Tasks: claim them, report on them, finish them."
    return _app(context, _internal_routes(), "qo dispatcher, internal", description)


@cache
def _public_routes() -> Routes:
    routes = Routes(PUBLIC)
    for part in (
        health,
        dags,
        planning,
        datasets,
        reading,
        backfills,
        garbage,
        quality,
        tasks,
        sources,
        bundles,
        tokens,
    ):
        part.install(routes)
    return routes


@cache
def _internal_routes() -> Routes:
    routes = Routes(INTERNAL)
    for part in (health, internal, running, segments):
        part.install(routes)
    return routes


def _app(context: Context, routes: Routes, title: str, description: str) -> FastAPI:
    app = FastAPI(
        title=title,
        description=description,
        version=API_VERSION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    routes.add_to(app)
    errors.install(app)
    settings = context.settings.dispatcher
    larger = {bundles.UPLOADS: bundles.BYTES_MAX}
    app.add_middleware(Direct, calls=routes.direct, context=context)
    app.add_middleware(Limits, body_bytes_max=settings.body_max_bytes, larger=larger)
    app.add_middleware(Counted, traffic=context.traffic)
    app.openapi = lambda: _described(app, routes)  # type: ignore[method-assign]
    return app


def _let_pages_in(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Pages of these origins may read our answers. They show a token as everybody does: no cookie is ever taken."""
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


_TOKENS = {
    "user": "A token from qo token create.",
    "worker": "The token that all workers share.",
}


def _described(app: FastAPI, routes: Routes) -> dict[str, Any]:
    """FastAPI's description, with how each kind of caller proves who it is."""
    if routes.schema is None:
        schema = FastAPI.openapi(app)
        schemes = {
            name: {"type": "http", "scheme": "bearer", "description": said} for name, said in _TOKENS.items()
        }
        schemes["task"] = {
            "type": "apiKey",
            "in": "header",
            "name": "X-Qo-Task-Capability",
            "description": "The capability of the attempt, from its claim; also accepted as a bearer token.",
        }
        schema["components"]["securitySchemes"] = schemes
        schema["components"].setdefault("schemas", {})[Problem.__name__] = Problem.model_json_schema()
        routes.schema = schema
    return routes.schema
