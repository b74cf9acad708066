"""The parameters of an endpoint, read from a request and validated as FastAPI would, with the same errors."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import Any, get_type_hints

from fastapi import params
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

_REQUIRED = inspect.Parameter.empty
_MISSING = object()

Errors = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value from the path, the query or the body."""

    name: str
    location: tuple[str, ...]  # As errors give it: ("query", "limit").
    adapter: TypeAdapter[Any]
    default: Any = _REQUIRED

    def validate(self, value: Any, errors: Errors) -> Any:
        """Return the value as the endpoint takes it, or add to ``errors`` what is wrong with it."""
        if value is _MISSING:
            if self.default is not _REQUIRED:
                return self.default
            errors.append({"type": "missing", "loc": self.location, "msg": "Field required"})
            return None
        try:
            return self.adapter.validate_python(value, from_attributes=True)
        except ValidationError as error:
            errors.extend(
                {**each, "loc": (*self.location, *each["loc"])} for each in error.errors(include_url=False)
            )
            return None


@dataclass(frozen=True, slots=True)
class Signature:
    """What an endpoint takes: a context, perhaps the caller and a body, and values of the path and the query."""

    path: tuple[Parameter, ...]
    query: tuple[Parameter, ...]
    body: Parameter | None
    takes_caller: bool

    @classmethod
    def of(cls, endpoint: Callable[..., Any]) -> Signature:
        """Raises TypeError for an endpoint with a parameter that is none of these."""
        hints = get_type_hints(endpoint, include_extras=True)
        path: list[Parameter] = []
        query: list[Parameter] = []
        body: Parameter | None = None
        for name, parameter in inspect.signature(endpoint).parameters.items():
            marks: tuple[Any, ...] = getattr(hints[name], "__metadata__", ())
            if name == "body":
                body = Parameter(name, ("body",), TypeAdapter(hints[name]))
            elif any(isinstance(mark, params.Path) for mark in marks):
                path.append(Parameter(name, ("path", name), TypeAdapter(hints[name])))
            elif any(isinstance(mark, params.Query) for mark in marks):
                query.append(Parameter(name, ("query", name), TypeAdapter(hints[name]), parameter.default))
            elif name not in ("context", "caller"):
                raise TypeError(f"{endpoint.__name__} takes {name}: mark it as Path() or Query(), or call it body")
        return cls(tuple(path), tuple(query), body, "caller" in hints)

    async def read(self, request: Request) -> dict[str, Any]:
        """Return the arguments of the endpoint, without context and caller.

        Raises RequestValidationError or HTTPException for what is wrong with them.
        """
        content = await _read_json(request) if self.body is not None else _MISSING
        errors: Errors = []
        arguments = {each.name: each.validate(request.path_params[each.name], errors) for each in self.path}
        if self.query:
            values: Mapping[str, str] = request.query_params
            for each in self.query:
                arguments[each.name] = each.validate(values.get(each.name, _MISSING), errors)
        if self.body is not None:
            arguments["body"] = self.body.validate(content, errors)
        if errors:
            raise RequestValidationError(errors)
        return arguments


async def _read_json(request: Request) -> Any:
    """Return the decoded body; its bytes if its content type is not JSON; ``_MISSING`` if it is empty."""
    try:
        content = await _read_body(request)
        if not content:
            return _MISSING
        return json.loads(content) if _is_json(request.headers.get("content-type", "")) else content
    except json.JSONDecodeError as error:
        problem = {"type": "json_invalid", "loc": ("body", error.pos), "ctx": {"error": error.msg}}
        raise RequestValidationError([problem]) from error
    except (ValueError, RecursionError, ClientDisconnect) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "There was an error parsing the body") from error


async def _read_body(request: Request) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _is_json(content_type: str) -> bool:
    if content_type == "application/json":
        return True
    if not content_type:
        return False
    message = Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
