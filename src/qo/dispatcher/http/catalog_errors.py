"""Errors of the catalogue in the form that its clients know, and the refusal of every write.

Clients of Apache Iceberg turn the type of an error into an exception of their own, and show its message to people.
"""

from __future__ import annotations

import re
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse

from qo.api.contract.catalog import AccessTokenError, CatalogError, CatalogProblem
from qo.errors import NotFound

PREFIX = "/iceberg"
TOKENS = f"{PREFIX}/v1/oauth/tokens"
_TYPES = {
    HTTPStatus.BAD_REQUEST: "BadRequestException",
    HTTPStatus.UNAUTHORIZED: "NotAuthorizedException",
    HTTPStatus.FORBIDDEN: "ForbiddenException",
    HTTPStatus.NOT_FOUND: "NotFoundException",
    HTTPStatus.NOT_ACCEPTABLE: "UnsupportedOperationException",
    HTTPStatus.CONFLICT: "UnsupportedOperationException",
    HTTPStatus.TOO_MANY_REQUESTS: "SlowDownException",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalServerError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableException",
}
_OAUTH_CODES = {HTTPStatus.BAD_REQUEST: "invalid_request", HTTPStatus.UNAUTHORIZED: "invalid_client"}
_NAMESPACES = rf"{PREFIX}/v1/namespaces"
# What to do in place of a write, by method and path.
_INSTEAD = tuple(
    (re.compile(rf"{pattern}\Z"), advice)
    for pattern, advice in (
        (
            rf"\w+ {_NAMESPACES}(/[^/]+)?(/properties)?",
            "a namespace is a pipeline that publishes datasets: qo dag deploy makes one",
        ),
        (
            rf"POST {_NAMESPACES}/[^/]+/(tables|register)",
            "a table is a dataset that a pipeline publishes: add a job, name its output under 'publish:', and deploy",
        ),
        (rf"\w+ {_NAMESPACES}/[^/]+/views(/.*)?", "there are no views: publish the output of a job that runs SQL"),
        (
            rf"DELETE {_NAMESPACES}/[^/]+/tables/[^/]+",
            "remove its name under 'publish:' of the pipeline, and deploy",
        ),
        (
            rf"POST {PREFIX}/v1/(tables|views)/rename",
            "change its name under 'publish:' of the pipeline, and deploy",
        ),
    )
)
_ELSE = "rows change when a job of the pipeline commits: emit new data, or change the job"


class NoSuchNamespace(NotFound):
    pass


class NoSuchTable(NotFound):
    pass


_NOT_FOUND: dict[type[NotFound], str] = {
    NoSuchNamespace: "NoSuchNamespaceException",
    NoSuchTable: "NoSuchTableException",
}


def is_catalog_path(path: str) -> bool:
    return path.startswith(f"{PREFIX}/")


def reshape(request: Request, error: Exception, response: JSONResponse) -> JSONResponse:
    """Return the response to an error as a client of the catalogue expects it; that of any other path as it is."""
    path = request.url.path
    if not is_catalog_path(path):
        return response
    status = HTTPStatus(response.status_code)
    message = _message(response)
    if path == TOKENS and request.method == "POST":
        code = _OAUTH_CODES.get(status, "invalid_request" if status < 500 else "server_error")
        body = AccessTokenError(error=code, error_description=message).model_dump()
        return JSONResponse(body, status, headers=_kept_headers(response))
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED) and request.method not in ("GET", "HEAD"):
        status, message = HTTPStatus.NOT_ACCEPTABLE, refuse_write(request.method, path)
    elif status is HTTPStatus.UNPROCESSABLE_ENTITY:
        status = HTTPStatus.BAD_REQUEST
    return catalog_error(status, message, _type(status, path, error), _kept_headers(response))


def catalog_error(
    status: HTTPStatus, message: str, kind: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    problem = CatalogProblem(message=message, type=kind, code=int(status))
    return JSONResponse(CatalogError(error=problem).model_dump(), status, headers=headers)


def refuse_write(method: str, path: str) -> str:
    """Return why the catalogue does not do this, and what to do instead."""
    text = f"{method} {path}"
    advice = next((advice for pattern, advice in _INSTEAD if pattern.match(text)), _ELSE)
    return f"this catalogue is read-only: {advice}"


def _type(status: HTTPStatus, path: str, error: Exception) -> str:
    if status is HTTPStatus.NOT_FOUND:
        if "/views" in path:
            return "NoSuchViewException"
        return _NOT_FOUND.get(type(error), _TYPES[status]) if isinstance(error, NotFound) else _TYPES[status]
    return _TYPES.get(status, "RESTException")


def _message(response: JSONResponse) -> str:
    body = msgspec.json.decode(bytes(response.body))
    return "; ".join([body["error"], *body["detail"]])


def _kept_headers(response: JSONResponse) -> dict[str, str]:
    return {name: text for name, text in response.headers.items() if name in ("www-authenticate", "retry-after")}
