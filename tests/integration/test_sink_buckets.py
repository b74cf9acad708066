"""A sink whose data is in a bucket, on a real S3 server."""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.dispatcher.states import Clock, opened
from support.servers.postgres import PostgresServer
from support.servers.s3 import S3Server
from support.sink.warehouses import Warehouse, bucket_warehouse, start_sink, until

pytestmark = pytest.mark.s3


@pytest.fixture
async def shop(
    tmp_path: Path, postgres_server: PostgresServer, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Warehouse]:
    for name, value in s3_server.environment("unused").items():
        monkeypatch.setenv(name, value)
    with opened(f"sqlite:{tmp_path / 'state.db'}", Clock()) as state:
        async with bucket_warehouse(state, tmp_path, postgres_server.make_database(), s3_server) as made:
            yield made


async def test_a_table_follows_a_dataset_in_a_bucket(shop: Warehouse) -> None:
    shop.commit("a", {"id": [1, 2], "item": ["pen", None]})
    shop.commit("b", {"id": [3], "item": ["ink"]})
    await shop.service.run_round()
    assert shop.query() == [(1, "pen"), (2, None), (3, "ink")]
    shop.commit("a", {"id": [4], "item": ["cap"]})
    shop.remove("b")
    await shop.service.run_round()
    await shop.service.run_round()
    assert shop.query() == [(4, "cap")]


async def test_an_object_that_is_gone_is_named_and_loaded_once_it_is_back(shop: Warehouse) -> None:
    shop.commit("a", {"id": [1]})
    assert shop.bucket is not None
    key = shop.files()[0]
    body = shop.bucket.server.admin.get_object(Bucket=shop.bucket.name, Key=key)["Body"].read()
    shop.bucket.server.admin.delete_object(Bucket=shop.bucket.name, Key=key)
    await shop.service.run_round()
    (state,) = await shop.states()
    assert key in state["error"]
    assert not state["is_current"]
    shop.bucket.server.admin.put_object(Bucket=shop.bucket.name, Key=key, Body=body)
    async with asyncio.timeout(30):
        while not (await shop.states())[0]["is_current"]:  # It rests after a failure.
            await shop.service.run_round()
            await asyncio.sleep(0.05)
    assert shop.query() == [(1,)]


async def test_a_file_that_is_no_parquet_is_refused_by_name(shop: Warehouse) -> None:
    shop.commit("a", {"id": [1]})
    assert shop.bucket is not None
    key = shop.files()[0]
    shop.bucket.server.admin.put_object(Bucket=shop.bucket.name, Key=key, Body=b"no table")
    await shop.service.run_round()
    (state,) = await shop.states()
    assert f"s3://{shop.bucket.name}/{key} cannot be read as Parquet" in state["error"]


async def test_a_loader_that_is_killed_while_it_reads_a_bucket_loads_nothing_twice(shop: Warehouse) -> None:
    rows = 40_000
    body = io.BytesIO()
    pq.write_table(pa.table({"id": range(rows)}), body)
    process = start_sink(shop)
    try:
        for number in range(6):
            shop.commit_file(f"p{number}", body.getvalue(), rows)
        await until(lambda: bool(shop.query("SELECT 1 FROM pg_class WHERE relname = 'orders'")))
    finally:
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.communicate)
    shop.commit_file("p6", body.getvalue(), rows)
    process = start_sink(shop)
    try:
        counts = "SELECT count(*), count(DISTINCT id) FROM orders"
        await until(lambda: shop.query(counts) == [(7 * rows, rows)])
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.communicate)
    assert process.returncode == 0
