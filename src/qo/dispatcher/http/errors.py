"""Errors as HTTP answers: a status, and a body that says what was wrong and what to do about it.

What nobody foresaw is logged under an id, and the caller is told the id and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from qo import errors
from qo.ambient import SYSTEM
from qo.api.contract.body import Problem
from qo.errors import QoError

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1
DETAILS_MAX = 200

# Each error that callers can tell apart: its code, its status and its class; the first that fits counts.
# The client turns codes back into the same classes.
KINDS: tuple[tuple[str, HTTPStatus, type[QoError]], ...] = (
    ("lease_lost", HTTPStatus.CONFLICT, errors.LeaseLost),
    ("cancelled", HTTPStatus.CONFLICT, errors.Cancelled),
    ("idempotency_conflict", HTTPStatus.CONFLICT, errors.IdempotencyConflict),
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

_CODES = {
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "too_large",
    HTTPStatus.REQUEST_TIMEOUT: "too_slow",
    HTTPStatus.SERVICE_UNAVAILABLE: "busy",
}


def answer(
    status: int, code: str, error: str, detail: Sequence[str] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    problem = Problem(error=error, code=code, detail=list(detail[:DETAILS_MAX]))
    return JSONResponse(problem.model_dump(), status, headers=headers)


def told(request: Request, error: QoError | HTTPException) -> JSONResponse:
    """The answer to who has caused it."""
    return _plain(request, error) if isinstance(error, HTTPException) else _known(request, error)


def install(app: FastAPI) -> None:
    app.add_exception_handler(QoError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _plain)
    app.add_exception_handler(Exception, _unforeseen)


def _known(request: Request, error: Exception) -> JSONResponse:
    for note in getattr(error, "__notes__", ()):
        log.warning("%s: %s", error, note)  # For us only.
    for code, status, kind in KINDS:
        if isinstance(error, kind):
            return answer(status, code, str(error), headers=_headers(status))
    if isinstance(error, errors.UsageError) and not isinstance(error, errors.ConfigError):
        detail = _details(error)
        said = "the definition is refused: fix what detail names" if detail else str(error)
        return answer(HTTPStatus.BAD_REQUEST, USAGE, said, detail)
    return _unforeseen(request, error)  # Our own settings, bucket or records: nothing that the caller can mend.


def _details(error: Exception) -> list[str]:
    """Some errors are many at once, as those of a DAG file."""
    said: Sequence[object] = getattr(error, "problems", ())
    return [str(each) for each in said]


def _headers(status: HTTPStatus) -> dict[str, str]:
    if status is HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": "Bearer"}
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {}


def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found: Sequence[Any] = error.errors()
    malformed = [each for each in found if each["type"] == "json_invalid"]
    if malformed:
        said = f"the body is not JSON: {malformed[0]['ctx']['error']} at character {malformed[0]['loc'][-1]}"
        return answer(HTTPStatus.BAD_REQUEST, USAGE, said)
    kind = request.headers.get("content-type", "")
    if "json" not in kind.lower() and any(tuple(each["loc"]) == ("body",) for each in found):
        came = f"came as {kind[:80]!r}" if kind else "came without one"
        said = f"the body is JSON: send it with the header Content-Type: application/json (it {came})"
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, INVALID, said)
    detail = [f"{_place(each['loc'])}: {each['msg']}" for each in found]
    said = "the request does not have the form that is asked for: fix what detail names"
    return answer(HTTPStatus.UNPROCESSABLE_ENTITY, INVALID, said, detail)


def _place(where: Sequence[Any]) -> str:
    parts = [str(part) for part in where if part != "body"]
    return ".".join(parts) or "body"


def _plain(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    said = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND and said == HTTPStatus.NOT_FOUND.phrase:
        said = f"there is nothing at {request.url.path}: see /openapi.json for what there is{_elsewhere(request)}"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        said = f"{request.url.path} does not take {request.method}: use {allowed}"
    code = _CODES.get(HTTPStatus(error.status_code), USAGE)
    return answer(error.status_code, code, said, headers=error.headers)


def _elsewhere(request: Request) -> str:
    """There are two listeners, and they are easily mistaken for each other."""
    for_tasks = request.url.path.startswith(("/internal/", "/v1/task/"))
    inside = str(request.app.title).endswith("internal")
    if inside and not for_tasks:
        return "; this listener is for workers, and people are served by the other one, by default on port 8470"
    if for_tasks and not inside:
        return "; this listener is for people, and workers are served by the other one, by default on port 8471"
    return ""


def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    incident = SYSTEM.token()[:12]
    # Both as they were sent are a caller's words: quoted, they stay within the line.
    log.error("incident %s: %r %r failed", incident, request.method, request.url.path, exc_info=error)
    said = f"this went wrong on our side: look for incident {incident} in the log of the dispatcher"
    return answer(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", said)
