"""`qo doctor --fix` makes a bucket fit for a queue, and takes nothing from whoever else uses it."""

from __future__ import annotations

from typing import Any

import pytest

from qo.core.keys import EPHEMERAL
from qo.store.s3.setup import set_up
from servers import S3Server

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
    assert len(await fixed(server, bucket)) == 3
    assert server.admin.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    covered = {rule["Filter"]["Prefix"] for rule in rules(server, bucket).values()}
    assert covered == set(EPHEMERAL)
    assert await fixed(server, bucket) == []


async def test_rules_of_others_and_of_other_queues_in_the_bucket_are_kept(server: S3Server) -> None:
    bucket = server.make_bucket()
    server.admin.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [THEIRS]})
    assert len(await fixed(server, bucket, "one/")) == 1
    assert len(await fixed(server, bucket, "two/")) == 1
    found = rules(server, bucket)
    assert found["theirs"]["Expiration"]["Days"] == 30
    assert len(found) == 1 + 2 * len(EPHEMERAL)


async def test_versioning_stays_off_where_that_is_wanted(server: S3Server) -> None:
    bucket = server.make_bucket(versioned=False)
    assert await fixed(server, bucket, versioning=False) == []
    assert "Status" not in server.admin.get_bucket_versioning(Bucket=bucket)
