"""Whoever sends slowly, or never ends, keeps no place for long, and never the slots of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from qo.asgi.request_limits import BodySlots, Limits
from qo.dispatcher.state.database import State, open_state
from support.dispatcher.listeners import Served, served
from support.dispatcher.pipelines import dag, deployed, source
from support.dispatcher.states import create_tables
from support.stores.queues import until

HOOK = dag("shop", source("hook", "webhook", of={"webhook_path": "/hooks/orders", "secret": "orders"}))


async def read_all(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body", False):
        pass


def asked(app: Limits, receive: Callable[[], Awaitable[Any]], client: str = "10.0.0.1") -> asyncio.Task[None]:
    async def nobody(_: Any) -> None:
        pass

    scope = {"type": "http", "path": "/v1/tokens", "headers": [], "client": (client, 1)}
    return asyncio.create_task(app(scope, receive, nobody))  # type: ignore[arg-type]


async def never() -> Any:
    await asyncio.Event().wait()


async def at_once() -> Any:
    return {"type": "http.request", "body": b"x", "more_body": False}


def problem(task: asyncio.Task[None]) -> int:
    error = task.exception()
    assert isinstance(error, HTTPException)
    return error.status_code


@pytest.mark.fast
async def test_all_pieces_of_a_body_share_one_deadline() -> None:
    pieces = 0

    async def drip() -> Any:
        nonlocal pieces
        pieces += 1
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    app = Limits(read_all, body_bytes_max=1000, body_s=0.1, soon_s=0.02)
    task = asked(app, drip)
    await asyncio.wait({task}, timeout=5)
    assert problem(task) == 408
    assert 1 < pieces < 50  # A thousand would fit.


@pytest.mark.fast
async def test_a_body_that_does_not_come_is_given_up() -> None:
    task = asked(Limits(read_all, body_bytes_max=1000, body_s=0.05, soon_s=0.01), never)
    with pytest.raises(HTTPException, match="send it faster"):
        await task


@pytest.mark.fast
async def test_one_client_takes_the_places_of_no_other_and_not_all() -> None:
    slots = BodySlots(bodies_max=3, client_bodies_max=2)

    async def taken(count: int) -> None:
        async def are_taken() -> bool:
            return slots.in_use == count

        await until(are_taken)

    app = Limits(read_all, body_bytes_max=1000, slots=slots, soon_s=0.0)
    slow = [asked(app, never) for _ in range(2)]
    await taken(2)
    third = asked(app, never)
    await asyncio.wait({third}, timeout=5)
    assert problem(third) == 503
    other = asked(app, never, "10.0.0.2")
    await taken(3)
    last = asked(app, never, "10.0.0.3")
    await asyncio.wait({last}, timeout=5)
    assert problem(last) == 503  # Three are all.
    for client in ("10.0.0.1", "10.0.0.4"):
        await asked(app, at_once, client)  # A body that is there needs no place.
    for each in (*slow, other):
        each.cancel()
    await asyncio.gather(*slow, other, return_exceptions=True)
    assert slots.in_use == 0


@pytest.fixture
async def dispatcher(tmp_path: Path) -> AsyncIterator[Served]:
    state: State = open_state(f"sqlite:{tmp_path / 'state.db'}")
    create_tables(state)
    deployed(state, HOOK)
    async with served(state, tmp_path) as running:
        secret = tmp_path / "secrets/webhook-orders"
        secret.touch(0o600)
        secret.write_text("a secret of the tests\n")
        yield running
    state.close()


SIGNED = f"t=1700000000,v1={'0' * 64}"


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/v1/webhooks/anything", f"x-hub-signature-256: sha256={'0' * 64}", 404),
        ("/v1/webhooks/hooks/orders", "x: y", 401),
        ("/v1/webhooks/hooks/orders", f"x-qo-signature: {SIGNED}", 401),
        ("/v1/webhooks/hooks/orders", "x-qo-signature: nonsense", 401),
        ("/v1/webhooks/hooks/orders", "x-hub-signature-256: sha256=é", 401),
        ("/v1/tokens", "authorization: Bearer guess", 401),
    ],
)
async def test_who_cannot_be_right_is_refused_before_the_body_comes(
    dispatcher: Served, path: str, header: str, status: int
) -> None:
    host, port = dispatcher.addresses.public.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n{header}\r\n\r\n"
    writer.write(head.encode("latin-1") + b"{")
    async with asyncio.timeout(10):
        assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
    writer.close()
    await writer.wait_closed()
