"""The small HTTP server, where clients are slow, many, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from qo.http_server.listening import listen
from qo.http_server.messages import Reply, Request
from qo.http_server.server import GIVES_WAY_AFTER_S, Limits, Server

pytestmark = pytest.mark.fast

PLACES = 3
ONE = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def answer(request: Request) -> Reply:
    return Reply(200, request.path.encode())


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    listening = listen("127.0.0.1:0", what="a test", remedy="try again")
    server = await Server.open(answer, listening, limits=Limits(idle_s=20, step_s=20, connections_max=PLACES))
    yield server
    await server.close()


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def status_of(server: Server) -> bytes:
    reader, writer = await connect(server)
    writer.write(ONE)
    try:
        async with asyncio.timeout(10):
            return await reader.readline()
    finally:
        writer.close()


async def test_when_there_is_no_room_the_client_that_has_waited_longest_gives_way(server: Server) -> None:
    idle = [await connect(server) for _ in range(PLACES)]
    await asyncio.sleep(2 * GIVES_WAY_AFTER_S)
    assert await status_of(server) == b"HTTP/1.1 200 OK\r\n"
    async with asyncio.timeout(10):
        assert await idle[0][0].read() == b""
    reader, writer = idle[-1]
    writer.write(ONE)
    async with asyncio.timeout(10):
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    for _, each in idle:
        each.close()


async def test_clients_that_have_just_come_are_not_disconnected_for_others(server: Server) -> None:
    fresh = [await connect(server) for _ in range(PLACES)]
    late, late_writer = await connect(server)
    async with asyncio.timeout(10):
        assert await late.read() == b""
    for reader, writer in fresh:
        writer.write(ONE)
        async with asyncio.timeout(10):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
    late_writer.close()
