"""Canaries: secrets that are planted in a running site, and looked for in everything that it writes and says.

The site runs at its most talkative, and its code leaks as people's code does: it fails with its environment, with a
secret of its own and with the URL of a database in its errors. Then every log, object and version, row of the state,
answer and page is read, and no canary may be in any of it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import boto3
import pytest
import sqlalchemy as sa

from support.dispatcher.sites import Site, job, proven
from support.servers.ports import free_ports
from support.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server, start_seaweed
from support.stores.queues import until
from support.ui.dashboards import IAM, ROLE, read_fragment

if TYPE_CHECKING:
    from support.servers.postgres import PostgresServer

# Many processes, which wait for each other on a busy machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(360)]

JWT = re.compile(r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}")
WORKERS, WEBHOOK, OF_JOB, DATABASE = (
    f"canary-of-{each}-0123456789" for each in ("the-workers", "the-webhook", "a-job", "the-database")
)
SESSION = {
    "AWS_ACCESS_KEY_ID": "AKIACANARY",
    "AWS_SECRET_ACCESS_KEY": "canary/of+the/bucket/0123456789",
    "AWS_SESSION_TOKEN": "canary-of-the-session-0123456789",
}
PIPELINE = {
    "name": "shop",
    "jobs": [
        {
            "name": "feed", "activation": "source", "runtime": "dispatcher", "operator": "noop", "outputs": 1,
            "source": {"kind": "manual"}, "update_strategy": "replace",
        },
        {
            "name": "hook", "activation": "source", "runtime": "dispatcher", "operator": "noop", "outputs": 1,
            "source": {"kind": "webhook", "webhook_path": "orders/new", "secret": "orders"},
            "update_strategy": "replace",
        },
        {
            "name": "tick", "activation": "source", "runtime": "dispatcher", "operator": "noop", "outputs": 1,
            "source": {"kind": "cron", "schedule": "* * * * *"}, "update_strategy": "replace",
        },
        job("copied"),
        job("leaking", outputs=0, max_attempts=1, secrets=["warehouse"]) | {"operator": "canary_operators:leak"},
    ],
    "publish": {"sales": {"from": {"job": "copied"}}},
}  # fmt: skip


@dataclass
class Told:
    """All that was written and said, by where."""

    texts: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, where: str, said: bytes | str) -> None:
        self.texts[where] = said.decode("utf-8", "replace") if isinstance(said, bytes) else said

    def leaks(self, canaries: Mapping[str, str]) -> list[str]:
        found = [
            f"{name} in {where}"
            for where, said in self.texts.items()
            for name, it in canaries.items()
            if _in(it, said)
        ]
        return found + [f"a signed token in {where}" for where, said in self.texts.items() if JWT.search(said)]


def _in(secret: str, said: str) -> bool:
    """As it is, or as URLs, JSON and shells write it."""
    return any(form in said for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]))


@dataclass
class Planted:
    site: Site
    session: Mapping[str, str]
    server: S3Server | None = None
    bucket: str = ""


@pytest.fixture
async def embedded_planted(tmp_path: Path) -> AsyncIterator[Planted]:
    site = Site(tmp_path, f"sqlite:{tmp_path / '.qo' / 'state.db'}", {**SESSION, **_environment()})
    yield Planted(site, SESSION)
    await site.close()


@pytest.fixture
def sts_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    directory = tmp_path_factory.mktemp("seaweed-canaries")
    (directory / "iam.json").write_text(json.dumps(IAM))
    server = start_seaweed(directory, f"-s3.iam.config={directory / 'iam.json'}")
    yield server
    server.stop()


@pytest.fixture
async def servers_planted(
    tmp_path: Path, postgres_server: PostgresServer, sts_server: S3Server
) -> AsyncIterator[Planted]:
    """With credentials of a session, and a password in the URL of the database."""
    bucket = sts_server.make_bucket()
    await proven(sts_server, bucket)
    sts = boto3.client(
        "sts",
        endpoint_url=sts_server.endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    given = sts.assume_role(RoleArn=ROLE, RoleSessionName="canaries")["Credentials"]
    sts.close()
    session = {
        "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
        "AWS_SESSION_TOKEN": given["SessionToken"],
    }
    state = postgres_server.make_database().replace("postgres@", f"postgres:{DATABASE}@")
    place = sts_server.environment(bucket) | {"QO_DATA": f"s3://{bucket}/data"}
    site = Site(tmp_path, state, {**place, **session, **_environment()})
    yield Planted(site, session, sts_server, bucket)
    await site.close()


def _environment() -> dict[str, str]:
    return {"QO_WORKER_TOKEN": WORKERS, "QO_LOG": "debug", "WAREHOUSE_PASSWORD": OF_JOB}


@pytest.fixture(params=["embedded_planted", pytest.param("servers_planted", marks=pytest.mark.s3)])
def planted(request: pytest.FixtureRequest) -> Planted:
    return request.getfixturevalue(request.param)


async def test_no_secret_is_in_anything_that_a_site_writes_or_says(planted: Planted) -> None:
    site, told = planted.site, Told()
    secrets = site.directory / ".qo" / "secrets"
    secrets.mkdir(mode=0o700, parents=True)
    for name, content in (("webhook-orders", WEBHOOK), ("secret-warehouse", OF_JOB)):
        (secrets / name).touch(0o600)
        (secrets / name).write_text(content + "\n")
    (status,) = free_ports(1)
    async with (
        site.dispatcher(),
        site.worker("w1", QO_WORKER_HTTP=f"127.0.0.1:{status}"),
        site.scheduler(),
        _dashboard(site) as dashboard,
    ):
        admin = (secrets / "admin.token").read_text().strip()
        await site.deploy(json.dumps(PIPELINE))
        made = await site.client.post("/v1/tokens", {"name": "ada", "role": "reader"})
        await site.emit("p1")
        await _webhooks(site, told)
        await site.completed({"copied": 1})
        await _failed(site, "leaking")
        link = (await dashboard.begun())["link"]
        await _asked(site, told, admin, made["token"], status)
        await asyncio.to_thread(_page, told, link)
        await until(lambda: asyncio.to_thread(_listed, planted), within_s=60, every_s=0.2)
    await asyncio.to_thread(_commands, planted, told)
    canaries = {
        "the admin's token": admin,
        "a user's token": made["token"],
        "the workers' token": WORKERS,
        "the webhook's secret": WEBHOOK,
        "the job's secret": OF_JOB,
        "the database's password": DATABASE,
        "the secret key": planted.session["AWS_SECRET_ACCESS_KEY"],
        "the session token": planted.session["AWS_SESSION_TOKEN"],
        "the dashboard's key": read_fragment(link.partition("#c=")[2])["secret_access_key"],
    }
    shown = _files(site, told)
    assert shown >= 6
    _state(site, told)
    await _objects(planted, told)
    failing = [where for where, said in told.texts.items() if "cannot connect to" in said]
    assert len(failing) >= 3, "the error itself is told: in the state, in an answer, in a log"
    assert told.leaks(canaries) == []


# What is done


def _dashboard(site: Site) -> Any:
    url = f"http://127.0.0.1:{site.ports[0]}"
    return site._process("ui", "ui", "serve", "--json", "--port", "0", "--no-open", QO_DISPATCHER_URL=url)


async def _webhooks(site: Site, told: Told) -> None:
    body = json.dumps({"idempotency_key": "k", "events": [{"partition_key": "w1"}]}).encode()
    good = hmac.new(WEBHOOK.encode(), body, "sha256").hexdigest()
    url = f"http://127.0.0.1:{site.ports[0]}/v1/webhooks/orders/new"
    for number, signature in enumerate((good, good[::-1], WEBHOOK)):
        headers = {"X-Hub-Signature-256": f"sha256={signature}", "Content-Type": "application/json"}
        told.add(f"webhook {number}", await asyncio.to_thread(_answer, url, headers, body))


async def _failed(site: Site, name: str) -> None:
    async def has() -> bool:
        rows = await asyncio.to_thread(site.tasks, name)
        return bool(rows) and all(row["status"] == "failed" for row in rows)

    await until(has, within_s=90, every_s=0.1)


async def _asked(site: Site, told: Told, admin: str, reader: str, status: int) -> None:
    """Every page that a reader gets, and refusals of tokens that are no good there."""
    outside, inside = (f"http://127.0.0.1:{port}" for port in site.ports[:2])
    task = site.task("leaking")["id"]
    names = (
        "dags",
        "dags/shop",
        "datasets",
        "datasets/shop.copied/partitions",
        "tasks",
        f"tasks/{task}",
        "sources",
    )
    more = ("queues", "events", f"why?target={task}", "tokens", "dags/shop/versions/1", "no-such-thing")
    paths = [*(f"/v1/{each}" for each in (*names, *more)), "/metrics", "/livez", "/readyz", "/v1/dags/%00"]
    asked = [(f"{outside}{path}", {"Authorization": f"Bearer {reader}"}) for path in paths]
    for wrong in (admin[:-1], WORKERS, "eyJhbGciOiJFUzI1NiJ9.e30e30e30e30.c2lnc2lnc2lnc2ln"):
        asked.append((f"{outside}/v1/dags", {"Authorization": f"Bearer {wrong}"}))
        asked.append((f"{inside}/internal/sources", {"Authorization": f"Bearer {wrong}x"}))
        asked.append((f"{inside}/v1/task/complete", {"X-Qo-Task-Capability": wrong}))
    asked.append((f"{inside}/internal/sources", {"Authorization": f"Bearer {admin}"}))
    asked += [(f"http://127.0.0.1:{status}{path}", {}) for path in ("/stats", "/metrics", "/livez", "/readyz")]
    for number, (url, headers) in enumerate(asked):
        told.add(f"{number} {url}", await asyncio.to_thread(_answer, url, headers))


def _answer(url: str, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, data=body, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.read() + str(reply.headers).encode()
    except urllib.error.HTTPError as refused:
        return refused.read() + str(refused.headers).encode()


def _page(told: Told, link: str) -> None:
    parts = urlsplit(link)
    origin = f"{parts.scheme}://{parts.netloc}"
    for path in ("/", "/config.json", "/s3/qo?list-type=2", "/no-such-page", "/api/v1/tasks"):
        told.add(f"the dashboard's {path}", _answer(origin + path, {}))


def _commands(planted: Planted, told: Told) -> None:
    """What people run, also where it cannot work."""
    site = planted.site
    tasks = site.directory / "tasks"
    tasks.mkdir()
    at = {} if planted.server is not None else {"QO_STORE": f"local:{tasks}"}
    for kind in ("leak", "leak-in-a-process"):
        site.qo(**at).ok("submit", "--type", kind, "--retries", "0")
    worked = site.qo(**at)("worker", "--app", "canary_operators:app", "--drain")
    told.add("a worker that drains", f"{worked.out}{worked.err}")
    listed = site.qo(**at).json("list")
    assert {each["status"] for each in listed if each["task_type"].startswith("leak")} == {"failed"}
    for each in listed:
        told.add(f"qo history {each['id']}", site.qo(**at).ok("history", each["id"], "--json"))
    away = {"QO_STATE": f"postgresql://ada:{DATABASE}@127.0.0.1:{free_ports(1)[0]}/qo"}
    wrong = {"QO_LINEAGE_URL": f"http://ada:{DATABASE}@127.0.0.1/"}
    spark = {"QO_SPARK_REMOTE": f"sc://h/;token={DATABASE}", "QO_SPARK_CONF": f"spark.x.secret={DATABASE}"}
    for number, (command, settings) in enumerate(
        (
            (("config", "show"), {}),
            (("config", "show", "--json"), spark),
            (("config", "show"), wrong),
            (("run", "list"), {}),
            (("run", "list"), away),
            (("db", "status"), away),
            (("token", "list"), {}),
            (("key", "list"), {}),
            (("doctor",), {"QO_STORE": "local:elsewhere"}),
        )
    ):
        said = site.qo(**settings).here(*command)
        told.add(f"{number} qo {' '.join(command)}", f"{said.out}{said.err}")


# What is looked through


def _files(site: Site, told: Told) -> int:
    """All but the secrets themselves, and what the dashboard prints: its link is its key."""
    kept = site.directory / ".qo" / "secrets"
    found = [
        each
        for each in site.directory.rglob("*")
        if each.is_file()
        and kept not in each.parents
        and not (each.name.startswith("ui-") and each.suffix == ".out")
    ]
    for each in found:
        told.add(str(each.relative_to(site.directory)), each.read_bytes())
    return len(found)


def _state(site: Site, told: Told) -> None:
    tables = sa.MetaData()
    tables.reflect(site.state.engine)
    with site.state.read() as tx:
        for table in tables.sorted_tables:
            told.add(f"table {table.name}", "\n".join(str(dict(row)) for row in tx.all(sa.select(table))))


def _listed(planted: Planted) -> bool:
    """Whether the manifest of what was published is there, which a loop of the dispatcher writes in its own time."""
    if planted.server is None:
        return any(planted.site.directory.rglob("_manifests/sales*"))
    found = planted.server.admin.list_objects_v2(Bucket=planted.bucket, Prefix="data/_manifests/sales")
    return found["KeyCount"] > 0


async def _objects(planted: Planted, told: Told) -> None:
    """Every version of every object of the bucket: tasks, their history, manifests, lineage, data."""
    if planted.server is None:
        return  # They lie in files, which have been read.
    admin = planted.server.admin
    seen = 0
    for page in admin.get_paginator("list_object_versions").paginate(Bucket=planted.bucket):
        for each in page.get("Versions", []):
            got = admin.get_object(Bucket=planted.bucket, Key=each["Key"], VersionId=each["VersionId"])
            told.add(f"{each['Key']} {each['VersionId']}", got["Body"].read())
            seen += 1
    names = " ".join(told.texts)
    assert seen > 10
    assert "_lineage/" in names
    assert "_manifests/sales" in names
