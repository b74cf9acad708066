"""The routes of the API below any prefix, and their OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from qo.api.contract.body import Problem
from qo.queue.queue import Queue
from qo.queue_api import task_changes, task_reading, task_schema
from qo.queue_api.api_rights import RIGHTS, names_of
from qo.queue_api.guard import Guard, Rates, WaitShares
from qo.queue_api.operation import JSON, Call, Operation
from qo.queue_api.task_answer import schemas
from qo.queue_api.watcher import Watcher

OPERATIONS: Mapping[str, Operation] = {
    each.name: each for each in (*task_changes.OPERATIONS, *task_reading.OPERATIONS)
}
API_VERSION = "1"
_WAITS = ("/wait", "/events")
_PROBLEM = {JSON: {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
_PROBLEMS = {
    400: "The request is wrong: the body says what.",
    401: "The token is missing or unknown.",
    403: "The token does not allow this.",
    404: "There is no such task.",
    409: "The state of the task does not allow it, or the key was used for something else.",
    413: "The body is larger than the server reads.",
    429: "Too many requests of this token: repeat after Retry-After seconds.",
    503: "The server is busy, or the store does not answer: repeat after Retry-After seconds.",
}


@dataclass(frozen=True, slots=True)
class QueueApi:
    """What the routes need."""

    queue: Queue
    guard: Guard
    watcher: Watcher
    rates: Rates
    wait_shares: WaitShares


def build_mount(prefix: str, api: QueueApi) -> Mount:
    """Return the routes below a prefix. A path with a slash too many is unknown: a redirect would go to the Host that
    the caller names."""
    routes = [OperationRoute(operation, api) for operation in OPERATIONS.values()]
    return Mount(prefix, app=Router(routes=routes, redirect_slashes=False))


def waits(scope: Scope) -> bool:
    """Whether the request mostly waits for a task."""
    return scope["path"].endswith(_WAITS)


class OperationRoute(Route):
    """The route of one operation. It takes exactly one method: GET does not imply HEAD."""

    def __init__(self, operation: Operation, api: QueueApi) -> None:
        super().__init__(operation.path, _Handler(operation, api), name=operation.name)
        self.methods = {operation.method}
        self.operation_id = f"queue_{operation.name}"

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            allowed = sorted({each.method for each in OPERATIONS.values() if each.path == self.path})
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": ", ".join(allowed)})
        await super().handle(scope, receive, send)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        if match is not Match.NONE:
            child_scope["route"] = self  # For the metrics.
        return match, child_scope


class _Handler:
    """The ASGI application of one operation: the caller is authorised before the body is read."""

    def __init__(self, operation: Operation, api: QueueApi) -> None:
        self._operation = operation
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        api, operation, request = self._api, self._operation, Request(scope, receive)
        caller = await api.guard.authorise(request, operation.name)
        api.rates.spend(caller)
        arguments = operation.read_arguments(request)
        with api.wait_shares.hold(caller) if waits(scope) else nullcontext():
            response = await operation.endpoint(
                Call(request, caller, api.queue, api.watcher, api.rates, arguments)
            )
            await response(scope, receive, send)


def describe(prefix: str = "/v1") -> dict[str, Any]:
    """Return the OpenAPI document of the routes below the prefix."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS.values():
        paths.setdefault(prefix + operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "qo queue", "version": API_VERSION, "description": "Submit tasks, and follow them."},
        "paths": paths,
        "components": {
            "schemas": {
                **schemas(),
                "NewTask": task_schema.NEW_TASK,
                Problem.__name__: Problem.model_json_schema(),
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of qo serve token create.",
                }
            },
        },
    }


def _describe(operation: Operation) -> dict[str, Any]:
    summary, _, more = (operation.endpoint.__doc__ or "").partition("\n")
    needs = names_of(RIGHTS[operation.name])
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": summary.strip().rstrip("."),
        "description": " ".join(more.split()) or f"For {needs}.",
        "security": [{"token": []}],
        "x-qo-needs": needs,
        "parameters": [
            {
                "name": each.name,
                "in": each.place,
                "required": each.place == "path",
                "schema": dict(each.schema),
                "description": each.description,
            }
            for each in operation.parameters
        ],
        "responses": _describe_answers(operation),
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {JSON: {"schema": dict(operation.body)}},
        }
    return described


def _describe_answers(operation: Operation) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, (description, schema) in sorted(operation.answers.items()):
        content = {} if schema is None else {"content": {operation.media_type: {"schema": dict(schema)}}}
        answers[str(status)] = {"description": description, **content}
    with_body = (413,) if operation.method == "POST" else ()
    for status in sorted({*operation.problems, *with_body, 400, 401, 403, 429, 503}):
        answers[str(status)] = {"description": _PROBLEMS[status], "content": _PROBLEM}
    return answers
