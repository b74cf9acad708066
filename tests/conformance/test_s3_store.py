"""The S3 adapter, against a real server and against a second implementation of S3."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from qo.store.port import ObjectStore
from qo.store.s3 import S3Store
from qo.testing.conformance import StoreConformance
from qo.testing.conformance.deletes import Deletes
from qo.testing.conformance.history import History
from qo.testing.conformance.lists import Lists
from qo.testing.conformance.writes import Writes
from support.servers.s3 import S3Server

pytestmark = pytest.mark.s3

LONG = bool(os.environ.get("PROVE"))


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    """One for all tests here, each of which keeps to a prefix of its own: a server's first write to a bucket takes
    a while."""
    return s3_server.make_bucket()


@pytest.fixture(scope="module")
def moto_bucket(moto_server: S3Server) -> str:
    return moto_server.make_bucket()


class TestSeaweedFS(StoreConformance):
    RACERS = 32 if LONG else 5  # It answers losers slowly: a round of many takes seconds.
    ROUNDS = 5 if LONG else 2
    VERSIONS_MANY = 1100 if LONG else 25
    LISTS_BY_BYTES = False

    @pytest.fixture
    async def store(self, s3_server: S3Server, bucket: str) -> AsyncIterator[S3Store]:
        store = await s3_server.open_store(bucket)
        yield store
        await store.close()

    async def test_a_delete_and_a_replace_of_one_etag_never_both_happen(
        self, store: ObjectStore, root: str
    ) -> None:
        pytest.skip("a known defect of SeaweedFS 4.48: in versioned buckets a conditional delete is not atomic")


class TestUnderAPrefix(TestSeaweedFS):
    RACERS, ROUNDS = 2, 1

    @pytest.fixture
    async def store(self, s3_server: S3Server, bucket: str) -> AsyncIterator[S3Store]:
        store = await s3_server.open_store(bucket, prefix="some/queue")
        yield store
        await store.close()


class TestMoto(Writes, Deletes, Lists, History):
    """All but the races: moto compares the condition first and writes then, and between the two another may write."""

    @pytest.fixture
    async def store(self, moto_server: S3Server, moto_bucket: str) -> AsyncIterator[S3Store]:
        store = await moto_server.open_store(moto_bucket)
        yield store
        await store.close()

    async def test_a_key_written_again_keeps_what_was_before_its_deletion(
        self, store: ObjectStore, root: str
    ) -> None:
        pytest.skip("a known deviation of moto: all versions, then all markers, dated to the second")

    async def test_versions_are_listed_from_behind_a_key(self, store: ObjectStore, root: str) -> None:
        pytest.skip(
            "a known deviation of moto: a key marker without a version marker leaves out the wrong versions"
        )
