"""A published dataset can be read by anyone from its manifest, whose latest never goes backwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qo.agent.collection import collect
from qo.api.contract.garbage import JudgeRequest, PrefixVerdict
from qo.api.contract.task import ColumnBody
from qo.config.settings import S3Settings, Settings
from qo.dispatcher.engine import garbage
from qo.dispatcher.engine.loops import manifest
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover
from qo.dispatcher.views import manifests
from qo.store.bucket_directory import BucketDirectory
from qo.store.directory import Directory
from qo.store.local_directory import LocalDirectory
from qo.store.memory import MemoryStore
from support.dispatcher.pipeline_tasks import claimed, feed, finish, manual_task, output
from support.dispatcher.pipelines import dag, deployed, edited, live, loaded, source, staged
from support.dispatcher.states import Clock
from support.servers.s3 import S3Server

SHOP = dag("shop", source("orders"), source("hidden"), publish={"orders": "orders"})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return _at(f"file:{tmp_path}")


def _at(root: str, **more: Any) -> Settings:
    chosen = Settings(**more)
    return replace(chosen, dispatcher=replace(chosen.dispatcher, data=root))


def latest(root: Path) -> dict[str, Any]:
    return json.loads((root / "_manifests/orders/latest.json").read_text())


async def test_there_is_one_for_each_version_and_a_pointer_to_the_last(
    state: State, state_clock: Clock, settings: Settings, tmp_path: Path
) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    assert await manifest.tick(state, settings) == 0  # Nothing was ever committed.
    feed(state, orders, "a")
    assert await manifest.tick(state, settings) == 1
    first = latest(tmp_path)
    assert [(each["partition_key"], each["rows"]) for each in first["files"]] == [("a", 10)]
    assert first["format"] == "parquet"
    assert first["files"][0]["path"].startswith("/data/")
    feed(state, orders, "b")
    feed(state, orders, "a", "2", rows=4)
    assert await manifest.tick(state, settings) == 0  # Not so soon after the last.
    state_clock.advance(10)
    assert await manifest.tick(state, settings) == 1
    assert await manifest.tick(state, settings) == 0
    second = latest(tmp_path)
    assert (second["rows"], len(second["files"])) == (14, 2)
    assert json.loads((tmp_path / f"_manifests/orders/{first['revision']}.json").read_text()) == first
    assert not (tmp_path / "_manifests/shop.hidden").exists()


async def test_a_rollback_is_the_latest_although_its_revision_is_older(
    state: State, state_clock: Clock, settings: Settings, tmp_path: Path
) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    feed(state, orders, "a")
    await manifest.tick(state, settings)
    before = latest(tmp_path)
    number = staged(state, edited(SHOP, "orders", config={"v": 2})).version
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "ann", force=True)
    feed(state, live(loaded(state), "shop.orders"), "a")
    state_clock.advance(10)
    await manifest.tick(state, settings)
    assert latest(tmp_path)["revision"] > before["revision"]
    with state.write() as tx:
        cutover.rollback(tx, "shop", "ann")
    state_clock.advance(10)
    await manifest.tick(state, settings)
    back = latest(tmp_path)
    assert (back["generation_id"], back["revision"]) == (before["generation_id"], before["revision"])


async def test_old_ones_are_collected_but_for_the_latest_and_the_last_of_each_generation(
    state: State, state_clock: Clock, settings: Settings, tmp_path: Path
) -> None:
    def there() -> set[int]:
        return {int(each.stem) for each in (tmp_path / "_manifests/orders").glob("[0-9]*.json")}

    async def collected() -> None:
        async def judge(keys: Sequence[str]) -> list[PrefixVerdict]:
            with state.write() as tx:
                return garbage.judge(tx, JudgeRequest(prefixes=list(keys), keep_s=3600))

        await collect(LocalDirectory(tmp_path), judge, dry_run=False)

    async def fed(*keys: str) -> list[int]:
        revisions: list[int] = []
        for key in keys:
            feed(state, live(loaded(state), "shop.orders"), key)
            state_clock.advance(10)
            await manifest.tick(state, settings)
            revisions.append(latest(tmp_path)["revision"])
        return revisions

    deployed(state, SHOP)
    first = await fed("a", "b", "c")
    await collected()
    assert there() == set(first)
    number = staged(state, edited(SHOP, "orders", config={"v": 2})).version
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "ann", force=True)
    second = await fed("a", "b")
    state_clock.advance(4000)
    await collected()
    assert there() == {first[-1], second[-1]}
    feed(state, live(loaded(state), "shop.orders"), "c")  # Its manifest is not written yet.
    state_clock.advance(4000)
    await collected()
    assert there() == {first[-1], second[-1]}
    assert latest(tmp_path)["revision"] == second[-1]


@pytest.mark.parametrize("kind", ["files", "bucket"])
async def test_a_slow_writer_does_not_undo_a_later_one(tmp_path: Path, kind: str) -> None:
    place: Directory = LocalDirectory(tmp_path) if kind == "files" else BucketDirectory(MemoryStore(), "memory:#")
    order = [(3, 1), (1, 9), (3, 7), (3, 5), (2, 30), (4, 2)]
    documents = [{"name": "x", "epoch": epoch, "revision": revision, "files": []} for epoch, revision in order]
    assert [await manifest.write(place, each) for each in documents] == [True, False, True, False, False, True]
    await asyncio.gather(*(manifest.write(place, {**documents[0], "revision": n, "epoch": 5}) for n in range(4)))
    assert not await manifest.write(place, {**documents[0], "revision": 3, "epoch": 5})


async def test_it_is_written_to_a_bucket(
    state: State, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment(s3_bucket).items():
        monkeypatch.setenv(name, value)
    settings = _at(f"s3://{s3_bucket}/root", s3=S3Settings(endpoint=s3_server.endpoint, region=s3_server.region))
    feed(state, live(deployed(state, SHOP), "shop.orders"), "a")
    assert await manifest.tick(state, settings) == 1
    body = s3_server.admin.get_object(Bucket=s3_bucket, Key="root/_manifests/orders/latest.json")["Body"].read()
    assert [each["partition_key"] for each in json.loads(body)["files"]] == ["a"]


def test_duckdb_pandas_and_pyarrow_read_a_dataset_from_its_manifest(
    state: State, settings: Settings, tmp_path: Path
) -> None:
    import duckdb
    import pandas as pd
    import pyarrow.dataset as ds

    orders = live(deployed(state, SHOP), "shop.orders")
    for number, key in enumerate("ab"):
        held = claimed(state, manual_task(state, orders, key))
        place = Path(held.work.outputs[0].prefix.replace("file:/data", str(tmp_path)))
        place.mkdir(parents=True)
        pq.write_table(pa.table({"key": [key] * 3, "amount": [number, 1, 2]}), place / "part-0.parquet")
        (place / "left-behind.parquet").write_bytes(b"not ours")
        columns = [ColumnBody(name="key", type="string"), ColumnBody(name="amount", type="long")]
        finish(state, held, outputs=[output(held, partition_key=key, rows=3, columns=columns)])
    asyncio.run(manifest.tick(state, settings))
    # The tasks of these tests write below /data; their files lie here.
    path = tmp_path / "latest.json"
    path.write_text(json.dumps(latest(tmp_path)).replace('"/data/', f'"{tmp_path}/'))

    document = json.loads(path.read_text())
    files = [each["path"] for each in document["files"]]
    assert [each["name"] for each in document["columns"]] == ["key", "amount"]
    assert ds.dataset(files).to_table().num_rows == document["rows"] == 6
    assert pd.concat(map(pd.read_parquet, files))["amount"].sum() == 7
    query = f"""
        SET VARIABLE files = (SELECT list(f.path) FROM (SELECT unnest(files) AS f FROM read_json('{path}')));
        SELECT key, sum(amount) FROM read_parquet(getvariable('files')) GROUP BY key ORDER BY key
    """
    assert duckdb.sql(query).fetchall() == [("a", 3), ("b", 4)]


def test_huge_datasets_get_theirs_seldom(state: State, state_clock: Clock) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    feed(state, orders, "a")
    with state.write() as tx:
        [due] = manifests.due(tx)
        manifests.mark(tx, due, pieces=100_000)
    feed(state, orders, "b")
    for seconds, expected in ((30.0, 0), (80.0, 1)):
        state_clock.advance(seconds)
        with state.read() as tx:
            assert len(manifests.due(tx)) == expected
