"""What the S3 adapter does when a server has a bad day, played by a scripted one in the same event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from qo.ambient import SYSTEM, Ambient
from qo.errors import AccessDenied, ConcurrentWrite, StoreError, Unavailable
from qo.store.retrying import Retrying
from qo.store.s3 import Credentials, S3Store
from qo.store.s3.setup import set_up
from support.servers.scripted import CLOSE, SILENCE, ScriptedServer, answer, scripted_server

pytestmark = pytest.mark.fast

STORED = answer(200, 'ETag: "e"')


@asynccontextmanager
async def opened(
    server: ScriptedServer, *, timeout_s: float = 5.0, ambient: Ambient = SYSTEM
) -> AsyncIterator[S3Store]:
    store = await S3Store.open(
        "bucket",
        endpoint=server.endpoint,
        region="us-east-1",
        credentials=Credentials("id", "secret", "token"),
        timeout_s=timeout_s,
        ambient=ambient,
    )
    try:
        yield store
    finally:
        await store.close()


async def test_a_server_error_is_unavailable_and_outlived_by_retrying() -> None:
    async with (
        scripted_server(answer(503, code="SlowDown"), answer(500), STORED) as server,
        opened(server) as store,
    ):
        assert (await Retrying(store).put("key", b"body")).etag == '"e"'
        assert len(server.requests) == 3


async def test_a_conditional_write_without_an_answer_is_sent_once() -> None:
    async with scripted_server(STORED, CLOSE, STORED) as server, opened(server) as store:
        await store.put("key", b"first")  # So that the next request meets a connection that worked before.
        with pytest.raises(Unavailable, match=server.endpoint):
            await Retrying(store).put("key", b"second", if_match='"e"')
        assert len(server.requests) == 2


async def test_a_silent_server_is_unavailable_after_the_timeout() -> None:
    async with scripted_server(SILENCE) as server, opened(server, timeout_s=0.1) as store:
        with pytest.raises(Unavailable, match="GET /bucket/key"):
            await store.get("key")


def listing(*names: str) -> bytes:
    found = "".join(
        f'<Contents><Key>{name}</Key><ETag>"e"</ETag><Size>1</Size>'
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for name in names
    )
    body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
    return answer(200, body=body)


async def test_a_missing_object_is_missing_also_where_only_a_part_of_the_bucket_may_be_listed() -> None:
    """AWS refuses to say that an object is missing unless all of the bucket may be listed."""
    refused = answer(403, code="AccessDenied")
    async with scripted_server(refused, listing("key-2")) as server, opened(server) as store:
        assert await store.get("key") is None
        assert b"prefix=key" in server.requests[1]
    async with scripted_server(refused, listing("key")) as server, opened(server) as store:
        with pytest.raises(AccessDenied, match="GetObject"):
            await store.get("key")
    async with scripted_server(refused, refused) as server, opened(server) as store:
        with pytest.raises(AccessDenied, match="GetObject"):
            await store.get("key")
    async with scripted_server(answer(403, code="ExpiredToken")) as server, opened(server) as store:
        with pytest.raises(AccessDenied, match="expired"):
            await store.get("key")


async def test_two_writes_at_one_moment_are_told_from_a_lost_race() -> None:
    async with scripted_server(answer(409, code="ConditionalRequestConflict")) as server, opened(server) as store:
        with pytest.raises(ConcurrentWrite):
            await store.put("key", b"", if_match='"e"')


async def test_the_time_is_the_stores_and_not_ours() -> None:
    tomorrow = time.time() + 86400
    async with scripted_server(STORED, head=answer(200, date=tomorrow)) as server, opened(server) as store:
        assert abs((await store.now()).timestamp() - tomorrow) < 2
        await store.put("key", b"")
        signed_on = time.strftime("x-amz-date: %Y%m%dT", time.gmtime(tomorrow)).encode()
        assert signed_on in server.requests[0]


async def test_a_time_that_was_told_slowly_is_asked_for_again() -> None:
    """A reply that took twenty seconds tells the time to ten; leases are judged by it."""
    told = 1_800_000_000.0
    async with scripted_server(head=answer(200, date=told)) as server:
        slow = Ambient.seeded(0, lambda: 20.0 if server.asked else 0.0)
        async with opened(server, ambient=slow) as store:
            assert abs((await store.now()).timestamp() - told) <= 1


async def test_a_store_that_is_always_slow_is_not_asked_all_the_time() -> None:
    """Each reply takes three seconds, and by both clocks."""

    def later(n: int) -> bytes:
        return answer(200, date=1_800_000_000.0 + 3 * n)

    def clock() -> float:
        return 3.0 * server.asked

    async with (
        scripted_server(head=later) as server,
        opened(server, ambient=Ambient.seeded(0, clock)) as store,
    ):
        for _ in range(20):
            await store.now()
        assert server.asked == 2


async def test_a_request_refused_for_its_date_is_dated_anew() -> None:
    tomorrow = time.time() + 86400
    refused = answer(403, code="RequestTimeTooSkewed", date=tomorrow)
    async with scripted_server(refused, STORED) as server, opened(server) as store:
        await store.put("key", b"", if_absent=True)
        dates = [request.split(b"x-amz-date: ")[1][:8].decode() for request in server.requests]
        assert dates == [time.strftime("%Y%m%d", time.gmtime(moment)) for moment in (tomorrow - 86400, tomorrow)]


async def test_a_server_without_a_clock_is_refused() -> None:
    async with scripted_server(head=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as server:
        with pytest.raises(StoreError, match="no Date header"):
            async with opened(server):
                pass


async def test_conditions_are_not_part_of_the_signature_but_the_session_token_is() -> None:
    async with scripted_server(STORED) as server, opened(server) as store:
        await store.put("key", b"", if_match='"e"')
        assert b'If-Match: "e"' in server.requests[0]
        assert b"SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token," in server.requests[0]
        assert b"x-amz-security-token: token" in server.requests[0]


async def test_a_listing_of_versions_that_breaks_off_is_an_error() -> None:
    body = "<ListVersionsResult><IsTruncated>true</IsTruncated></ListVersionsResult>"
    broken = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    async with scripted_server(broken) as server, opened(server) as store:
        with pytest.raises(StoreError, match="go on"):
            await store.versions("key")


async def test_lifecycle_rules_that_cannot_be_read_are_not_written_over() -> None:
    async with scripted_server(answer(200), answer(200), answer(503)) as server, opened(server) as store:
        with pytest.raises(Unavailable):
            await set_up(store.transport, "", versioning=True)
        assert [request.split(b" HTTP/")[0] for request in server.requests] == [
            b"GET /bucket?versioning=",
            b"PUT /bucket?versioning=",
            b"GET /bucket?lifecycle=",
        ]
