"""`qo doctor --fix` makes a bucket fit for a queue, and takes nothing from whoever else uses it."""

from __future__ import annotations

from typing import Any

import pytest

from qo.cli.admin import doctor
from qo.config.location import S3
from qo.config.origins import load
from qo.core.keys import EPHEMERAL
from qo.core.lifecycle_rules import queue_rules
from qo.store.s3.setup import UPLOADS_DONE, aborts_uploads, set_up
from support.servers.s3 import S3Server

pytestmark = pytest.mark.s3

THEIRS = {
    "ID": "theirs",
    "Filter": {"Prefix": "reports/"},
    "Status": "Enabled",
    "Expiration": {"Days": 30},
}


@pytest.fixture(params=["s3_server", "moto_server"])
def server(request: pytest.FixtureRequest) -> S3Server:
    return request.getfixturevalue(request.param)


async def fixed(server: S3Server, bucket: str, prefix: str = "", *, versioning: bool = True) -> list[str]:
    store = await server.open_store(bucket)
    try:
        return await set_up(store.transport, prefix, versioning=versioning)
    finally:
        await store.close()


def rules(server: S3Server, bucket: str) -> dict[str, Any]:
    found = server.admin.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    return {rule["ID"]: rule for rule in found}


async def test_what_is_missing_is_made_once(server: S3Server) -> None:
    bucket = f"setup-{server.endpoint.rpartition(':')[2]}"
    assert len(await fixed(server, bucket)) == 4
    assert server.admin.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    covered = {rule["Filter"]["Prefix"] for rule in rules(server, bucket).values()}
    assert covered == {*EPHEMERAL, ""}
    assert await fixed(server, bucket) == []


async def test_the_rules_that_are_printed_are_those_that_are_set(server: S3Server) -> None:
    one, other = server.make_bucket(), server.make_bucket()
    await fixed(server, one, "team/")
    printed = {"Rules": queue_rules("team/")}
    server.admin.put_bucket_lifecycle_configuration(Bucket=other, LifecycleConfiguration=printed)
    assert rules(server, one) == rules(server, other)
    assert await fixed(server, other, "team/") == []


async def test_rules_of_others_and_of_other_queues_in_the_bucket_are_kept(server: S3Server) -> None:
    bucket = server.make_bucket()
    server.admin.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [THEIRS]})
    assert len(await fixed(server, bucket, "one/")) == 2
    assert len(await fixed(server, bucket, "two/")) == 2
    found = rules(server, bucket)
    assert found["theirs"]["Expiration"]["Days"] == 30
    assert len(found) == 1 + 2 * (len(EPHEMERAL) + 1)


async def test_versioning_stays_off_where_that_is_wanted(server: S3Server) -> None:
    bucket = server.make_bucket(versioned=False)
    assert await fixed(server, bucket, versioning=False) == [UPLOADS_DONE]
    assert await fixed(server, bucket, versioning=False) == []
    assert "Status" not in server.admin.get_bucket_versioning(Bucket=bucket)


async def test_uploads_that_nobody_finishes_are_aborted_unless_somebody_has_seen_to_that(server: S3Server) -> None:
    bucket = server.make_bucket(versioned=False)
    store = await server.open_store(bucket)
    try:
        assert not await aborts_uploads(store.transport, "queue/")
        await fixed(server, bucket, "queue/", versioning=False)
        assert await aborts_uploads(store.transport, "queue/")
        assert await aborts_uploads(store.transport, "queue/spark/")
        assert not await aborts_uploads(store.transport, "other/")
        (rule,) = rules(server, bucket).values()
        assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
        theirs = {"ID": "all", "Filter": {"Prefix": ""}, "Status": "Enabled"}
        theirs["AbortIncompleteMultipartUpload"] = {"DaysAfterInitiation": 1}
        server.admin.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [theirs]})
        assert await fixed(server, bucket, "queue/", versioning=False) == []
    finally:
        await store.close()


async def test_the_doctor_looks_at_the_bucket_of_the_data_too(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, data = moto_server.make_bucket(), moto_server.make_bucket()
    for name, value in moto_server.environment(queue).items():
        monkeypatch.setenv(name, value)
    settings = load({"store": f"s3://{queue}/q", "dispatcher.data": f"s3://{data}/lake"})
    assert await doctor._unfinished_uploads(settings) == [f"s3://{queue}/q/", f"s3://{data}/lake/"]
    done = await doctor._fix(settings, S3(queue, "q/"))
    assert f"s3://{data}/lake/: {UPLOADS_DONE}" in done
    assert await doctor._unfinished_uploads(settings) == []
