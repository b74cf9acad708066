"""The declaration of a call: its route, its parameters and its answers. The OpenAPI file is made of the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from qo.core import wire
from qo.core.durations import parse_duration_s, parse_instant
from qo.errors import UsageError
from qo.queue.queue import Queue
from qo.queue_api.guard import Caller, Rates
from qo.queue_api.watcher import Watcher

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was authorised."""

    request: Request
    caller: Caller
    queue: Queue
    watcher: Watcher
    rates: Rates
    arguments: Mapping[str, Any]  # Of the path and the query, by name; missing ones have their default.

    async def document(self) -> Any:
        """Return the body as JSON; None if there is none. Raises UsageError."""
        try:
            body = await self.request.body()
        except ClientDisconnect:
            raise UsageError("the body did not come whole") from None
        return None if not body.strip() else wire.decode_json(body, "the body")

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)


Endpoint = Callable[[Call], Awaitable[Response]]
Parse = Callable[[str, str], Any]  # Takes the text and the name of the parameter. Raises UsageError.


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    place: str  # path, query or header
    parse: Parse
    schema: Mapping[str, Any]
    description: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str  # Below the prefix of the API.
    endpoint: Endpoint
    parameters: Sequence[Parameter] = ()
    body: Mapping[str, Any] | None = None  # The schema of the body.
    body_required: bool = True
    answers: Mapping[int, tuple[str, Mapping[str, Any] | None]] = field(
        default_factory=dict[int, tuple[str, Mapping[str, Any] | None]]
    )  # A description and a schema, by status; without a schema, there is no body.
    problems: Sequence[int] = ()  # Statuses of its errors, beside those that every operation has.
    media_type: str = JSON

    @property
    def name(self) -> str:
        return self.endpoint.__name__

    def read_arguments(self, request: Request) -> dict[str, Any]:
        """Return the values of the path and the query. Raises UsageError for a wrong or an unknown one."""
        allowed_names = {each.name for each in self.parameters if each.place == "query"}
        for name in request.query_params:
            if name not in allowed_names:
                allowed = f": there are {', '.join(sorted(allowed_names))}" if allowed_names else ""
                raise UsageError(f"unknown parameter {name!r}{allowed}")
        values: dict[str, Any] = {}
        for each in self.parameters:
            source: Mapping[str, str] = request.path_params if each.place == "path" else request.query_params
            if each.place != "header":
                text = source.get(each.name)
                values[each.name] = each.default if text is None else each.parse(text, each.name)
        return values


def text_of(text: str, name: str) -> str:
    return text


def duration_of(low: float, high: float) -> Parse:
    def parse(text: str, name: str) -> float:
        seconds = parse_duration_s(text, name)
        if not low <= seconds <= high:
            raise UsageError(f"{name} must be between {low:g} and {high:g} seconds, not {text}")
        return seconds

    return parse


def whole_of(low: int, high: int) -> Parse:
    def parse(text: str, name: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
            raise UsageError(f"{name} must be a whole number from {low} to {high}, not {text[:40]!r}")
        return int(text)

    return parse


def choice_of(values: Sequence[str]) -> Parse:
    def parse(text: str, name: str) -> str:
        if text not in values:
            raise UsageError(f"{name} must be one of {', '.join(values)}, not {text[:40]!r}")
        return text

    return parse


def instant_of(text: str, name: str) -> datetime:
    return parse_instant(text, name)
