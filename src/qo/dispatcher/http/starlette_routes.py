"""Starlette routes of declared operations, for the internal listener.

Every task calls it several times, and FastAPI spends more on such a call than the call itself takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.callers import Caller, authorise
from qo.dispatcher.http.etags import has_copy, not_modified
from qo.dispatcher.http.gathering import Gatherer
from qo.dispatcher.http.parameters import Signature
from qo.dispatcher.http.rights import Need
from qo.dispatcher.http.routes import AnswerTogether, Call, Operation, check_parameters

JSON = "application/json"
THREADS = 16  # They wait for a database that takes many writers.


def build_routes(operations: Iterable[Operation]) -> list[BaseRoute]:
    """Build the routes, the frequent ones first: Starlette tries one after the other."""
    return [OperationRoute(operation) for operation in sorted(operations, key=lambda each: not each.frequent)]


def frequent_calls_executor(context: Context) -> ThreadPoolExecutor:
    """Return the threads of the frequent calls. SQLite takes one writer at a time: one thread, and no contention."""
    threads = 1 if context.state.engine.dialect.name == "sqlite" else THREADS
    return ThreadPoolExecutor(threads, thread_name_prefix="qo-frequent")


class OperationRoute(Route):
    """The route of one operation. It takes exactly one method: GET does not imply HEAD."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation.path, Handler(operation), name=operation.name)
        self.methods = {operation.method}
        self.operation_id = operation.name

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        if match is not Match.NONE:
            child_scope["route"] = self  # For the metrics.
        return match, child_scope


class Handler:
    """The ASGI application of one operation. Errors are answered by the handlers of ``errors``."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._signature = Signature.of(operation.endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation, request = self._operation, Request(scope, receive)
        state = scope["app"].state
        context: Context = state.context
        run: Callable[..., Awaitable[Any]] = run_in_threadpool
        if operation.frequent:
            run = partial(asyncio.get_running_loop().run_in_executor, state.frequent_calls_executor)
        caller = await authorise(request, context, operation.name, operation.need, run)
        if operation.need is not Need.NOTHING:  # Those take no parameters.
            check_parameters(request)
        arguments = await self._signature.read(request)
        response: Response
        if operation.together is not None:
            response = await state.gatherers[operation.name].answer(Call(caller, arguments["body"]))
        else:
            response = await run(self._respond, context, caller, arguments)
        if (etag := response.headers.get("etag")) is not None and has_copy(request, etag):
            response = not_modified(dict(response.headers))
        await response(scope, receive, send)

    def _respond(self, context: Context, caller: Caller, arguments: dict[str, Any]) -> Response:
        """Blocking."""
        if self._signature.takes_caller:
            arguments["caller"] = caller
        return respond(self._operation.endpoint(context=context, **arguments))


def respond(result: Response | BaseModel) -> Response:
    if isinstance(result, Response):
        return result
    return Response(result.model_dump_json(by_alias=True), media_type=JSON)


def build_gatherers(
    operations: Iterable[Operation], context: Context, executor: Executor
) -> dict[str, Gatherer[Call, Response]]:
    """Build what gathers the calls of each operation that answers several together, by its name."""

    def gatherer(together: AnswerTogether) -> Gatherer[Call, Response]:
        def answer(calls: Sequence[Call]) -> list[Response]:
            return [respond(each) for each in together(context, calls)]

        return Gatherer(answer, executor, key=lambda call: call.body.task_id)

    return {each.name: gatherer(each.together) for each in operations if each.together is not None}
