"""The calls that every task makes, answered without most of what FastAPI does about a call.

To claim a task and to complete it is all that a small one asks of us, and to take such a request apart and put the
answer together cost more than to find the answer. Here it is the token, the body, the endpoint: the same ones, that
FastAPI would have called. Whatever is out of the ordinary is left to it, and it says what is wrong.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, get_type_hints

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qo.dispatcher.http import errors, principals
from qo.dispatcher.http.context import Context
from qo.dispatcher.http.principals import Who
from qo.dispatcher.http.rights import Need
from qo.errors import Forbidden, QoError, Unauthenticated

JSON = b"application/json"
THREADS = 16  # That wait for a database with many writers.


@dataclass(frozen=True, slots=True)
class Call:
    """One that takes a body, and nothing else of the request."""

    route: APIRoute  # As which it is counted.
    need: Need
    endpoint: Callable[..., BaseModel]
    takes: type[BaseModel]
    wants_caller: bool

    @classmethod
    def of(cls, route: APIRoute, need: Need, endpoint: Callable[..., BaseModel]) -> Call:
        hints = get_type_hints(endpoint)
        return cls(route, need, endpoint, hints["body"], "caller" in hints)

    def answer(self, context: Context, who: Who, body: BaseModel) -> bytes:
        """Blocking."""
        beside = {"caller": who} if self.wants_caller else {}
        return self.endpoint(here=context, body=body, **beside).model_dump_json(by_alias=True).encode()


class Direct:
    """ASGI middleware, the innermost. ``calls``: by path, all of them posts."""

    def __init__(self, app: ASGIApp, *, calls: Mapping[str, Call], context: Context) -> None:
        self._app = app
        self._calls = calls
        self._context = context
        # Where one writes at a time, threads would only wait for each other.
        alone = context.state.engine.dialect.name == "sqlite"
        self._threads: Executor = ThreadPoolExecutor(1 if alone else THREADS, thread_name_prefix="qo-direct")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call(scope)
        if call is None:
            await self._app(scope, receive, send)
            return
        try:
            who = await self._who(call, scope)
            if who is None:
                await self._app(scope, receive, send)
                return
            scope["route"] = call.route
            content = await _whole(receive)
            if content is None:
                return  # Nobody is there any more to be answered.
            body = _read(call.takes, content)
            if body is None:
                await self._app(scope, _again(content, receive), send)
                return
            answer = await self._threaded(call.answer, self._context, who, body)
        except (QoError, HTTPException) as error:
            scope["route"] = call.route
            await errors.told(Request(scope), error)(scope, receive, send)
            return
        length = str(len(answer)).encode()
        headers = [(b"content-length", length), (b"content-type", JSON)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _call(self, scope: Scope) -> Call | None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return None
        call = self._calls.get(scope["path"])
        kinds = [value for name, value in scope["headers"] if name == b"content-type"]
        return call if kinds == [JSON] else None

    async def _who(self, call: Call, scope: Scope) -> Who | None:
        """None if unauthorised: the slow path then finds that out again, and produces the error.

        Raises Unavailable while the database is away.
        """
        headers = Headers(scope=scope)
        try:
            known = principals.recognise(self._context, call.need, headers)
            return known or await self._threaded(principals.identify, self._context, call.need, headers)
        except (Unauthenticated, Forbidden):
            return None

    async def _threaded(self, function: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *given))


async def _whole(receive: Receive) -> bytes | None:
    """The body; None from a client that has hung up."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _read(kind: type[BaseModel], said: bytes) -> BaseModel | None:
    """None for what it cannot be."""
    try:
        return kind.model_validate(json.loads(said))
    except (ValueError, RecursionError):
        return None


def _again(said: bytes, receive: Receive) -> Receive:
    """The body, for another who reads it."""
    left: list[Message] = [{"type": "http.request", "body": said, "more_body": False}]

    async def received() -> Message:
        return left.pop() if left else await receive()

    return received
