"""The declaration of routes.

A route is declared by an endpoint: its name is the operation, its docstring the summary, and the table of rights says
who may call it. ``fastapi_routes`` and ``starlette_routes`` make routes of the declared operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import BaseModel
from starlette.requests import Request

from qo.api.contract import storable
from qo.api.contract.body import Problem
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.callers import Caller
from qo.dispatcher.http.rights import Need
from qo.errors import UsageError

PAGE_MAX = 1000

# Checks a request before its body is read, and raises to refuse it. Blocking.
Admit = Callable[[Context, Request], None]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation: who calls, and the body."""

    caller: Caller
    body: Any


# Answers several calls of an operation in one transaction, all or none. Blocking.
AnswerTogether = Callable[[Context, Sequence[Call]], Sequence[Any]]


# Coroutines, though they never wait: FastAPI would run plain functions on a thread each time.


async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


ContextParam = Annotated[Context, Depends(_context)]
CallerParam = Annotated[Caller, Depends(_caller)]
After = Annotated[str | None, Query(max_length=500, description="Where the page before ended: its next.")]
AfterPiece = Annotated[str | None, Query(max_length=500, description="Where the page before ended: its after.")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many at most.")]


@dataclass(frozen=True, slots=True)
class Operation:
    """One declared call."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    need: Need
    problems: tuple[int, ...]  # Statuses of its errors, beside those that every operation has.
    admit: Admit | None = None
    frequent: bool = False  # Every task calls it.
    together: AnswerTogether | None = None  # Answers calls that wait at the same time; None: each on its own.
    error_body: type[BaseModel] = Problem
    options: Mapping[str, Any] = field(
        default_factory=dict[str, Any]
    )  # As FastAPI's ``add_api_route`` takes them.

    @property
    def name(self) -> str:
        return self.endpoint.__name__


class Routes:
    """The operations of one listener. Independent of a context, so that all applications of a process share them."""

    def __init__(self, rights: Mapping[str, Need]) -> None:
        self.operations: dict[str, Operation] = {}
        self._rights = rights

    def get(self, path: str, endpoint: Callable[..., Any], *problems: int, **options: Any) -> None:
        self._add("GET", path, endpoint, problems, **options)

    def head(self, path: str, endpoint: Callable[..., Any], *problems: int, **options: Any) -> None:
        self._add("HEAD", path, endpoint, problems, **options)

    def post(self, path: str, endpoint: Callable[..., Any], *problems: int, **options: Any) -> None:
        self._add("POST", path, endpoint, (413, *problems), **options)

    def put(self, path: str, endpoint: Callable[..., Any], *problems: int, **options: Any) -> None:
        self._add("PUT", path, endpoint, (413, *problems), **options)

    def delete(self, path: str, endpoint: Callable[..., Any], *problems: int, **options: Any) -> None:
        self._add("DELETE", path, endpoint, problems, **options)

    def _add(
        self,
        method: str,
        path: str,
        endpoint: Callable[..., Any],
        problems: tuple[int, ...],
        *,
        admit: Admit | None = None,
        frequent: bool = False,
        together: AnswerTogether | None = None,
        error_body: type[BaseModel] = Problem,
        **options: Any,
    ) -> None:
        """Raises KeyError for an operation without a right."""
        need = self._rights[endpoint.__name__]
        if need is Need.SIGNATURE and admit is None:
            raise TypeError(
                f"{endpoint.__name__} reads a body from anybody: pass admit= to check the headers first"
            )
        operation = Operation(
            method, path, endpoint, need, problems, admit, frequent, together, error_body, options
        )
        self.operations[operation.name] = operation


def check_parameters(request: Request) -> None:
    """Raise UsageError for a path or query that the state cannot store. Bodies check themselves: see ``Body``."""
    scope = request.scope
    if not scope["path_params"] and not scope["query_string"]:
        return
    texts = (scope["path"], *(value for _, value in request.query_params.multi_items()))
    if not all(storable.is_storable(text) for text in texts):
        raise UsageError("the path or the query holds a NUL: remove it")
