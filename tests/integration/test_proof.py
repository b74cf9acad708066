"""The doctor on real stores: good ones pass, and a good one behind a bad proxy does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from qo.core.keys import EPHEMERAL
from qo.errors import Unproven
from qo.store import queue_manifest
from qo.store.checks import DELETE_RACE
from qo.store.local import LocalStore
from qo.store.proof import CheckResult, Report, prove
from qo.store.s3 import S3Store
from support.servers.proxies import HeaderDroppingProxy, LostReplyProxy
from support.servers.s3 import S3Server

WRITERS, ROUNDS = 6, 2  # SeaweedFS makes the losers of a race wait, the longer the more there are.


def failures(report: Report) -> dict[str, CheckResult]:
    return {result.name: result for result in report.results if not result.passed}


@pytest.fixture
async def local_store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    store = await LocalStore.open(tmp_path, forget=EPHEMERAL)
    yield store
    await store.close()


@pytest.mark.fast
async def test_the_embedded_store_passes_every_check(local_store: LocalStore) -> None:
    report = await prove(local_store)
    assert failures(report) == {}
    assert (await local_store.list("")).entries == []


@pytest.mark.s3
async def test_seaweedfs_passes_every_check_and_is_left_clean(
    s3_server: S3Server, s3_bucket: str, s3_store: S3Store
) -> None:
    report = await prove(s3_store, writers=WRITERS, rounds=ROUNDS)
    assert report.ok
    # Where versions are kept, its conditional DELETE is not atomic: a writer and a deleter that hold the same
    # ETag now and then both win. No other check may fail, nor this one on any other ground.
    assert failures(report).keys() <= {DELETE_RACE}
    assert all(result.detail.startswith("1 writers and ") for result in failures(report).values())
    left = s3_server.admin.list_object_versions(Bucket=s3_bucket)
    assert left.get("Versions", []) == left.get("DeleteMarkers", []) == []


@pytest.mark.s3
async def test_moto_passes_every_check_but_perhaps_a_race(moto_server: S3Server) -> None:
    store = await moto_server.open_store(moto_server.make_bucket())
    try:
        # It compares and writes without a lock: on a busy machine, now and then two racers win.
        assert {name for name in failures(await prove(store)) if not name.endswith(" race")} == set()
    finally:
        await store.close()


@pytest.mark.s3
async def test_a_bucket_without_versioning_is_told_how_to_get_it(s3_server: S3Server) -> None:
    store = await s3_server.open_store(s3_server.make_bucket(versioned=False))
    try:
        report = await prove(store, writers=2, rounds=1)
        assert not report.ok
        assert failures(report)["versions"].detail == "versioning is off"
        accepted = await prove(store, writers=2, rounds=1, allow_no_versioning=True)
        assert accepted.ok
        assert (await store.list("")).entries == []
        proof = accepted.proof(at=await store.now(), server=s3_server.endpoint)
        await queue_manifest.record_proof(store, proof)
        with pytest.raises(Unproven, match="QO_ALLOW_NO_VERSIONING"):
            await queue_manifest.require(store, prefix_len=None, needs_proof=True)
    finally:
        await store.close()


@pytest.mark.s3
async def test_a_bucket_that_is_not_there_is_the_only_thing_reported(s3_server: S3Server) -> None:
    store = await s3_server.open_store("qo-no-such-bucket")
    try:
        (only,) = (await prove(store)).results
        assert not only.passed
        assert "NoSuchBucket" in only.detail
    finally:
        await store.close()


@pytest.mark.s3
async def test_a_proxy_that_drops_conditions_is_caught(s3_server: S3Server, s3_bucket: str) -> None:
    address = urlsplit(s3_server.endpoint)
    assert address.hostname
    assert address.port
    with HeaderDroppingProxy(address.hostname, address.port) as proxy:
        store = await s3_server.open_store(s3_bucket, endpoint=proxy.endpoint)
        try:
            report = await prove(store, writers=WRITERS, rounds=ROUNDS)
        finally:
            await store.close()
    assert not report.ok
    wrong = failures(report)
    assert wrong.keys() == {
        "create once",
        "replace exactly",
        "create race",
        "replace race",
        "conditional delete",
        "delete race",
    }
    assert wrong["create race"].detail == f"{WRITERS} of {WRITERS} racing writers were told that they won"
    assert "it may be dropping If-Match and If-None-Match" in wrong["create race"].advice


@pytest.mark.s3
async def test_a_network_that_loses_replies_is_not_taken_for_a_bad_store(
    s3_server: S3Server, s3_bucket: str
) -> None:
    address = urlsplit(s3_server.endpoint)
    assert address.hostname
    assert address.port
    with LostReplyProxy(address.hostname, address.port) as proxy:
        store = await s3_server.open_store(s3_bucket, endpoint=proxy.endpoint)
        try:
            report = await prove(store, writers=WRITERS, rounds=1)
        finally:
            await store.close()
    assert not report.ok
    assert report.passed("create race")
    assert report.passed("replace race")
    assert "Unavailable" in failures(report)["create once"].detail
    assert not any("Do not use" in result.advice for result in report.results)
