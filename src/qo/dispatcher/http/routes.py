"""How routes are declared: the endpoint's name is the operation, its docstring the summary, and the table of
rights says who may call it. Whoever may not is turned away before the body is read."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from qo.api.contract import plain
from qo.api.contract.body import Problem
from qo.dispatcher.http import principals
from qo.dispatcher.http.context import Context
from qo.dispatcher.http.direct import Call
from qo.dispatcher.http.principals import Who
from qo.dispatcher.http.rights import Need
from qo.errors import Forbidden, Unauthenticated, UsageError

log = logging.getLogger(__name__)

PAGE_MAX = 1000

_SAYS = {
    400: "The request breaks a rule: the body says which.",
    401: "No token, or one that nobody knows: the body says which to present.",
    403: "The token does not allow this.",
    404: "There is no such thing.",
    409: "The state of things does not allow it: look again, then decide again.",
    413: "The body is larger than the dispatcher reads.",
    422: "A field is missing or has the wrong form: detail names each.",
    503: "Busy, or without its database: ask again after Retry-After seconds.",
}
# By name: were it given as a model, FastAPI would make a validator of it for each status of each route.
_PROBLEM = {"application/json": {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
_SCHEMES = {
    Need.READER: "user",
    Need.WRITER: "user",
    Need.ADMIN: "user",
    Need.WORKER: "worker",
    Need.TASK: "task",
}


def context_of(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


def who_of(request: Request) -> Who:
    found: Who = request.state.who
    return found


# Coroutines, though they wait for nothing: for plain functions, FastAPI asks a thread each time.


async def _here(request: Request) -> Context:
    return context_of(request)


async def _caller(request: Request) -> Who:
    return who_of(request)


Here = Annotated[Context, Depends(_here)]
Caller = Annotated[Who, Depends(_caller)]
After = Annotated[str | None, Query(max_length=500, description="Where the page before ended: its next.")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many at most.")]


# Looks at a request before its body is read, and raises for one that is refused. Blocking.
Admit = Callable[[Context, Request], None]


class _Guarded(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        operation = self.operation_id or ""

        async def guarded(request: Request) -> Response:
            context, need = context_of(request), rights_of(request.app)[operation]
            try:
                # Most tokens are looked up in the database, which blocks.
                request.state.who = principals.recognise(
                    context, need, request.headers
                ) or await run_in_threadpool(principals.identify, context, need, request.headers)
            except (Unauthenticated, Forbidden) as error:
                log.warning("%s was refused to %s: %s", operation, _where_from(request), error)
                raise
            if need is not Need.NOTHING:  # Those take no parameters.
                _check_parameters(request)
            if (admit := request.app.state.admissions.get(operation)) is not None:
                await run_in_threadpool(admit, context, request)
            return await handle(request)

        return guarded


def _check_parameters(request: Request) -> None:
    """Raises UsageError for text that the state could not even look for. Bodies see to themselves: see ``Body``."""
    said = (request.scope["path"], *(value for _, value in request.query_params.multi_items()))
    if not all(plain.fits(each) for each in said):
        raise UsageError("the path or the query holds a NUL: remove it")


def _where_from(request: Request) -> str:
    return request.client.host if request.client is not None else "somebody here"


def rights_of(app: FastAPI) -> Mapping[str, Need]:
    found: Mapping[str, Need] = app.state.rights
    return found


def _threaded(endpoint: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The endpoint on a thread, because the database blocks. FastAPI would do the same, and once more to check what
    the endpoint answers."""

    @functools.wraps(endpoint)
    async def threaded(**arguments: Any) -> Any:
        return await run_in_threadpool(endpoint, **arguments)

    return threaded


class Routes:
    """The routes of one listener. They know no context, so that one set serves all applications of a process: to put
    it together takes FastAPI longer than most requests."""

    def __init__(self, rights: Mapping[str, Need]) -> None:
        self.direct: dict[str, Call] = {}
        self.schema: dict[str, Any] | None = None  # OpenAPI's, once somebody has asked for it.
        self._rights = rights
        self._admissions: dict[str, Admit] = {}
        self._router = APIRouter(route_class=_Guarded)

    def add_to(self, app: FastAPI) -> None:
        app.state.rights = self._rights
        app.state.admissions = self._admissions
        app.router.routes.extend(self._router.routes)

    def get(self, path: str, endpoint: Callable[..., Any], *problems: int, **options: Any) -> None:
        self._add("GET", path, endpoint, problems, options)

    def post(self, path: str, endpoint: Callable[..., Any], *problems: int, **options: Any) -> None:
        self._add("POST", path, endpoint, (413, *problems), options)

    def post_direct(self, path: str, endpoint: Callable[..., Any], *problems: int) -> None:
        """As ``post``, for what every task asks: see ``direct``."""
        self.post(path, endpoint, *problems)
        route = self._router.routes[-1]
        assert isinstance(route, APIRoute)
        self.direct[path] = Call.of(route, self._rights[endpoint.__name__], endpoint)

    def put(self, path: str, endpoint: Callable[..., Any], *problems: int, **options: Any) -> None:
        self._add("PUT", path, endpoint, (413, *problems), options)

    def delete(self, path: str, endpoint: Callable[..., Any], *problems: int, **options: Any) -> None:
        self._add("DELETE", path, endpoint, problems, options)

    def _add(
        self,
        method: str,
        path: str,
        endpoint: Callable[..., Any],
        problems: tuple[int, ...],
        options: dict[str, Any],
    ) -> None:
        operation = endpoint.__name__
        need = self._rights[operation]
        admit: Admit | None = options.pop("admit", None)
        if admit is not None:
            self._admissions[operation] = admit
        elif need is Need.SIGNATURE:
            raise TypeError(f"{operation} would read the body of anybody: say what to look at before, with admit")
        summary, _, more = (endpoint.__doc__ or "").partition("\n")
        told = sorted({*problems, 422, 503, *(() if need is Need.NOTHING else (400, 401, 403))})
        scheme = _SCHEMES.get(need)
        extra: dict[str, Any] = {"security": [{scheme: []}]} if scheme else {}
        self._router.add_api_route(
            path,
            endpoint if inspect.iscoroutinefunction(endpoint) else _threaded(endpoint),
            methods=[method],
            operation_id=operation,
            summary=summary.strip().rstrip("."),
            description=" ".join(more.split()) or (f"For {need}." if need is not Need.NOTHING else ""),
            responses={status: {"description": _SAYS[status], "content": _PROBLEM} for status in told},
            openapi_extra={**extra, "x-qo-needs": str(need), **options.pop("extra", {})},
            **options,
        )
