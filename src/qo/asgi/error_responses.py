"""Errors as HTTP responses: a status, and a body that says what was wrong and what to do about it.

An unexpected error is logged under an id, and the caller learns the id and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from qo import errors
from qo.ambient import SYSTEM
from qo.api.contract.body import Problem
from qo.errors import QoError

log = logging.getLogger(__name__)

Handler = Callable[[Request, Exception], JSONResponse]
Reshape = Callable[[Request, Exception, JSONResponse], JSONResponse]

RETRY_AFTER_S = 1
DETAILS_MAX = 200

# Each error that callers can tell apart: its code, its status and its class. The first match counts. The client turns
# codes back into the same classes.
KINDS: tuple[tuple[str, HTTPStatus, type[QoError]], ...] = (
    ("lease_lost", HTTPStatus.CONFLICT, errors.LeaseLost),
    ("cancelled", HTTPStatus.CONFLICT, errors.Cancelled),
    ("idempotency_conflict", HTTPStatus.CONFLICT, errors.IdempotencyConflict),
    ("held_back", HTTPStatus.TOO_MANY_REQUESTS, errors.HeldBack),
    ("refused", HTTPStatus.CONFLICT, errors.Refused),
    ("not_found", HTTPStatus.NOT_FOUND, errors.NotFound),
    ("unauthenticated", HTTPStatus.UNAUTHORIZED, errors.Unauthenticated),
    ("forbidden", HTTPStatus.FORBIDDEN, errors.Forbidden),
    ("unavailable", HTTPStatus.SERVICE_UNAVAILABLE, errors.Unavailable),
    ("contended", HTTPStatus.SERVICE_UNAVAILABLE, errors.Contended),
    ("corrupt", HTTPStatus.INTERNAL_SERVER_ERROR, errors.CorruptRecord),
)
USAGE = "usage"  # 400: the request breaks a rule. 422: a field is missing or has the wrong form.
INVALID = "invalid"
INTERNAL = "internal"

_CODES = {
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "too_large",
    HTTPStatus.REQUEST_TIMEOUT: "too_slow",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limited",
    HTTPStatus.SERVICE_UNAVAILABLE: "busy",
}


def problem_response(
    status: int, code: str, error: str, detail: Sequence[str] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    problem = Problem(error=error, code=code, detail=list(detail[:DETAILS_MAX]))
    return JSONResponse(problem.model_dump(), status, headers=headers)


def install(app: Starlette, reshape: Reshape | None = None) -> None:
    """Add the responses. ``app.state.missing_path_hint``, if set, adds to the message for a path without a route.

    ``reshape`` makes what it likes of each response, for callers that expect errors in another form.
    """
    handlers: dict[type[Exception], Handler] = {
        QoError: error_response,
        RequestValidationError: _validation_response,
        HTTPException: _http_error_response,
        Exception: _unexpected_error_response,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler if reshape is None else _reshaped(handler, reshape))


def _reshaped(handler: Handler, reshape: Reshape) -> Handler:
    def respond(request: Request, error: Exception) -> JSONResponse:
        return reshape(request, error, handler(request, error))

    return respond


def error_response(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an error of qo."""
    for note in getattr(error, "__notes__", ()):
        log.warning("%s: %s", error, note)  # Notes are for the operator, not for the caller.
    status, code = classify(error)
    if code == USAGE:
        detail = _details(error)
        message = "the request is refused: fix what detail names" if detail else str(error)
        return problem_response(status, code, message, detail)
    if code == INTERNAL:
        return _unexpected_error_response(request, error)
    return problem_response(status, code, str(error), headers=_headers(status, error))


def classify(error: Exception) -> tuple[HTTPStatus, str]:
    """Return the status and the code of an error of qo."""
    for code, status, kind in KINDS:
        if isinstance(error, kind):
            return status, code
    if isinstance(error, errors.UsageError) and not isinstance(error, errors.ConfigError):
        return HTTPStatus.BAD_REQUEST, USAGE
    # Our own settings, bucket or records: nothing that the caller can mend.
    return HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL


def _details(error: Exception) -> list[str]:
    """Return the single problems of an error that holds many, as those of a DAG file."""
    problems: Sequence[object] = getattr(error, "problems", ())
    return [str(each) for each in problems]


def _headers(status: HTTPStatus, error: Exception) -> dict[str, str]:
    if status is HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": "Bearer"}
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        return {"Retry-After": str(getattr(error, "retry_after_s", RETRY_AFTER_S))}
    return {}


def _validation_response(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems: Sequence[Any] = error.errors()
    malformed = [each for each in problems if each["type"] == "json_invalid"]
    if malformed:
        message = f"the body is not JSON: {malformed[0]['ctx']['error']} at character {malformed[0]['loc'][-1]}"
        return problem_response(HTTPStatus.BAD_REQUEST, USAGE, message)
    content_type = request.headers.get("content-type", "")
    if "json" not in content_type.lower() and any(tuple(each["loc"]) == ("body",) for each in problems):
        actual = f"came as {content_type[:80]!r}" if content_type else "came without one"
        message = f"the body is JSON: send it with the header Content-Type: application/json (it {actual})"
        return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, INVALID, message)
    detail = [f"{_field_path(each['loc'])}: {each['msg']}" for each in problems]
    message = "the request does not have the form that is asked for: fix what detail names"
    return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, INVALID, message, detail)


def _field_path(location: Sequence[Any]) -> str:
    parts = [str(part) for part in location if part != "body"]
    return ".".join(parts) or "body"


def _http_error_response(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message, path = str(error.detail), request.url.path
    if error.status_code == HTTPStatus.NOT_FOUND and message == HTTPStatus.NOT_FOUND.phrase:
        hint: Callable[[str], str] = getattr(request.app.state, "missing_path_hint", lambda _: "")
        message = f"there is nothing at {path}: see /openapi.json for what there is{hint(path)}"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{path} does not take {request.method}: use {allowed}"
    code = _CODES.get(HTTPStatus(error.status_code), USAGE)
    return problem_response(error.status_code, code, message, headers=error.headers)


def _unexpected_error_response(request: Request, error: Exception) -> JSONResponse:
    incident = SYSTEM.token()[:12]
    # The caller chose method and path: quoted, they stay within the line.
    log.error("incident %s: %r %r failed", incident, request.method, request.url.path, exc_info=error)
    message = f"this went wrong on our side: look for incident {incident} in the log of the server"
    return problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL, message)
