"""A dispatcher serves the queue's API, too, for the tokens of its people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from qo.dispatcher.http.app_context import Context
from qo.dispatcher.state.database import State
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from support.dispatcher.listeners import NO_TLS, Served, context_of, listening, served
from support.dispatcher.states import clock, state  # noqa: F401
from support.stores.queues import until


@pytest.fixture
async def dispatcher(state: State, tmp_path: Path) -> AsyncIterator[Served]:  # noqa: F811
    async with served(state, tmp_path) as plain:
        context = replace(context_of(state, tmp_path), queue=Queue(MemoryStore()), on_stop=[])
        async with listening(context) as addresses, httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:
            yield Served(context, addresses, plain.tokens, http, [])


async def test_writers_submit_and_readers_look(dispatcher: Served) -> None:
    made = await dispatcher.post("/v1/queue/tasks", "writer", json={"type": "echo"})
    assert made.status_code == 201
    path = f"/v1/queue/tasks/{made.json()['id']}"
    assert made.headers["location"] == path
    assert (await dispatcher.get(path, "reader")).json()["status"] == "pending"
    assert (await dispatcher.get("/v1/queue/tasks", "reader")).json()["next"] is None
    assert (await dispatcher.post("/v1/queue/tasks", "reader", json={"type": "echo"})).status_code == 403
    assert (await dispatcher.post(f"{path}/cancel", "reader")).status_code == 403
    assert (await dispatcher.get(path)).status_code == 401
    assert (await dispatcher.get(path, "worker")).status_code == 403
    cancelled = (await dispatcher.post(f"{path}/cancel", "writer")).json()
    assert (cancelled["status"], cancelled["cancelled_by"]) == ("cancelled", "a-writer")


async def test_the_queue_is_served_only_if_that_is_set(state: State, tmp_path: Path) -> None:  # noqa: F811
    async with served(state, tmp_path) as plain:
        assert (await plain.get("/v1/queue/tasks", "reader")).status_code == 404


async def test_waits_end_when_the_dispatcher_stops(state: State, tmp_path: Path) -> None:  # noqa: F811
    queue = Queue(MemoryStore())
    task = await queue.submit("echo")
    async with served(state, tmp_path) as plain, httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:
        context = replace(context_of(state, tmp_path), queue=queue, on_stop=[])
        async with listening(context) as addresses:
            headers = {"Authorization": f"Bearer {plain.tokens['reader']}"}
            path = f"{addresses.public}/v1/queue/tasks/{task.id}/wait?timeout=60"
            waiting = asyncio.create_task(http.get(path, headers=headers, timeout=30))
            await until(lambda: _is_waited_for(context))
        assert (await waiting).status_code == 202


async def _is_waited_for(context: Context) -> bool:
    return any(stop.__self__.waiting for stop in context.on_stop)  # type: ignore[attr-defined]
