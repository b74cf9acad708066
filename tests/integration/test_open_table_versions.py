"""A published dataset of Parquet files is a table of Apache Iceberg, whose snapshots are its versions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from qo.agent.collection import Collected, collect
from qo.api.contract.garbage import JudgeRequest, PrefixVerdict
from qo.dispatcher.engine import garbage
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover
from qo.store.local_directory import LocalDirectory
from support.dispatcher.pipelines import dag, deployed, edited, live, loaded, source, staged
from support.dispatcher.states import Clock
from support.dispatcher.tables import TableSite, table_site

SHOP = dag("shop", source("orders", drift="add"), publish={"orders": "orders", "again": "orders"})


@pytest.fixture
def site(state: State, state_clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableSite:
    deployed(state, SHOP)
    return table_site(state, state_clock, tmp_path, monkeypatch)


def latest_revision(site: TableSite) -> int:
    with site.state.read() as tx:
        return tx.value(sa.select(sa.func.max(schema.commits.c.revision)))


def test_every_version_is_a_snapshot_with_its_revision_as_id(site: TableSite) -> None:
    assert site.keep() == 1
    assert "nothing is committed" in (site.record().problem or "")
    assert site.keep() == 0
    site.commit({"id": [1, 2]}, "a")
    assert site.keep() == 1
    assert site.keep() == 0
    first = site.record().revision
    assert site.rows(key=True) == [(1, "a"), (2, "a")]
    site.commit({"id": [3]}, "b")
    site.commit({"id": [4]}, "a")
    assert site.keep() == 1
    second = site.record().revision
    assert second == latest_revision(site)
    assert site.rows(key=True) == [(3, "b"), (4, "a")]
    assert site.rows(at=first, key=True) == [(1, "a"), (2, "a")]
    table = site.table()
    assert [each.snapshot_id for each in table.history()] == [first, second]
    assert table.scan(row_filter="partition_key = 'b'").to_arrow()["id"].to_pylist() == [3]
    assert site.record("again").metadata_location == site.record().metadata_location


def test_a_cutover_and_a_rollback_are_one_change_and_the_staged_generation_is_a_branch(site: TableSite) -> None:
    site.commit({"id": [1]}, "a")
    site.keep()
    old = site.record().revision
    number = staged(site.state, edited(SHOP, "orders", config={"v": 2})).version
    site.commit({"id": [10], "more": ["x"]}, "a", job=live(loaded(site.state), "shop.orders", number))
    site.keep()
    table = site.table()
    branch = table.refs()["next"].snapshot_id
    assert table.scan(snapshot_id=branch).to_arrow()["more"].to_pylist() == ["x"]
    assert site.rows() == [(1,)]
    assert site.record().next_revision == branch
    with site.state.write() as tx:
        cutover.activate(tx, "shop", number, "ann", force=True)
    site.keep()
    assert site.rows() == [(10, "x")]
    assert [each.snapshot_id for each in site.table().history()] == [old, branch]
    assert "next" not in site.table().refs()
    with site.state.write() as tx:
        cutover.rollback(tx, "shop", "ann")
    site.keep()
    assert site.rows() == [(1,)]
    assert [each.snapshot_id for each in site.table().history()] == [old, branch, old]


def test_columns_that_are_added_are_null_in_older_rows(site: TableSite) -> None:
    site.commit({"id": [1]}, "a")
    site.keep()
    first = site.record().revision
    site.commit({"id": [2], "name": ["b"]}, "b")
    site.keep()
    assert site.rows() == [(1, None), (2, "b")]
    assert site.rows(at=first) == [(1,)]
    ids = [each.field_id for each in site.table().schemas()[0].fields]
    assert set(ids) < {each.field_id for each in site.table().schema().fields}


def test_a_dataset_of_other_files_says_why_it_is_no_table(site: TableSite) -> None:
    site.commit({"id": [1]}, "a")
    site.keep()
    version = site.record().metadata_version
    site.commit({"id": [1]}, "b", columns=None)
    site.keep()
    assert site.record().problem is None  # The columns of its generation are known.
    site.commit({"id": [2]}, "c", files=["rows.jsonl"])
    site.keep()
    record = site.record()
    assert "'rows.jsonl' is not Parquet" in (record.problem or "")
    assert record.metadata_location is None
    site.commit({"id": [2]}, "c")
    site.keep()
    assert site.rows() == [(1,), (1,), (2,)]
    assert site.record().metadata_version > version


def test_files_that_no_worker_measured_are_counted_by_their_commits(site: TableSite) -> None:
    site.commit({"id": list(range(10))}, parts=4)
    site.keep()
    assert len(site.rows()) == 10
    assert site.table().scan().count() == 10
    assert site.table().spec().is_unpartitioned()


def test_a_table_of_segments_that_gets_partitions_begins_anew(site: TableSite) -> None:
    site.commit({"id": [1]})
    site.keep()
    site.commit({"id": [2]}, "a")
    site.keep()
    assert site.rows(key=True) == [(1, None), (2, "a")]
    assert len(site.table().history()) == 1


def collected(site: TableSite, keep_s: float) -> Collected:
    async def judge(prefixes: Sequence[str]) -> list[PrefixVerdict]:
        with site.state.write() as tx:
            return garbage.judge(tx, JudgeRequest(prefixes=list(prefixes), keep_s=keep_s))

    return asyncio.run(collect(LocalDirectory(site.root), judge, dry_run=False))


def test_snapshots_are_dropped_before_their_files_and_metadata_that_nobody_names_goes(site: TableSite) -> None:
    for number in range(4):
        site.commit({"id": [number]}, "a")
        site.keep()
    metadata = site.root / site.record().dataset_id / "metadata"
    before = site.record().revision
    assert collected(site, 3600).prefixes == 0
    assert len(list(metadata.glob("*.avro"))) == 8
    site.clock.advance(7200)
    kept = collected(site, 3600)
    assert (kept.prefixes, sorted(kept.kept_by_reason.values())) == (0, [1, 3])
    for snapshot in site.table().snapshots():
        assert site.table().scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 1
    site.keep()
    assert [each.snapshot_id for each in site.table().snapshots()] == [before]
    assert collected(site, 3600).prefixes == 3
    assert site.rows() == [(3,)]
    site.clock.advance(7200)
    collected(site, 3600)
    assert len(list(metadata.glob("*.avro"))) == 2
    assert len(list(metadata.glob("*.json"))) == 1
    assert (metadata / "version-hint.text").read_text() == f"{site.record().metadata_version}\n"
    assert site.rows() == [(3,)]


def test_about_a_hundred_snapshots_are_kept(site: TableSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qo.core.iceberg.table_state.SNAPSHOTS_MAX", 3)
    for number in range(6):
        site.commit({"id": [number]}, "ab"[number % 2])
        site.keep()
    table = site.table()
    assert len(table.snapshots()) == 3
    assert [each.snapshot_id for each in table.history()] == [each.snapshot_id for each in table.snapshots()]
    assert site.rows() == [(4,), (5,)]


def test_a_name_that_is_published_no_more_is_no_table(site: TableSite) -> None:
    site.commit({"id": [1]}, "a")
    site.keep()
    with_one_name = dag("shop", source("orders", drift="add"), publish={"orders": "orders"})
    number = staged(site.state, with_one_name).version
    with site.state.write() as tx:
        cutover.activate(tx, "shop", number, "ann", force=True)
    site.keep()
    assert site.rows() == [(1,)]
    with site.state.read() as tx:
        assert [row.name for row in tx.execute(sa.select(schema.open_tables.c.name))] == ["orders"]
