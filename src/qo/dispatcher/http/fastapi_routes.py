"""FastAPI routes of declared operations: the public listener, and the OpenAPI descriptions of both listeners."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute

from qo.api.contract.body import Problem
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.callers import authorise
from qo.dispatcher.http.rights import Need
from qo.dispatcher.http.routes import Operation, check_parameters

_PROBLEMS = {
    400: "The request breaks a rule: the body says which.",
    401: "The token is missing or unknown: the body says which to present.",
    403: "The token does not allow this.",
    404: "There is no such thing.",
    409: "The current state does not allow it: read the state again, then decide again.",
    413: "The body is larger than the dispatcher reads.",
    422: "A field is missing or has the wrong form: detail names each.",
    429: "The source accepts nothing while what it feeds is overfull: repeat after Retry-After seconds.",
    503: "The dispatcher is busy, or has no database: repeat after Retry-After seconds.",
}
_SCHEMES = {
    Need.READER: "user",
    Need.WRITER: "user",
    Need.ADMIN: "user",
    Need.WORKER: "worker",
    Need.SCHEDULER: "worker",
    Need.TASK: "task",
}
_TOKENS = {
    "user": "A token from qo token create.",
    "worker": "The token that all workers share.",
}


class GuardedRoute(APIRoute):
    """A route that authorises the caller before it reads the body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        name = self.operation_id or ""

        async def guarded(request: Request) -> Response:
            context: Context = request.app.state.context
            operation: Operation = request.app.state.operations[name]
            request.state.caller = await authorise(request, context, name, operation.need)
            if operation.need is not Need.NOTHING:  # Those take no parameters.
                check_parameters(request)
            if operation.admit is not None:
                await run_in_threadpool(operation.admit, context, request)
            return await handle(request)

        return guarded


def build_routes(operations: Iterable[Operation]) -> list[BaseRoute]:
    router = APIRouter(route_class=GuardedRoute)
    for operation in operations:
        _add(router, operation)
    return router.routes


def _add(router: APIRouter, operation: Operation) -> None:
    endpoint, need = operation.endpoint, operation.need
    options = dict(operation.options)
    summary, _, more = (endpoint.__doc__ or "").partition("\n")
    problems = sorted({*operation.problems, 422, 503, *(() if need is Need.NOTHING else (400, 401, 403))})
    # By name: given as a model, FastAPI would build a validator of it for each status of each route.
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{operation.error_body.__name__}"}}}
    scheme = _SCHEMES.get(need)
    security: dict[str, Any] = {"security": [{scheme: []}]} if scheme else {}
    router.add_api_route(
        operation.path,
        endpoint if inspect.iscoroutinefunction(endpoint) else _on_thread(endpoint),
        methods=[operation.method],
        operation_id=operation.name,
        summary=summary.strip().rstrip("."),
        description=" ".join(more.split()) or (f"For {need}." if need is not Need.NOTHING else ""),
        responses={
            **{status: {"description": _PROBLEMS[status], "content": content} for status in problems},
            **options.pop("responses", {}),
        },
        openapi_extra={**security, "x-qo-needs": str(need), **options.pop("extra", {})},
        **options,
    )


def _on_thread(endpoint: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Run the endpoint on a thread, because the database blocks. FastAPI itself would use a second thread to validate
    the result."""

    @functools.wraps(endpoint)
    async def run(**arguments: Any) -> Any:
        return await run_in_threadpool(endpoint, **arguments)

    return run


def describe(
    routes: list[BaseRoute],
    title: str,
    description: str,
    version: str,
    error_bodies: Iterable[type[BaseModel]] = (Problem,),
) -> dict[str, Any]:
    """Return the OpenAPI document of the routes: FastAPI's, and how each kind of caller authenticates."""
    document = get_openapi(title=title, version=version, description=description, routes=routes)
    schemes = {name: {"type": "http", "scheme": "bearer", "description": text} for name, text in _TOKENS.items()}
    schemes["task"] = {
        "type": "apiKey",
        "in": "header",
        "name": "X-Qo-Task-Capability",
        "description": "The capability of the attempt, from its claim; also accepted as a bearer token.",
    }
    components = document["components"]
    components["securitySchemes"] = schemes
    schemas = components.setdefault("schemas", {})
    for each in error_bodies:
        schema = each.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= {**schema.pop("$defs", {}), each.__name__: schema}
    return document
