"""The server of a dashboard knows who sends before it reads what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.http_server.messages import BODY_BYTES_MAX
from qo.http_server.server import DISCARDED_BYTES_MAX
from qo.store.memory import MemoryStore
from qo.ui.forwarding import Upstream
from support.ui.dashboards import Visitor, page, visiting

LARGE = str(BODY_BYTES_MAX)


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    upstream = Upstream("http://127.0.0.1:9", None)
    async with visiting(MemoryStore(), dispatcher=upstream, static=page(tmp_path / "static")) as found:
        yield found


async def answered(visitor: Visitor, head: str, body: bytes = b"") -> bytes:
    """What comes back although no more than this is sent and the connection stays open."""
    reader, writer = await asyncio.open_connection(*visitor.host.split(":"))
    try:
        writer.write(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        async with asyncio.timeout(5):
            return await reader.readuntil(b"\r\n")
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("PUT /s3/qo/a", "", 403),
        ("PUT /s3/qo/a?X-Amz-Signature=x", "", 400),
        ("POST /s3/qo?delete", "\nauthorization: AWS4-HMAC-SHA256 nonsense", 400),
        ("POST /v1/dags/a/pause", "", 401),
        ("POST /v1/dags/a/pause", "\nauthorization: Bearer guess", 401),
        ("POST /v1/tokens", "", 401),
        ("POST /", "", 405),
        ("GET /", "", 400),
        ("GET /config.json", "", 400),
        ("PUT /s3/qo/a", "\norigin: http://evil.example", 403),
    ],
)
async def test_who_is_unknown_is_refused_before_the_body_comes(
    visitor: Visitor, line: str, headers: str, status: int
) -> None:
    head = f"{line} HTTP/1.1\nhost: {visitor.host}\ncontent-length: {LARGE}{headers}"
    assert (await answered(visitor, head)).startswith(f"HTTP/1.1 {status} ".encode())
    assert (await answered(visitor, f"{head}\nexpect: 100-continue")).startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_stranger_by_host_is_refused_before_the_body_comes(visitor: Visitor) -> None:
    head = f"PUT /s3/qo/a HTTP/1.1\nhost: evil.example\ncontent-length: {LARGE}"
    assert (await answered(visitor, head)).startswith(b"HTTP/1.1 403 ")


async def test_after_a_small_body_that_was_refused_the_connection_goes_on(visitor: Visitor) -> None:
    refused = f"POST /v1/x HTTP/1.1\r\nhost: {visitor.host}\r\ncontent-length: 5\r\n\r\n12345".encode()
    asked = f"GET /config.json HTTP/1.1\r\nhost: {visitor.host}\r\n\r\n".encode()
    assert [each.status for each in await visitor.send(refused + asked)] == [401, 200]


async def test_after_a_large_one_the_connection_ends(visitor: Visitor) -> None:
    length = DISCARDED_BYTES_MAX + 1
    refused = f"POST /v1/x HTTP/1.1\r\nhost: {visitor.host}\r\ncontent-length: {length}\r\n\r\n".encode()
    (answer,) = await visitor.send(refused)
    assert (answer.status, answer.headers["connection"]) == (401, "close")
