"""Files for others show what their dataset shows, whatever happens to those who write them."""

from __future__ import annotations

import asyncio
import csv
import fcntl
import gzip
import io
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from qo.dispatcher.state.database import State
from support.dispatcher.pipelines import staged
from support.dispatcher.states import Clock, opened
from support.servers.s3 import S3Server
from support.sink.warehouses import Warehouse, exporter, service_of, shop_with_files, start_sink, until

Open = Callable[..., Any]


@pytest.fixture
async def open_shop(state: State, tmp_path: Path) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def enter(file: str, **fields: Any) -> Warehouse:
            return await stack.enter_async_context(exporter(state, tmp_path, shop_with_files(file, **fields)))

        yield enter


def names(shop: Warehouse) -> list[str]:
    root = shop.directory / "exports"
    return sorted(
        str(each.relative_to(root))
        for each in root.rglob("*")
        if each.is_file() and each.name != ".lock" and each.parent.name != "_qo"
    )


def text(shop: Warehouse, name: str) -> str:
    return (shop.directory / "exports" / name).read_text()


def record_of(shop: Warehouse) -> dict[str, Any]:
    return json.loads(text(shop, "_qo/orders.json"))


async def test_there_is_one_file_for_each_partition_and_each_follows_its_own(open_shop: Open) -> None:
    shop = await open_shop("orders/{partition}.csv")
    shop.commit("a", {"id": [1, 2], "item": ["pen, red", None]})
    shop.commit("b", {"id": [3], "item": [""]})
    await shop.service.run_round()
    assert text(shop, "orders/a.csv") == '"id","item"\n1,"pen, red"\n2,\n'
    before = (shop.directory / "exports/orders/b.csv").stat().st_mtime_ns
    shop.commit("a", {"id": [4], "item": ["ink"]})
    shop.commit("c", {"id": [5], "item": ["cap"]})
    await shop.service.run_round()
    assert text(shop, "orders/a.csv") == '"id","item"\n4,"ink"\n'
    assert (shop.directory / "exports/orders/b.csv").stat().st_mtime_ns == before
    shop.remove("b")
    await shop.service.run_round()
    assert names(shop) == ["orders/a.csv", "orders/c.csv"]
    record = record_of(shop)
    assert sorted(record["files"]) == names(shop)
    assert (record["pending"], record["replaced"]) == ([], {})
    (state,) = await shop.states()
    assert state["text"].startswith("the files orders/{partition}.csv in 'files' are current, as of revision")


async def test_one_file_has_all_rows_and_columns_that_came_later_are_null_in_earlier_rows(open_shop: Open) -> None:
    shop = await open_shop("orders.jsonl.gz")
    shop.commit(
        "a",
        {
            "id": [1],
            "price": [Decimal("1.50")],
            "at": [datetime(2026, 1, 2, 3, tzinfo=UTC)],
            "day": [date(2026, 1, 2)],
        },
    )
    shop.commit("b", {"id": [2], "tags": [["x", "y"]], "map": [{"k": b"\x00"}]})
    await shop.service.run_round()
    body = gzip.decompress((shop.directory / "exports/orders.jsonl.gz").read_bytes())
    rows = [json.loads(line) for line in body.splitlines()]
    assert rows[0] | {"at": "", "day": ""} == {
        "id": 1, "price": "1.50", "at": "", "day": "", "tags": None, "map": None,
    }  # fmt: skip
    assert rows[1]["tags"] == ["x", "y"]
    assert rows[1]["map"] == {"k": "AA=="}


async def test_parquet_and_csv_have_every_type(open_shop: Open) -> None:
    shop = await open_shop("{partition}.csv")
    columns = {
        "n": [[1, 2]],
        "b": [b"\x01"],
        "d": [Decimal("2.50")],
        "t": [datetime(2026, 1, 2, tzinfo=UTC)],
        "f": [True],
    }
    shop.commit("a", columns)
    await shop.service.run_round()
    (row,) = csv.DictReader(io.StringIO(text(shop, "a.csv")))
    assert (row["n"], row["b"], row["d"], row["f"]) == ("[1, 2]", "AQ==", "2.50", "true")
    assert row["t"].startswith("2026-01-02")
    shop.activate(staged(shop.state, shop_with_files("{partition}.parquet")).version)
    await shop.service.run_round()
    assert pq.read_table(shop.directory / "exports/a.parquet").to_pydict() == columns
    assert names(shop) == ["a.parquet"]  # Another pattern replaces the files of the one before.


async def test_numbered_files_are_never_changed_and_stay_for_as_long_as_declared(
    open_shop: Open, state_clock: Clock
) -> None:
    shop = await open_shop("{partition}-{number}.csv", keep_seconds=3600)
    shop.commit("a", {"id": [1]})
    await shop.service.run_round()
    shop.commit("a", {"id": [2]})
    await shop.service.run_round()
    assert names(shop) == ["a-0000000001.csv", "a-0000000002.csv"]
    assert text(shop, "a-0000000001.csv") == '"id"\n1\n'
    assert list(record_of(shop)["files"]) == ["a-0000000002.csv"]
    assert list(record_of(shop)["replaced"]) == ["a-0000000001.csv"]
    state_clock.advance(3601)
    shop.commit("b", {"id": [3]})
    await shop.service.run_round()
    assert names(shop) == ["a-0000000002.csv", "b-0000000003.csv"]


