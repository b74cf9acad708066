"""While the database is away every route says so, and when to come back: nobody's fault, and nothing to give up for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qo.dispatcher.http.rights import INTERNAL, PUBLIC, Need
from qo.dispatcher.state.database import State, open_state
from support.dispatcher.states import create_tables
from support.dispatcher.surfaces import Surface, surface

ANSWERED = {"livez", "task_keys"}  # Without the database.
UNKNOWN_FORM = {
    "emit_source",
    "sink_step",
    "report_sink",
    "remember_source",
    "fetch_task",
    "emit_events",
    "commit_segments",
} | {
    "credentials",
    "task_kept",
    "last_segment",
    "task_inputs",
    "task_standing",
    "webhook",
}  # Of these the request below may be of the wrong form, which is found out first.


@pytest.fixture
def found(state_url: str, tmp_path: Path) -> Iterator[Surface]:
    """By the database's own clock, as every dispatcher has it."""
    state = open_state(state_url)
    create_tables(state)
    with surface(state, tmp_path) as made:
        yield made
    state.close()


def refuse_connections(state: State) -> None:
    """As a server that was stopped, or a disk that is gone: the open connections end, and no other is made."""
    on_sqlite = state.engine.dialect.name == "sqlite"

    def refused(*_: Any, **__: Any) -> Any:
        raise sqlite3.OperationalError("cannot open") if on_sqlite else psycopg.OperationalError("refused")

    state.engine.dispose()
    state.engine.pool._creator = refused


def take_file_away(state: State) -> None:
    path = state.engine.url.database
    if state.engine.dialect.name != "sqlite" or path is None:
        pytest.skip("this database is no file")
    Path(path).rename(f"{path}.away")


@pytest.mark.parametrize("lose", [refuse_connections, take_file_away])
def test_every_route_says_that_the_database_is_away(found: Surface, lose: Callable[[State], None]) -> None:
    bodies: dict[str, Any] = {
        "claim_task": {"task_id": "t", "worker_id": "w", "lease_id": "l"},
        "exchange_tasks": {"claims": [{"task_id": "t", "worker_id": "w", "lease_id": "l"}]},
        "heartbeat": found.fence,
        "complete": {**found.fence, "outcome": "success"},
    }
    routes = [
        (internal, path, method.upper(), told["operationId"])
        for internal, app in ((False, found.public), (True, found.internal))
        for path, methods in app.state.openapi()["paths"].items()
        for method, told in methods.items()
    ]
    lose(found.context.state)
    for internal, path, method, operation in routes:
        for name, value in found.names.items():
            path = path.replace(f"{{{name}}}", value)
        need = (INTERNAL if internal else PUBLIC)[operation]
        who = None if need in (Need.NOTHING, Need.SIGNATURE) else str(need)
        who = "worker" if need is Need.SCHEDULER else who
        reply = found.ask(method, path, who, internal=internal, send=bodies.get(operation, {}))
        if operation in ANSWERED:
            assert reply.status == 200, (operation, reply.text)
        elif operation == "exchange_token":
            assert reply.status == 401  # Without a token there is nothing to look up.
        elif reply.status == 422:
            assert operation in UNKNOWN_FORM, (operation, reply.text)
        else:
            assert reply.status == 503, (operation, reply.text)
            error = reply.json()
            # The catalogue of tables has errors in the form of its own protocol.
            code = error["error"]["type"] if path.startswith("/iceberg/") else error["code"]
            assert code in ("unavailable", "ServiceUnavailableException"), operation
            assert reply.headers["retry-after"], operation
