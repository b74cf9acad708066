"""The page in a bucket: its files, its rules, and credentials that reach the queue and nothing else."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qo.config.settings import S3Settings, Settings
from qo.config.ui import UiSettings
from qo.dispatcher import aws
from qo.errors import NotFound, Refused, UsageError
from qo.store.opening import open_store
from qo.store.queue_manifest import Proof, record_proof
from qo.ui.assets import Assets
from qo.ui.dashboard import Dashboard
from qo.ui.minting import mint
from qo.ui.page_deploy import deploy, place_of
from qo.ui.serving import serve
from support.servers.ports import free_ports
from support.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server, client_of, is_refused
from support.ui.dashboards import ROLE, Visitor, page, read_fragment, start_with_sts

pytestmark = pytest.mark.s3


@pytest.fixture(autouse=True)
def _own_credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    aws.client.cache_clear()
    yield
    aws.client.cache_clear()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = start_with_sts(tmp_path_factory.mktemp("seaweed-ui"))
    yield server
    server.stop()


@pytest.fixture
def built(tmp_path: Path) -> Assets:
    return Assets(page(tmp_path / "static"))


def settings_of(endpoint: str | None, store: str, role: str | None = ROLE) -> Settings:
    return Settings(store=store, s3=S3Settings(endpoint=endpoint, region=REGION), ui=UiSettings(role_arn=role))


async def test_the_page_is_uploaded_with_its_types_and_says_where_the_bucket_is(
    moto_server: S3Server, built: Assets
) -> None:
    bucket = moto_server.make_bucket()
    done = await deploy(
        settings_of(moto_server.endpoint, f"s3://{bucket}/team"), dispatcher="https://d.example", assets=built
    )
    assert done.link == f"{moto_server.endpoint}/{bucket}/team/ui/index.html"
    assert any("QO_DISPATCHER_CORS_ORIGINS" in each for each in done.todos)

    def found(name: str) -> Any:
        return moto_server.admin.get_object(Bucket=bucket, Key=f"team/ui/{name}")

    assert found("index.html")["ContentType"] == "text/html; charset=utf-8"
    assert found("index.html")["CacheControl"] == "no-cache"
    script = found("assets/i-abc.js")
    assert (script["ContentType"], script["ContentEncoding"]) == ("text/javascript; charset=utf-8", "gzip")
    assert "immutable" in script["CacheControl"]
    config = json.loads(found("config.json")["Body"].read())
    assert config["endpoint"] == moto_server.endpoint
    assert (config["bucket"], config["prefix"], config["region"]) == (bucket, "team/", REGION)
    assert config["dispatcher"] == "https://d.example"
    assert "queues" not in config  # The page looks for them: there may be others by then.


async def test_our_cors_rule_stands_beside_those_of_others(moto_server: S3Server, built: Assets) -> None:
    bucket = moto_server.make_bucket()
    theirs = {"ID": "theirs", "AllowedMethods": ["GET"], "AllowedOrigins": ["https://theirs.example"]}
    moto_server.admin.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [theirs]})
    settings = settings_of(moto_server.endpoint, f"s3://{bucket}")
    await deploy(settings, assets=built)
    again = await deploy(settings, origins=["https://cdn.example"], assets=built)
    assert any(each.startswith("set a CORS rule") for each in again.steps)
    idle = await deploy(settings, assets=built)
    assert not any("CORS" in each for each in (*idle.steps, *idle.todos))
    rules = moto_server.admin.get_bucket_cors(Bucket=bucket)["CORSRules"]
    assert [rule["ID"] for rule in rules] == ["theirs", "qo dashboard"]
    assert rules[0]["AllowedOrigins"] == theirs["AllowedOrigins"]
    ours = rules[1]
    assert set(ours["AllowedOrigins"]) == {moto_server.endpoint, "https://cdn.example"}
    assert {"ETag", "Date"} <= set(ours["ExposeHeaders"])
    assert "PUT" in ours["AllowedMethods"]


async def test_a_real_server_answers_the_page_once_it_is_deployed(server: S3Server, built: Assets) -> None:
    bucket = server.make_bucket()
    settings = settings_of(server.endpoint, f"s3://{bucket}")
    closed = await deploy(settings, assets=built)
    assert any("--public" in each for each in closed.todos)
    opened = await deploy(settings, public=True, assets=built)
    assert opened.todos == []
    with await asyncio.to_thread(urllib.request.urlopen, opened.link) as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
    asked = urllib.request.Request(
        f"{server.endpoint}/{bucket}/tasks/0/x.json",
        method="OPTIONS",
        headers={
            "Origin": server.endpoint,
            "Access-Control-Request-Method": "PUT",
            "Access-Control-Request-Headers": "authorization,if-match,x-amz-date",
        },
    )
    with await asyncio.to_thread(urllib.request.urlopen, asked) as preflight:
        assert preflight.headers["Access-Control-Allow-Origin"] in (server.endpoint, "*")


async def test_what_cannot_be_deployed_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="qo ui"):
        await deploy(settings_of(None, "local:.qo"))
    with pytest.raises(NotFound, match="make ui"):
        await deploy(settings_of(None, "s3://bucket"), assets=Assets(tmp_path))


def test_on_aws_each_bucket_has_an_origin_of_its_own() -> None:
    place = place_of(settings_of(None, "s3://my-bucket/team"))
    assert place.page == "https://my-bucket.s3.us-east-1.amazonaws.com/team/ui/index.html"
    assert place.origin == "https://my-bucket.s3.us-east-1.amazonaws.com"
    assert place.endpoint == "https://s3.us-east-1.amazonaws.com"
    assert place_of(settings_of(None, "s3://a.b")).page == "https://s3.us-east-1.amazonaws.com/a.b/ui/index.html"


def test_credentials_reach_the_queue_and_nothing_else(server: S3Server) -> None:
    bucket = server.make_bucket()
    settings = settings_of(server.endpoint, f"s3://{bucket}/team")
    inside = ["team/queue.json", "team/tasks/0/a.json", "team/ready/0/1/a", "team/queues/spark/tasks/0/a.json"]
    outside = ["team/ui/index.html", "other/tasks/0/a.json", "tasks/0/a.json", "team/lake/x", "teamtasks/0/a"]
    for key in (*inside, *outside):
        server.admin.put_object(Bucket=bucket, Key=key, Body=b"1")
    operator = client_of(mint(settings, read_only=False, hours=1), server.endpoint, REGION)
    viewer = client_of(mint(settings, read_only=True, hours=1), server.endpoint, REGION)

    for held in (operator, viewer):
        for key in inside:
            got = held.get_object(Bucket=bucket, Key=key)
            assert got["Body"].read() == b"1"
            held.get_object(Bucket=bucket, Key=key, VersionId=got["VersionId"])
        assert held.list_objects_v2(Bucket=bucket, Prefix="team/tasks/")["KeyCount"] == 1
        assert held.list_object_versions(Bucket=bucket, Prefix="team/tasks/0/a.json")["Versions"]
        for key in outside:
            assert is_refused(lambda key=key, held=held: held.get_object(Bucket=bucket, Key=key)), key
            assert is_refused(lambda key=key, held=held: held.put_object(Bucket=bucket, Key=key, Body=b"2")), key
            assert is_refused(lambda key=key, held=held: held.delete_object(Bucket=bucket, Key=key)), key
        for prefix in ("", "team/", "other/", "teamtasks/"):
            assert is_refused(lambda p=prefix, held=held: held.list_objects_v2(Bucket=bucket, Prefix=p)), prefix
    for key in inside:
        assert is_refused(lambda key=key: viewer.put_object(Bucket=bucket, Key=key, Body=b"2")), key
        assert is_refused(lambda key=key: viewer.delete_object(Bucket=bucket, Key=key)), key
    for key in (
        "team/tasks/0/a.json",
        "team/ready/0/1/b",
        "team/queues/spark/tasks/0/a.json",
        "team/control/desired.json",
    ):
        operator.put_object(Bucket=bucket, Key=key, Body=b"2")
    operator.delete_object(Bucket=bucket, Key="team/ready/0/1/b")
    for key in ("team/queue.json", "team/workers/w.json", "team/queues/spark/queue.json"):
        assert is_refused(lambda key=key: operator.put_object(Bucket=bucket, Key=key, Body=b"2")), key
    for key in ("team/tasks/0/a.json", "team/queue.json", "team/queues/spark/tasks/0/a.json"):
        assert is_refused(lambda key=key: operator.delete_object(Bucket=bucket, Key=key)), key


def test_without_a_role_the_user_is_federated_and_its_own_keys_are_never_told(moto_server: S3Server) -> None:
    held = mint(settings_of(moto_server.endpoint, "s3://bucket", role=None), read_only=True, hours=2)
    told = read_fragment(held.text())
    assert told["session_token"]
    assert told["may_act"] is False
    assert told["expires_at"].endswith("Z")
    assert ACCESS_KEY not in told.values()
    assert SECRET_KEY not in told.values()
    assert held.secret_access_key not in repr(held)


def test_credentials_that_the_bucket_refuses_are_not_handed_out(server: S3Server) -> None:
    bucket = server.make_bucket()
    settings = settings_of(server.endpoint, f"s3://{bucket}/team", role=None)
    with pytest.raises(
        Refused, match=r"the bucket refuses the credentials.*QO_UI_ROLE_ARN"
    ):  # This one federates users without rights.
        mint(settings, read_only=True, hours=1)


def test_a_server_without_sts_says_what_to_do() -> None:
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(Refused, match=r"QO_UI_ROLE_ARN.*qo ui"):
        mint(settings_of(nowhere, "s3://bucket", role=None), read_only=True, hours=1)


async def test_a_bucket_is_shown_through_the_gateway_with_the_queues_below_it(moto_server: S3Server) -> None:
    bucket = moto_server.make_bucket()
    settings = settings_of(moto_server.endpoint, f"s3://{bucket}/team")
    store, _ = await open_store(settings)
    proof = Proof(proven_at=await store.now(), server="tests", checks=(), conditional_delete=True, versioned=True)
    await record_proof(store, proof)
    await store.put("queues/spark/queue.json", b"{}")
    await store.close()
    stop = asyncio.Event()
    told: asyncio.Future[Dashboard] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(settings, stop, on_start=told.set_result, port=0))
    await asyncio.wait({serving, told}, return_when=asyncio.FIRST_COMPLETED)
    try:
        visitor = Visitor(told.result())
        config = json.loads((await visitor.get("/config.json")).body)
        assert (config["endpoint"], config["prefix"], config["queues"]) == ("", "", ["queues/spark/"])
        through = await visitor.store()
        assert [each.key for each in (await through.list("")).entries] == ["queue.json", "queues/spark/queue.json"]
        await through.put("tasks/0/x.json", b"{}", if_absent=True)
        await through.close()
    finally:
        stop.set()
        await serving
    assert moto_server.admin.get_object(Bucket=bucket, Key="team/tasks/0/x.json")["Body"].read() == b"{}"
