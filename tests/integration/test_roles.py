"""Each role with exactly the policy that `qo policy` prints, against a server that enforces policies: it does all its
work, and whatever is not its work is refused.

SeaweedFS judges reading, writing, deleting and listing by the policy of the assumed role. What it does not tell apart
is judged by the rules of IAM in tests/unit/test_roles.py: that a write only creates, and the names of versions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from qo.config.settings import S3Settings, Settings
from qo.core import keys
from qo.core.pipeline.policy import normalise
from qo.core.roles import Bucket, Role, role_policy
from qo.dispatcher import aws
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.dispatcher.engine.loops import manifest
from qo.dispatcher.outbox.queues import BucketQueues
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.queue import roster
from qo.queue.queue import Claim, Queue
from qo.queue.roster import WorkerInfo
from qo.store.directory import open_directory
from qo.store.queue_manifest import Proof, record_proof
from support.cli.command import Qo
from support.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server, client_of, is_refused, start_seaweed
from support.stores.queues import until
from support.ui.dashboards import ANYBODY, IAM

pytestmark = pytest.mark.s3

BUCKET, OTHER, PREFIX = "roles", "others", "team/"
LEASED_WITHIN_S = 60.0
LAKE = f"s3://{BUCKET}/{PREFIX}lake"
PURGER = "purger"  # A monitor that also removes tasks.
ROUTER = "router"  # A producer that puts tasks into the inboxes of workers.
PYTHON = "python-worker"  # A worker of the runtime python, beside the roles.
SCOPED = "scoped-worker"  # The same, where attempts have credentials of their own.


def policies() -> dict[str, dict[str, Any]]:
    place, data = Bucket(BUCKET, PREFIX), normalise(LAKE)
    made = {str(role): role_policy(role, place, data=data) for role in Role}
    made[PURGER] = role_policy(Role.MONITOR, place, purge=True)
    made[ROUTER] = role_policy(Role.PRODUCER, place, direct=True)
    made[SCOPED] = role_policy(Role.WORKER, place, runtime="python", data=data, scoped=True)
    return made | {PYTHON: role_policy(Role.WORKER, place, runtime="python", data=data)}


def iam() -> dict[str, Any]:
    names = policies()
    roles = [
        {"roleName": name, "roleArn": _arn(name), "trustPolicy": ANYBODY, "attachedPolicies": [name]}
        for name in names
    ]
    return IAM | {
        "roles": roles,
        "policies": [{"name": name, "document": document} for name, document in names.items()],
    }


def _arn(name: str) -> str:
    return f"arn:aws:iam::role/{name}"


@dataclass(frozen=True)
class Held:
    access_key_id: str
    secret_access_key: str
    session_token: str | None


class Roles:
    """Whoever may do no more than a role may."""

    def __init__(self, server: S3Server, directory: Path, log: pytest.LogCaptureFixture) -> None:
        self.server = server
        self._directory = directory
        self._log = log
        self._held: dict[str, Held] = {}

    def held(self, name: str) -> Held:
        if name not in self._held:
            sts = boto3.client(
                "sts",
                endpoint_url=self.server.endpoint,
                region_name=REGION,
                aws_access_key_id=ACCESS_KEY,
                aws_secret_access_key=SECRET_KEY,
            )
            given = sts.assume_role(RoleArn=_arn(name), RoleSessionName=name)["Credentials"]
            sts.close()
            self._held[name] = Held(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])
        return self._held[name]

    def client(self, name: str) -> Any:
        return client_of(self.held(name), self.server.endpoint, REGION)

    def environment(self, name: str) -> dict[str, str]:
        held = self.held(name)
        return {
            "AWS_ACCESS_KEY_ID": held.access_key_id,
            "AWS_SECRET_ACCESS_KEY": held.secret_access_key,
            "AWS_SESSION_TOKEN": held.session_token or "",
            "S3_ENDPOINT": self.server.endpoint,
            "S3_REGION": REGION,
            "QO_STORE": f"s3://{BUCKET}/{PREFIX}",
            "QO_PAYLOAD_THRESHOLD_BYTES": "1000",
            "PYTHONPATH": str(Path(__file__).parents[1] / "apps"),
        }

    def qo(self, name: str, *args: str, **more: str) -> Any:
        """What the command printed, which must not have been refused anything on the way."""
        answer = Qo(self._directory, {**self.environment(name), **more}).here(*args, "--json")
        assert answer.code == 0, answer
        said = f"{answer.err}{self._log.text}"
        assert "AccessDenied" not in said, said
        self._log.clear()
        return json.loads(answer.out) if answer.out.strip() else None

    def lease_shards(self) -> None:
        """Run a worker that leases shards until it holds one, and stop it: it must not be refused anything."""
        environment = {**self.environment("worker"), "QO_SHARD_LEASING": "1"}
        process = Qo(self._directory, environment).start("worker", "--app", "role_tasks:app")
        try:
            deadline = time.monotonic() + LEASED_WITHIN_S
            while not self._has_leases():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "no shard was leased"
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            _, printed = process.communicate(timeout=LEASED_WITHIN_S)
        finally:
            process.kill()
        assert (process.returncode, "AccessDenied" in printed) == (0, False), printed

    def _has_leases(self) -> bool:
        prefix = f"{PREFIX}{keys.SHARD_LEASES}"
        return bool(self.server.admin.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["KeyCount"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    directory = tmp_path_factory.mktemp("seaweed-roles")
    (directory / "iam.json").write_text(json.dumps(iam()))
    server = start_seaweed(directory, f"-s3.iam.config={directory / 'iam.json'}")
    for bucket in (BUCKET, OTHER):
        server.admin.create_bucket(Bucket=bucket)
        server.admin.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    yield server
    server.stop()


async def _proven(server: S3Server) -> None:
    store = await server.open_store(BUCKET, prefix=PREFIX)
    proof = Proof(proven_at=await store.now(), server="tests", checks=(), conditional_delete=True, versioned=True)
    await record_proof(store, proof)
    await store.close()


def _empty(server: S3Server) -> None:
    """The policies name the bucket, so all tests share it: what one wrote there is not for the next."""
    for bucket in (BUCKET, OTHER):
        for page in server.admin.get_paginator("list_object_versions").paginate(Bucket=bucket):
            for each in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
                server.admin.delete_object(Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"])


@pytest.fixture
def roles(server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Roles:
    _empty(server)
    asyncio.run(_proven(server))
    caplog.set_level(logging.DEBUG, "qo")  # What fails without harm is said there alone.
    return Roles(server, tmp_path, caplog)


def test_every_role_does_its_work_with_its_own_policy_alone(roles: Roles) -> None:
    def submitted(kind: str, input: Any, *more: str) -> str:
        said = roles.qo("producer", "submit", "--type", kind, "--input", json.dumps(input), *more)
        return said["id"]

    large = submitted("grow", {"letters": 5000, "filler": "y" * 5000}, "--key", "k")
    assert submitted("grow", {"letters": 5000, "filler": "y" * 5000}, "--key", "k") == large
    failing, idle = submitted("fail", None), submitted("never", None)
    assert roles.qo("producer", "status", large)["status"] == "pending"

    asyncio.run(_signed_on(roles.server, "w", "never"))
    routed = roles.qo(ROUTER, "submit", "--type", "never", QO_DISPATCH="direct")
    assert routed["inbox"] == "w"
    roles.qo("operator", "cancel", routed["id"])
    roles.qo("operator", "archive", routed["id"])
    roles.qo("worker", "worker", "--app", "role_tasks:app", "--drain")
    roles.lease_shards()
    assert roles.qo("producer", "status", large)["status"] == "completed"
    followers = roles.qo("viewer", "list", "--type", "on_failure:fail")
    assert [(each["status"], each["output"]) for each in followers] == [("completed", failing)]
    # So that there is something to repair: an attempt whose worker is gone, a hint that is gone, and one that lies.
    asyncio.run(_disturbed(roles.server, idle))
    done = roles.qo("monitor", "monitor", "--once")
    assert done["check"]["requeued"] == 1, done
    assert done["check"]["repaired"] + done["sweep"]["removed"] + done["sweep"]["restored"] >= 1, done

    assert {each["id"] for each in roles.qo("viewer", "list")} >= {large, failing, idle}
    assert [each["status"] for each in roles.qo("viewer", "history", large)][-1] == "completed"
    roles.qo("viewer", "worker", "list")
    roles.qo("operator", "replay", failing)
    roles.qo("operator", "cancel", failing)
    roles.qo("operator", "archive", failing)
    roles.qo("operator", "pause", "--type", "never")
    roles.qo("operator", "resume", "--type", "never")
    purged: list[dict[str, Any]] = []
    # What ended in this very second is left for the next purge: the dates of its versions are the same.
    while not purged or purged[-1]["changed"]:
        purged.append(roles.qo(PURGER, "purge", "--older-than", "0s", "--status", "completed", "--yes"))
    assert sum(each["tasks"] for each in purged) == 3, purged  # With the child, and what followed the failure.
    assert {each["id"] for each in roles.qo("viewer", "list")} == {idle}
    assert roles.qo(PURGER, "purge", "--yes", QO_RETENTION_KEEP_COMPLETED="30d")["tasks"] == 0


async def _signed_on(server: S3Server, worker_id: str, task_type: str) -> None:
    """Have a worker on the roster that owns an inbox."""
    async with Queue(await server.open_store(BUCKET, prefix=PREFIX)) as queue:
        now = await queue.store.now()
        info = WorkerInfo(
            worker_id=worker_id,
            started_at=now,
            last_heartbeat=now,
            heartbeat_s=60.0,
            task_types=[task_type],
            inbox_until=now + timedelta(minutes=3),
        )
        await roster.report(queue.store, info)


async def _disturbed(server: S3Server, task_id: str) -> None:
    async with Queue(await server.open_store(BUCKET, prefix=PREFIX)) as queue:
        claim = await queue.claim(task_id, worker_id="gone", lease_s=0.05)
        assert isinstance(claim, Claim)

        async def lapsed() -> bool:
            ends = claim.task.lease_expires_at
            return ends is not None and await queue.store.now() > ends + timedelta(seconds=1)

        await until(lapsed)
        await queue.store.put(f"ready/{task_id[0]}/0000000001/{task_id}", b"a lie")


async def test_a_dispatcher_wakes_workers_and_keeps_manifests(
    roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in roles.environment("dispatcher").items():
        monkeypatch.setenv(name, value)
    aws.client.cache_clear()
    settings = Settings(
        store=f"s3://{BUCKET}/{PREFIX}", s3=S3Settings(endpoint=roles.server.endpoint, region=REGION)
    )
    queues = BucketQueues(settings)
    wakes = [WakeUp("w1", "t1"), WakeUp("w2", "t2")]
    for _ in range(2):  # The second time they are there.
        await queues.publish("python", wakes)
    await queues.close()
    lake = Settings(**{"dispatcher": type(settings.dispatcher)(data=LAKE), "s3": settings.s3})
    root = await open_directory(LAKE, lake)
    assert await manifest.write(root, {"name": "sales", "revision": 1, "epoch": 1, "files": []})
    assert await manifest.write(root, {"name": "sales", "revision": 2, "epoch": 1, "files": []})
    await root.close()
    shelf = BundleStore(lake)
    await asyncio.to_thread(shelf.write, "0" * 64, b"zip")
    assert await asyncio.to_thread(shelf.read, "0" * 64) == b"zip"
    aws.client.cache_clear()
    async with Queue(await roles.server.open_store(BUCKET, prefix=f"{PREFIX}queues/python")) as queue:
        assert len(await queue.list()) == 2


# One object of each kind. What each role may do with it: r(ead), w(rite), d(elete).
MAY: dict[str, dict[str, str]] = {
    "queue.json": {
        "producer": "r", "worker": "r", "monitor": "r", "dispatcher": "r", "viewer": "r", "operator": "r", PYTHON: "r",
        PURGER: "r", ROUTER: "r",
    },
    "tasks/a/t.json": {
        "producer": "rw", "worker": "rw", "monitor": "rw", "viewer": "r", "operator": "rw", PURGER: "rwd", ROUTER: "rw",
    },
    "ready/a/0000000001/t": {
        "producer": "w", "worker": "rwd", "monitor": "rwd", "viewer": "r", "operator": "rwd", PURGER: "rwd",
        ROUTER: "w",
    },
    "inbox/w/0000000001/t": {
        "worker": "rwd", "monitor": "rwd", "viewer": "r", "operator": "rwd", PURGER: "rwd", ROUTER: "w",
    },
    "leases/a/0000000001/t": {"worker": "rwd", "monitor": "rwd", "viewer": "r", "operator": "rwd", PURGER: "rwd"},
    "data/a/t/output-1.json": {
        "producer": "rw", "worker": "rw", "viewer": "r", "operator": "r", PURGER: "d", ROUTER: "rw",
    },
    "workers/w.json": {"worker": "rwd", "monitor": "rd", "viewer": "r", "operator": "r", PURGER: "rd", ROUTER: "r"},
    "schedules/s.json": {"viewer": "r", "operator": "r"},
    "monitor/sweep.json": {"worker": "rw", "monitor": "rw", PURGER: "rw"},
    "monitor/purge.json": {PURGER: "rw"},
    "shard-leases/plan.json": {"worker": "rw", "monitor": "rw", "viewer": "r", "operator": "r", PURGER: "rw"},
    "control/desired.json": {"worker": "r", "monitor": "r", "viewer": "r", "operator": "rw", PURGER: "r"},
    "control/board.json": {
        "producer": "rw", "worker": "rw", "monitor": "rw", "viewer": "r", "operator": "rw", PURGER: "rw",
        ROUTER: "rw",
    },
    "queues/python/control/board.json": {"dispatcher": "rw", "viewer": "r", "operator": "rw", PYTHON: "rw"},
    "queues/python/queue.json": {"dispatcher": "rw", "viewer": "r", "operator": "r", PYTHON: "rw"},
    "queues/python/tasks/a/t.json": {"dispatcher": "rw", "viewer": "r", "operator": "rw", PYTHON: "rw"},
    "queues/python/ready/a/1/t": {"dispatcher": "w", "viewer": "r", "operator": "rwd", PYTHON: "rwd"},
    "queues/python/leases/a/1/t": {"viewer": "r", "operator": "rwd", PYTHON: "rwd"},
    "queues/spark/tasks/a/t.json": {"dispatcher": "rw", "viewer": "r", "operator": "rw"},
    "lake/dataset/part-0": {PYTHON: "rw", "task": "rw"},
    "lake/dataset/metadata/v1.metadata.json": {"dispatcher": "rw", PYTHON: "rw", "task": "rw"},
    "lake/_manifests/sales/latest.json": {"dispatcher": "rw", PYTHON: "rw", "task": "rw"},
    "lake/bundles/b.zip": {"dispatcher": "rw", PYTHON: "rw", "task": "rw", SCOPED: "r"},
    "lake/_logs/2026-01-01/t/1/1.jsonl": {"dispatcher": "r", PYTHON: "rw", "task": "rw", SCOPED: "w"},
    "ui/index.html": {},
    "secrets/key.pem": {},
}  # fmt: skip
for _key, _may in MAY.items():  # In its queue it has the rights of any worker.
    if PYTHON in _may and not _key.startswith("lake/"):
        _may[SCOPED] = _may[PYTHON]

OUTSIDE = ("other/tasks/a/t.json", "tasks/a/t.json", "teamtasks/a/t.json", "team")
OFTEN = {"producer"}  # Each takes a second; the others in make prove.


@pytest.fixture
def versions(roles: Roles) -> Mapping[str, str]:
    """One object of each kind, and a version of each."""
    server = roles.server
    for bucket in (BUCKET, OTHER):
        for key in (*(PREFIX + each for each in MAY if each != "queue.json"), *OUTSIDE):
            server.admin.put_object(Bucket=bucket, Key=key, Body=b"1")
    listed = server.admin.list_object_versions(Bucket=BUCKET)["Versions"]
    return {each["Key"]: each["VersionId"] for each in listed}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in OFTEN else pytest.mark.long) for each in policies()]
)
def test_whatever_is_not_a_roles_work_is_refused(roles: Roles, versions: Mapping[str, str], name: str) -> None:
    held = roles.client(name)

    def may(ask: Callable[[], Any]) -> bool:
        return not is_refused(ask)

    for key, allowed in MAY.items():
        there = {"Bucket": BUCKET, "Key": PREFIX + key}
        granted = allowed.get(name, "")
        assert may(lambda there=there: held.get_object(**there)) == ("r" in granted), key
        assert may(lambda there=there: held.put_object(**there, Body=b"2")) == ("w" in granted), key
        is_hint = "leases/a/" in key or "ready/a/" in key or "inbox/" in key
        by_version = name in ("worker", "monitor", PURGER, PYTHON, SCOPED) and is_hint and "d" in granted
        by_version = by_version or (name == PURGER and key.startswith(("tasks/", "data/")))
        version = versions[PREFIX + key]
        assert may(lambda there=there, v=version: held.delete_object(**there, VersionId=v)) == by_version, key
        assert may(lambda there=there: held.delete_object(**there)) == ("d" in granted), key
        if "d" in granted or by_version:
            roles.server.admin.put_object(**there, Body=b"1")
    for key in OUTSIDE:
        there = {"Bucket": BUCKET, "Key": key}
        assert is_refused(lambda there=there: held.get_object(**there)), key
        assert is_refused(lambda there=there: held.put_object(**there, Body=b"2")), key
        assert is_refused(lambda there=there: held.delete_object(**there)), key
        assert is_refused(
            lambda key=key: held.copy_object(
                Bucket=BUCKET, Key=f"{PREFIX}ready/copy", CopySource={"Bucket": BUCKET, "Key": key}
            )
        ), key
    theirs = {"Bucket": OTHER, "Key": f"{PREFIX}tasks/a/t.json"}
    assert is_refused(lambda: held.get_object(**theirs))
    assert is_refused(lambda: held.put_object(**theirs, Body=b"2"))
    for prefix in ("", "other/", "team", "tasks/", f"{PREFIX}secrets/", f"{PREFIX}ui/"):
        assert is_refused(lambda prefix=prefix: held.list_objects_v2(Bucket=BUCKET, Prefix=prefix)), prefix
        assert is_refused(lambda prefix=prefix: held.list_object_versions(Bucket=BUCKET, Prefix=prefix)), prefix
    assert is_refused(lambda: held.list_objects_v2(Bucket=OTHER, Prefix=f"{PREFIX}tasks/"))
    _settings_are_refused(held)


def _settings_are_refused(held: Any) -> None:
    rules = {"Rules": [{"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}]}
    cors = {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
    public = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": [f"arn:aws:s3:::{BUCKET}/*"]}
        ],
    }
    versioning = {"Status": "Suspended"}
    for ask in (
        lambda: held.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=versioning),
        lambda: held.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration=rules),
        lambda: held.put_bucket_cors(Bucket=BUCKET, CORSConfiguration=cors),
        lambda: held.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(public)),
        lambda: held.delete_bucket_policy(Bucket=BUCKET),
        lambda: held.delete_bucket(Bucket=OTHER),
        lambda: held.create_bucket(Bucket="mine"),
    ):
        assert is_refused(ask)