async def test_a_cutover_and_a_rollback_write_what_the_version_has(open_shop: Open) -> None:
    shop = await open_shop("orders.csv")
    shop.commit("a", {"version": [1]})
    shop.commit("b", {"version": [1]})
    await shop.service.run_round()
    number = shop.stage(2)
    shop.commit("a", {"version": [2]}, version=number)
    await shop.service.run_round()
    assert text(shop, "orders.csv") == '"version"\n1\n1\n'
    shop.activate(number)
    await shop.service.run_round()
    assert text(shop, "orders.csv") == '"version"\n2\n'
    shop.roll_back()
    await shop.service.run_round()
    assert text(shop, "orders.csv") == '"version"\n1\n1\n'


async def test_several_loaders_at_once_end_with_the_same_files(open_shop: Open) -> None:
    shop = await open_shop("{partition}.csv")
    for number in range(20):
        shop.commit(f"p{number % 7}", {"id": [number]})
    async with shop.dispatcher.worker() as client:
        loaders = [service_of(shop.dispatcher, "", client, exports=shop.exports) for _ in range(4)]
        await asyncio.gather(*(each.run_round() for each in loaders))
    await shop.service.run_round()
    assert sorted(text(shop, name) for name in names(shop)) == sorted(f'"id"\n{n}\n' for n in range(13, 20))


async def test_errors_of_files_say_what_is_wrong_and_what_to_do(open_shop: Open) -> None:
    shop = await open_shop("{partition}.csv")

    async def error() -> str:
        async with shop.dispatcher.worker() as client:
            await service_of(shop.dispatcher, "", client, exports=shop.exports).run_round()
        (found,) = await shop.states()
        return str(found["error"])

    (shop.directory / "exports").mkdir()
    (shop.directory / "exports/a.csv").write_text("of somebody else")
    shop.commit("a", {"id": [1]})
    assert "has other content than qo wrote last" in await error()
    (shop.directory / "exports/a.csv").unlink()
    assert await error() == "None"
    async with shop.dispatcher.worker() as client:
        await service_of(shop.dispatcher, "", client, exports="").run_round()
    (found,) = await shop.states()
    assert "the directory 'files' is not configured" in found["error"]


async def test_a_loader_that_is_killed_between_two_files_leaves_none_half_written_and_none_behind(
    tmp_path: Path,
) -> None:
    with opened(f"sqlite:{tmp_path / 'state.db'}", Clock()) as state:
        async with exporter(state, tmp_path, shop_with_files("{partition}/orders.csv")) as shop:
            shop.commit("a", {"id": [1]})
            shop.commit("b", {"id": [1]})
            await shop.service.run_round()
            shop.commit("a", {"id": [2]})
            shop.commit("b", {"id": [2]})
            with (tmp_path / "exports/b/.lock").open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)  # The first file is replaced, the second hangs.
                process = start_sink(shop)
                try:
                    await until(lambda: text(shop, "a/orders.csv") == '"id"\n2\n')
                finally:
                    process.send_signal(signal.SIGKILL)
                    await asyncio.to_thread(process.communicate)
            assert text(shop, "b/orders.csv") == '"id"\n1\n'
            assert record_of(shop)["pending"] == ["a/orders.csv", "b/orders.csv"]
            shop.remove("b")
            process = start_sink(shop)
            try:
                await until(lambda: not record_of(shop)["pending"] and not record_of(shop)["replaced"])
            finally:
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(process.communicate)
            assert process.returncode == 0
            assert names(shop) == ["a/orders.csv"]
            assert text(shop, "a/orders.csv") == '"id"\n2\n'


@pytest.mark.s3
async def test_files_in_a_bucket_follow_a_dataset_in_a_bucket(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment("unused").items():
        monkeypatch.setenv(name, value)
    with opened(f"sqlite:{tmp_path / 'state.db'}", Clock()) as state:
        pipeline = shop_with_files("{partition}.csv")
        async with exporter(state, tmp_path, pipeline, s3_server) as shop:
            assert shop.bucket is not None
            admin, bucket = shop.bucket.server.admin, shop.bucket.name
            shop.commit("a", {"id": [1]})
            shop.commit("b", {"id": [2]})
            await shop.service.run_round()
            shop.commit("a", {"id": [3]})
            shop.remove("b")
            await shop.service.run_round()
            listed = admin.list_objects_v2(Bucket=bucket, Prefix="exports/")["Contents"]
            assert [each["Key"] for each in listed] == ["exports/_qo/orders.json", "exports/a.csv"]
            assert admin.get_object(Bucket=bucket, Key="exports/a.csv")["Body"].read() == b'"id"\n3\n'
