"""What can go wrong between qo and a real S3 server, and that every such case is recognised for what it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from qo.errors import AccessDenied, NoSuchBucket, Unavailable
from qo.store import register
from qo.store.port import Deletion
from qo.store.retrying import Retrying
from qo.store.s3 import Credentials, S3Store
from qo.store.s3.sign import Signer
from support.servers.ports import free_ports
from support.servers.proxies import HeaderDroppingProxy, LatencyProxy, LostReplyProxy
from support.servers.s3 import S3Server, start_seaweed

pytestmark = pytest.mark.s3

EVERY_OPERATION = [
    lambda store: store.get("key"),
    lambda store: store.put("key", b"body"),
    lambda store: store.put("key", b"body", if_absent=True),
    lambda store: store.delete("key"),
    lambda store: store.delete_many([Deletion("key")]),
    lambda store: store.list("prefix/"),
    lambda store: store.versions("key"),
    lambda store: store.versioned(),
]


def target(server: S3Server) -> tuple[str, int]:
    parts = urlsplit(server.endpoint)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


async def fetch(url: str) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.read()


async def test_an_endpoint_where_nobody_listens_is_unavailable() -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(Unavailable, match=f"{endpoint}.*Is the server up"):
        await S3Store.open(
            "bucket", endpoint=endpoint, region="us-east-1", credentials=Credentials("id", "secret")
        )


@pytest.mark.parametrize(
    ("key", "secret", "advice"),
    [(None, "wrong", "AWS_SECRET_ACCESS_KEY"), ("wrong", None, "AWS_ACCESS_KEY_ID")],
)
async def test_wrong_credentials_are_denied_with_advice(
    s3_server: S3Server, s3_bucket: str, key: str | None, secret: str | None, advice: str
) -> None:
    credentials = Credentials(key or s3_server.access_key, secret or s3_server.secret_key)
    store = await S3Store.open(s3_bucket, endpoint=s3_server.endpoint, region="us-east-1", credentials=credentials)
    try:
        for operation in EVERY_OPERATION:
            with pytest.raises(AccessDenied, match=advice):
                await operation(store)
    finally:
        await store.close()


async def test_a_missing_bucket_is_named_by_every_operation(s3_server: S3Server) -> None:
    store = await s3_server.open_store("no-such-bucket")
    try:
        for operation in EVERY_OPERATION:
            with pytest.raises(NoSuchBucket, match="no-such-bucket"):
                await operation(store)
    finally:
        await store.close()


async def test_a_bucket_without_versioning_is_recognised(s3_server: S3Server) -> None:
    store = await s3_server.open_store(s3_server.make_bucket(versioned=False))
    assert not await store.versioned()
    await store.close()


async def test_a_link_lets_its_bearer_read_one_object_for_a_while(s3_server: S3Server, s3_store: S3Store) -> None:
    await s3_store.put("dir/a b+ü", b"content")
    link = await s3_store.presign("dir/a b+ü", expires_s=60)
    assert await fetch(link) == (200, b"content")
    status, _ = await fetch(link.replace("dir", "other"))
    assert status == 403

    place = s3_store.transport.place
    path, an_hour_ago = place.path("dir/a b+ü"), (await s3_store.now()).timestamp() - 3600
    query = Signer(place.host, place.region).presigned_query(
        Credentials(s3_server.access_key, s3_server.secret_key), "GET", path, expires_s=60, at=an_hour_ago
    )
    status, _ = await fetch(f"{place.origin}{path}?{query}")
    assert status == 403


async def test_a_link_lets_its_bearer_write_one_object(s3_store: S3Store) -> None:
    link = await s3_store.presign("upload", expires_s=60, method="PUT")
    async with aiohttp.ClientSession() as session, session.put(link, data=b"content") as response:
        assert response.status == 200
    stored = await s3_store.get("upload")
    assert stored is not None
    assert stored.body == b"content"


async def test_a_prefix_makes_two_queues_of_one_bucket(s3_server: S3Server, s3_bucket: str) -> None:
    one, two = [await s3_server.open_store(s3_bucket, prefix=prefix) for prefix in ("one", "/two/")]
    await one.put("tasks/a", b"1")
    await two.put("tasks/b", b"2")
    assert [entry.key for entry in (await one.list("tasks/")).entries] == ["tasks/a"]
    assert [entry.key for entry in (await two.list("", start_after="tasks/a")).entries] == ["tasks/b"]
    assert await one.get("tasks/b") is None
    assert len(await two.versions("tasks/b")) == 1
    await two.delete_many([Deletion("tasks/b"), Deletion("tasks/a")])
    assert await one.get("tasks/a") is not None
    await one.close()
    await two.close()


async def test_more_versions_than_fit_on_a_page_are_all_found(s3_store: S3Store) -> None:
    versions = [(await s3_store.put("key", b"%d" % number)).version for number in range(1005)]
    await s3_store.put("key.sibling", b"")
    assert [version.version for version in await s3_store.versions("key")] == versions[::-1]


@pytest.mark.parametrize("create", [True, False])
async def test_a_write_whose_reply_was_lost_is_recognised_as_our_own(
    s3_server: S3Server, s3_store: S3Store, s3_bucket: str, create: bool
) -> None:
    before = None if create else (await s3_store.put("key", b"before")).etag
    with LostReplyProxy(*target(s3_server)) as proxy:
        store = await s3_server.open_store(s3_bucket, endpoint=proxy.endpoint)
        written = await register.write(
            store, "key", b"by token 7", if_match=before, ours=lambda body: body.endswith(b"token 7")
        )
        await store.close()
    assert not isinstance(written, register.Moved)
    stored = await s3_store.get("key")
    assert stored is not None
    assert (stored.body, stored.etag) == (b"by token 7", written.etag)
    assert len(await s3_store.versions("key")) == (1 if create else 2)


async def test_a_store_that_ignores_conditions_lets_everybody_win(s3_server: S3Server, s3_bucket: str) -> None:
    with HeaderDroppingProxy(*target(s3_server)) as proxy:
        store = await s3_server.open_store(s3_bucket, endpoint=proxy.endpoint)
        await store.put("key", b"1", if_absent=True)
        await store.put("key", b"2", if_absent=True)
        await store.put("key", b"3", if_match='"of something else"')
        assert len(await store.versions("key")) == 3
        await store.close()


async def test_a_far_store_is_only_slower(s3_server: S3Server, s3_bucket: str) -> None:
    with LatencyProxy(*target(s3_server), delay_s=0.1) as proxy:
        store = await s3_server.open_store(s3_bucket, endpoint=proxy.endpoint)
        loop = asyncio.get_running_loop()
        await store.put("warm", b"up")
        began = loop.time()
        await asyncio.gather(*(store.get(f"key-{number}") for number in range(10)))
        assert 0.1 <= loop.time() - began < 0.9  # All at once, not one after the other.
        await store.close()


async def test_acknowledged_writes_survive_kill_9_of_the_server(tmp_path: Path) -> None:
    server = start_seaweed(tmp_path)
    try:
        bucket = server.make_bucket()
        store = Retrying(await server.open_store(bucket))
        acknowledged: dict[str, str] = {}

        async def write_until_it_dies(writer: int) -> None:
            for number in range(10_000):
                key = f"tasks/{writer}/{number}"
                acknowledged[key] = (await store.put(key, key.encode(), if_absent=True)).etag
                if len(acknowledged) == 50:
                    server.kill()

        results = await asyncio.gather(
            *(write_until_it_dies(writer) for writer in range(4)), return_exceptions=True
        )
        assert all(isinstance(result, Unavailable) for result in results)
        server.start()
        for key, etag in acknowledged.items():
            stored = await store.get(key)
            assert stored is not None
            assert (stored.body, stored.etag) == (key.encode(), etag)
        assert await store.versioned()
        await store.close()
    finally:
        server.stop()
