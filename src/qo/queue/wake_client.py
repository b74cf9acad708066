"""Send one wake-up to one worker: the smallest HTTP client, which follows nothing and returns a status."""

from __future__ import annotations

import asyncio
import re

from qo.core.push import sign

PATH = "/wake"
REPLY_BYTES_MAX = 4096

_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) ")


def wake_path(place: int) -> str:
    """Return the path of the wake-ups for one of the queues of a worker, by its place among them."""
    return PATH if place == 0 else f"{PATH}/{place}"


async def send_wake_up(
    address: str, token: str, worker_id: str, body: bytes, timeout_s: float, *, place: int = 0
) -> int | None:
    """Return the status of the reply; None if there was none in time. Never raises for a worker's fault."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(address, wake_path(place), token, worker_id, body)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None


async def _exchange(address: str, path: str, token: str, worker_id: str, body: bytes) -> int | None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(
        host.removeprefix("[").removesuffix("]"), int(port), limit=REPLY_BYTES_MAX
    )
    try:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {sign(token, worker_id, body)}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        match = _STATUS.match(await reader.readuntil(b"\r\n"))
        return None if match is None else int(match[1])
    finally:
        writer.transport.abort()  # The status was all that counts.
