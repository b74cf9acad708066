"""The gateway, asked by boto3, by our own S3 adapter, and by strangers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from qo.config.settings import Settings
from qo.core import keys
from qo.errors import Unavailable
from qo.http_server.listening import listen
from qo.http_server.messages import Reply, Request
from qo.http_server.server import Server
from qo.store.local import LocalStore
from qo.store.memory import MemoryStore
from qo.store.port import ObjectStore
from qo.store.s3 import S3Store
from qo.testing.conformance import StoreConformance
from qo.ui import serving
from qo.ui.branches import Branches
from qo.ui.dashboard import Dashboard
from qo.ui.forwarding import Upstream
from support.ui.dashboards import Visitor, page, read_fragment, visiting

ODD = ["a b", "100%", "a+b", "~x", "ümlaut/日本", "a%2Fb", "a//b", "'(1)!*", "q?x=1&y#z", "x\ty", "<a>&\"b'"]


def free_port() -> socket.socket:
    return listen("127.0.0.1:0", what="a test", remedy="try again")


@pytest.fixture
async def visitor(local_store: LocalStore, tmp_path: Path) -> AsyncIterator[Visitor]:
    async with visiting(local_store, static=page(tmp_path / "static")) as visitor:
        yield visitor


class TestConformance(StoreConformance):
    """Our adapter, on the gateway, on the embedded store: as good as a bucket."""

    RACERS, ROUNDS, VERSIONS_MANY = 4, 2, 1100

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[S3Store]:
        local = await LocalStore.open(tmp_path / "store")
        async with visiting(local) as visitor:
            store = await visitor.store()
            yield store
            await store.close()
        await local.close()


def refusal(error: pytest.ExceptionInfo[ClientError]) -> tuple[int, str]:
    response: Any = error.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


async def test_boto3_finds_what_it_wrote_whatever_the_key_is_made_of(visitor: Visitor):
    def question(s3: Any, key: str) -> None:
        put = s3.put_object(Bucket="qo", Key=key, Body=b"one")
        s3.put_object(Bucket="qo", Key=key, Body=b"two", IfMatch=put["ETag"])
        got = s3.get_object(Bucket="qo", Key=key)
        assert (got["Body"].read(), got["ETag"] != put["ETag"]) == (b"two", True)
        old = s3.get_object(Bucket="qo", Key=key, VersionId=put["VersionId"])
        assert old["Body"].read() == b"one"
        listed = s3.list_objects_v2(Bucket="qo", Prefix=key)
        assert [each["Key"] for each in listed["Contents"]] == [key]
        versions = s3.list_object_versions(Bucket="qo", Prefix=key)["Versions"]
        assert [(each["Key"], each["IsLatest"]) for each in versions] == [(key, True), (key, False)]
        s3.delete_object(Bucket="qo", Key=key)
        assert s3.list_object_versions(Bucket="qo", Prefix=key)["DeleteMarkers"][0]["Key"] == key

    await visitor.ask(lambda s3: [question(s3, key) for key in ODD])


async def test_conditions_are_answered_as_s3_answers_them(visitor: Visitor):
    def question(s3: Any) -> None:
        put = s3.put_object(Bucket="qo", Key="a", Body=b"1", IfNoneMatch="*")
        with pytest.raises(ClientError) as taken:
            s3.put_object(Bucket="qo", Key="a", Body=b"2", IfNoneMatch="*")
        assert refusal(taken) == (412, "PreconditionFailed")
        s3.put_object(Bucket="qo", Key="a", Body=b"2", IfMatch=put["ETag"])
        with pytest.raises(ClientError) as moved:
            s3.put_object(Bucket="qo", Key="a", Body=b"3", IfMatch=put["ETag"])
        assert refusal(moved) == (412, "PreconditionFailed")
        with pytest.raises(ClientError) as missing:
            s3.put_object(Bucket="qo", Key="b", Body=b"3", IfMatch=put["ETag"])
        assert refusal(missing) == (404, "NoSuchKey")
        with pytest.raises(ClientError) as unread:
            s3.get_object(Bucket="qo", Key="b")
        assert refusal(unread) == (404, "NoSuchKey")
        with pytest.raises(ClientError) as elsewhere:
            s3.get_object(Bucket="other", Key="a")
        assert refusal(elsewhere) == (404, "NoSuchBucket")
        with pytest.raises(ClientError) as unmoved:
            s3.get_object(Bucket="qo", Key="a", IfNoneMatch=s3.head_object(Bucket="qo", Key="a")["ETag"])
        assert refusal(unmoved)[0] == 304

    await visitor.ask(question)


async def test_prefixes_are_rolled_up_and_pages_lead_on(visitor: Visitor, local_store: LocalStore):
    for shard in "0123":
        for n in range(5):
            await local_store.put(f"tasks/{shard}/{n}.json", b"{}")
    await local_store.put("tasks/1.txt", b"")
    await local_store.put("tasks/z", b"")

    def question(s3: Any) -> None:
        whole = s3.list_objects_v2(Bucket="qo", Prefix="tasks/", Delimiter="/")
        prefixes = ["tasks/0/", "tasks/1/", "tasks/2/", "tasks/3/"]
        assert [each["Prefix"] for each in whole["CommonPrefixes"]] == prefixes
        assert [each["Key"] for each in whole["Contents"]] == ["tasks/1.txt", "tasks/z"]
        assert (whole["KeyCount"], whole["IsTruncated"]) == (6, False)
        for size in (1, 2, 3, 5, 6, 7):
            pager = s3.get_paginator("list_objects_v2").paginate(
                Bucket="qo", Prefix="tasks/", Delimiter="/", PaginationConfig={"PageSize": size}
            )
            pages = list(pager)
            assert [p["Prefix"] for each in pages for p in each.get("CommonPrefixes", [])] == prefixes
            assert [e["Key"] for each in pages for e in each.get("Contents", [])] == ["tasks/1.txt", "tasks/z"]
            assert len(pages) == -(-6 // size)
        later = s3.list_objects_v2(Bucket="qo", Prefix="tasks/", StartAfter="tasks/3/3.json")
        assert [each["Key"] for each in later["Contents"]] == ["tasks/3/4.json", "tasks/z"]
        versions = s3.get_paginator("list_object_versions").paginate(
            Bucket="qo", Prefix="tasks/", PaginationConfig={"PageSize": 4}
        )
        assert len([each for page in versions for each in page["Versions"]]) == 22
        with pytest.raises(ClientError) as torn:
            s3.list_objects_v2(Bucket="qo", ContinuationToken="%%%")
        assert refusal(torn) == (400, "InvalidArgument")

    await visitor.ask(question)


async def test_what_is_not_offered_says_so(visitor: Visitor):
    def question(s3: Any) -> None:
        s3.put_object(Bucket="qo", Key="a", Body=b"1")
        for call in (
            lambda: s3.get_bucket_acl(Bucket="qo"),
            lambda: s3.create_multipart_upload(Bucket="qo", Key="a"),
            lambda: s3.copy_object(Bucket="qo", Key="b", CopySource="qo/a"),
            lambda: s3.put_object_tagging(Bucket="qo", Key="a", Tagging={"TagSet": []}),
        ):
            with pytest.raises(ClientError) as refused:
                call()
            assert refusal(refused) == (501, "NotImplemented")

    await visitor.ask(question)


async def test_read_only_reads_and_refuses_every_write(local_store: LocalStore):
    await local_store.put("a", b"1")

    def question(s3: Any) -> None:
        assert s3.get_object(Bucket="qo", Key="a")["Body"].read() == b"1"
        for call in (
            lambda: s3.put_object(Bucket="qo", Key="a", Body=b"2"),
            lambda: s3.delete_object(Bucket="qo", Key="a"),
            lambda: s3.delete_objects(Bucket="qo", Delete={"Objects": [{"Key": "a"}]}),
        ):
            with pytest.raises(ClientError) as refused:
                call()
            assert refusal(refused) == (403, "AccessDenied")

    async with visiting(local_store, read_only=True) as visitor:
        assert visitor.dashboard.credentials.may_act is False
        await visitor.ask(question)
    stored = await local_store.get("a")
    assert stored is not None
    assert stored.body == b"1"


async def test_a_link_opens_one_object(visitor: Visitor, local_store: LocalStore):
    await local_store.put("a b", b"1")
    store = await visitor.store()
    link = (await store.presign("a b", expires_s=60)).removeprefix(visitor.dashboard.url)
    await store.close()
    answer = await visitor.get(link)
    assert (answer.status, answer.body) == (200, b"1")
    assert answer.headers["content-security-policy"] == "sandbox"
    assert (await visitor.get(link.replace("a%20b", "c"))).status == 403


async def test_a_name_that_somebody_pointed_to_loopback_gets_nothing(visitor: Visitor):
    for host in (
        "evil.example",
        "evil.example:8480",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil",
        "127.0.0.1:x",
        "",
    ):
        for path in ("/", "/config.json", "/s3/qo/a", "/v1/dags"):
            answer = await visitor.get(path, host=host)
            assert answer.status == 403
            assert b"this machine only" in answer.body


async def test_a_page_of_another_origin_gets_nothing(visitor: Visitor):
    own, port = visitor.dashboard.url, visitor.host.partition(":")[2]
    assert (await visitor.get("/config.json", origin=own)).status == 200
    assert (await visitor.get("/config.json", host="localhost:1", origin="http://localhost:1")).status == 200
    for origin in ("http://evil.example", "null", own.replace("http", "https"), f"http://localhost:{port}"):
        for path in ("/config.json", "/s3/qo/a"):
            answer = await visitor.get(path, origin=origin)
            assert answer.status == 403
            assert not any(name.startswith("access-control") for name in answer.headers)
    preflight = await visitor.get("/s3/qo/a", method="OPTIONS", origin="http://evil.example")
    assert preflight.status == 403


async def test_the_page_is_served_with_its_headers(visitor: Visitor):
    index = await visitor.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert index.headers["cache-control"] == "no-cache"
    assert "script-src 'self'" in index.headers["content-security-policy"]
    assert index.headers["x-content-type-options"] == "nosniff"
    script = await visitor.get("/assets/i-abc.js")
    assert "immutable" in script.headers["cache-control"]
    packed = await visitor.get("/assets/i-abc.js", accept_encoding="gzip, br")
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(script.body)
    for path in ("/nothing", "/../pyproject.toml", "/assets/../../signing.py", "/assets/", "/%2e%2e/x"):
        assert (await visitor.get(path)).status == 404
    assert (await visitor.get("/", method="POST")).status == 405


async def test_config_says_where_everything_is(local_store: LocalStore, tmp_path: Path):
    async with visiting(local_store, static=page(tmp_path / "s"), queues=["queues/python/"]) as visitor:
        found = json.loads((await visitor.get("/config.json")).body)
    assert (found["endpoint"], found["bucket"], found["prefix"], found["dispatcher"]) == ("", "qo", "", None)
    assert found["queues"] == ["queues/python/"]
    assert found["worker_health_threshold_s"] is None
    fragment = read_fragment(visitor.dashboard.link.partition("#c=")[2])
    assert fragment["access_key_id"] == visitor.dashboard.credentials.access_key_id
    assert fragment["may_act"] is True
    assert fragment["session_token"] is fragment["expires_at"] is fragment["dispatcher_token"] is None


async def test_a_page_that_was_not_built_says_how_to(local_store: LocalStore, tmp_path: Path):
    async with visiting(local_store, static=tmp_path) as visitor:
        answer = await visitor.get("/")
        assert answer.status == 503
        assert b"make ui" in answer.body
        page(tmp_path / "later")
        (tmp_path / "later/index.html").rename(tmp_path / "index.html")
        assert (await visitor.get("/")).status == 200


async def test_one_connection_serves_many_requests_and_many_connections_at_once(visitor: Visitor):
    one = f"GET /config.json HTTP/1.1\r\nhost: {visitor.host}\r\n\r\n".encode()
    answers = await visitor.send(one * 20)
    assert [each.status for each in answers] == [200] * 20
    many = await asyncio.gather(*(visitor.get("/config.json") for _ in range(50)))
    assert {each.status for each in many} == {200}


MALFORMED = [
    (b"nonsense\r\n\r\n", 400),
    (b"GET http://evil/ HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost : x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nhost: evil\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n folded: x\r\n\r\n", 400),
    (b"PUT /s3/qo/a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    (b"PUT /s3/qo/a HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
    (b"PUT /s3/qo/a HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413),
    (b"GET / HTTP/1.1\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431),
]


async def test_what_is_not_http_is_refused_and_the_next_is_served(visitor: Visitor):
    for raw, status in MALFORMED:
        (answer,) = await visitor.send(raw)
        assert answer.status == status, raw[:60]
        assert (await visitor.get("/config.json")).status == 200


async def test_the_dispatcher_is_asked_with_its_own_token_and_only_for_the_page(local_store: LocalStore):
    seen: list[Request] = []

    async def dispatcher(request: Request) -> Reply:
        seen.append(request)
        return Reply(200, b'{"dags":[]}', {"Content-Type": "application/json"})

    upstream = await Server.open(dispatcher, free_port())
    try:
        async with visiting(
            local_store, dispatcher=Upstream(f"http://127.0.0.1:{upstream.port}", "the real one"), read_only=True
        ) as visitor:
            token = visitor.dashboard.credentials.dispatcher_token
            config = json.loads((await visitor.get("/config.json")).body)
            assert config["dispatcher"] == visitor.dashboard.url
            answer = await visitor.get("/v1/dags?limit=5", authorization=f"Bearer {token}")
            assert (answer.status, answer.body) == (200, b'{"dags":[]}')
            assert (seen[0].path, seen[0].query) == ("/v1/dags", "limit=5")
            assert seen[0].headers["authorization"] == "Bearer the real one"
            assert (await visitor.get("/v1/dags", authorization="Bearer the real one")).status == 401
            assert (await visitor.get("/v1/dags")).status == 401
            for path in ("/v1/tokens", "/v1/tokens/x", "/v1/%74okens", "/v1/x/../tokens", "/v1//tokens"):
                assert (await visitor.get(path, authorization=f"Bearer {token}")).status in (400, 403)
            write = await visitor.get(
                "/v1/dags/a/active", method="PUT", body=b"{}", authorization=f"Bearer {token}"
            )
            assert write.status == 403
            assert len(seen) == 1
    finally:
        await upstream.close()


async def test_a_dispatcher_that_is_gone_is_told(local_store: LocalStore):
    async with visiting(local_store, dispatcher=Upstream("http://127.0.0.1:9", "t")) as visitor:
        token = visitor.dashboard.credentials.dispatcher_token
        answer = await visitor.get("/v1/dags", authorization=f"Bearer {token}")
    assert answer.status == 503
    assert json.loads(answer.body)["code"] == "unavailable"


async def test_queues_below_are_found_where_a_bucket_has_them(local_store: LocalStore, tmp_path: Path):
    async def opener(path: Path) -> ObjectStore:
        return await LocalStore.open(path, forget=keys.EPHEMERAL)

    for name in ("a-b", "a"):
        below = await LocalStore.open(tmp_path / "store/queues" / name)
        for n in range(3):
            await below.put(f"tasks/0/{n}.json", name.encode())
        await below.close()
    trunk = await LocalStore.open(tmp_path / "store")
    await trunk.put("queue.json", b"{}")
    await trunk.put("tasks/0/x.json", b"trunk")
    branches = Branches(trunk, tmp_path / "store", opener)
    wanted = [
        "queue.json",
        *(f"queues/a-b/tasks/0/{n}.json" for n in range(3)),
        *(f"queues/a/tasks/0/{n}.json" for n in range(3)),
        "tasks/0/x.json",
    ]
    try:
        for limit in (1, 2, 3, 4, 7, 8, 1000):
            found: list[str] = []
            while True:
                listed = await branches.list("", start_after=found[-1] if found else "", limit=limit)
                found += [each.key for each in listed.entries]
                if not listed.truncated:
                    break
            assert found == wanted
        inner = await branches.list("queues/a/", start_after="queues/a/tasks/0/0.json")
        assert [each.key for each in inner.entries] == wanted[5:7]
        assert (await branches.get("queues/a/tasks/0/1.json")) is not None
        assert await branches.get("queues/none/tasks/0/1.json") is None
        assert await branches.get("queues/../store.db") is None
        written = await branches.put("queues/a/tasks/0/1.json", b"new")
        assert len(await branches.versions("queues/a/tasks/0/1.json")) == 2
        assert written.version is not None
    finally:
        await branches.close()


async def test_who_names_no_port_gets_the_usual_one_or_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(request: Request) -> Reply:
        return Reply(204)

    other = await Server.open(nothing, free_port())
    monkeypatch.setattr(serving, "PORT", other.port)
    settings, ports = Settings(store=f"local:{tmp_path / 'store'}"), list[str]()
    for _ in range(2):
        stop = asyncio.Event()

        def told(dashboard: Dashboard, stop: asyncio.Event = stop) -> None:
            ports.append(dashboard.url.rpartition(":")[2])
            stop.set()

        await serving.serve(settings, stop, on_start=told)
        await other.close()
    assert ports[0] != str(other.port)
    assert ports[1] == str(other.port)


async def test_a_store_that_does_not_answer_is_told_in_the_words_of_s3() -> None:
    store = MemoryStore()

    async def gone() -> datetime:
        raise Unavailable("no answer from the bucket")

    store.now = gone  # type: ignore[method-assign]
    async with visiting(store) as visitor:
        answer = await visitor.get("/s3/qo/a")
    assert answer.status == 503
    assert b"<Code>ServiceUnavailable</Code>" in answer.body


async def test_all_queues_of_a_bucket_are_found_however_many_pages_they_fill(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "LIST_LIMIT_MAX", 3)
    store = MemoryStore()
    for n in range(8):
        await store.put(f"queues/{n}/queue.json", b"{}")
    assert list(await serving.list_queues(store)) == [f"queues/{n}/" for n in range(8)]
