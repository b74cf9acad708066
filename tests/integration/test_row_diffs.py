"""qo dataset diff by row: which versions and files it compares, and what it finds in real files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qo.cli.pipelines.diff.compared_versions import ComparedVersions, find_versions
from qo.cli.pipelines.diff.duckdb_rows import open_duckdb
from qo.cli.pipelines.diff.row_changes import RowChanges, column_changes, compare_rows
from qo.config.location import local_path
from qo.config.settings import S3Settings, Settings
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.auth.local_tokens import LocalTokens
from qo.dispatcher.http.embedded_client import open_embedded_client
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import NotFound, UsageError
from qo.store.secret_files import generate_secret
from support.dispatcher import pipeline_tasks
from support.dispatcher.listeners import context_of
from support.dispatcher.pipelines import dag, deployed, edited, live, loaded, source, staged
from support.servers.s3 import S3Server

SHOP = dag(
    "shop",
    source("orders", drift="add", expectations=[{"not_null": ["id"]}, {"unique": ["id"]}]),
    publish={"orders": "orders"},
)
Row = Mapping[str, Any]


class Place(Protocol):
    """Where the files are."""

    root: str
    settings: Settings

    def write(self, uri: str, body: bytes) -> None: ...
    def delete(self, uri: str) -> None: ...


@dataclass
class Disk:
    root: str
    settings: Settings = field(default_factory=Settings)

    def write(self, uri: str, body: bytes) -> None:
        path = local_path(uri)
        path.parent.mkdir(parents=True)
        path.write_bytes(body)

    def delete(self, uri: str) -> None:
        local_path(uri).unlink()


@dataclass
class Bucket:
    server: S3Server
    root: str
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = Settings(s3=S3Settings(endpoint=self.server.endpoint, region=self.server.region))

    def write(self, uri: str, body: bytes) -> None:
        self.server.admin.put_object(**self._object(uri), Body=body)

    def delete(self, uri: str) -> None:
        self.server.admin.delete_object(**self._object(uri))

    def _object(self, uri: str) -> dict[str, str]:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        return {"Bucket": bucket, "Key": key}


class Shop:
    """A pipeline that commits real files."""

    def __init__(self, state: State, directory: Path, place: Place) -> None:
        self.state = state
        self.directory = directory
        self.place = place
        self.orders = live(deployed(state, SHOP), "shop.orders")
        self._commits = 0

    def commit(self, key: str, *rows: Row, job: LiveJob | None = None) -> str:
        """Commit a partition with one file, and return its URI."""
        self._commits += 1
        task = pipeline_tasks.manual_task(self.state, job or self.orders, f"{key}-{self._commits}")
        held = pipeline_tasks.claimed(self.state, task)
        uri, body = f"{held.work.outputs[0].prefix.rstrip('/')}/part-0.parquet", BytesIO()
        pq.write_table(pa.Table.from_pylist(list(map(dict, rows))), body)
        self.place.write(uri, body.getvalue())
        columns = [{"name": name, "type": "long", "nullable": True} for name in rows[0]]
        made = pipeline_tasks.output(held, partition_key=key, columns=columns, rows=len(rows))
        pipeline_tasks.finish(self.state, held, outputs=[made])
        return uri

    async def versions(
        self, from_: str | None = None, to: str | None = None, partition: str | None = None
    ) -> tuple[ComparedVersions, list[str]]:
        context = replace(context_of(self.state, self.directory), tokens=LocalTokens((), generate_secret("qo_")))
        async with open_embedded_client(context) as client:
            return await find_versions(client, "/v1/datasets/orders", from_, to, partition)

    async def diff(self, from_: str | None = None, to: str | None = None, **options: Any) -> RowChanges:
        keys: Sequence[str] | None = options.pop("keys", None)
        versions, default = await self.versions(from_, to, **options)

        def opened(before: Sequence[str], after: Sequence[str]) -> Any:
            return open_duckdb(self.place.settings, before, after)

        return await asyncio.to_thread(compare_rows, versions, opened, keys, default, 10)


@pytest.fixture(params=[pytest.param("disk", marks=pytest.mark.fast), "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A directory, and a bucket of a real server."""
    if request.param == "disk":
        return Disk(f"file:{tmp_path}/data")
    server: S3Server = request.getfixturevalue("s3_server")
    bucket: str = request.getfixturevalue("s3_bucket")
    for name, value in server.environment(bucket).items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return Bucket(server, f"s3://{bucket}/data")


@pytest.fixture
def shop(state: State, tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(pipeline_tasks, "ROOT", place.root)
    return Shop(state, tmp_path, place)


async def test_the_last_two_revisions_are_compared_by_the_key_of_the_job(shop: Shop) -> None:
    shop.commit("monday", {"id": 1, "n": 1}, {"id": 2, "n": 2})
    untouched = shop.commit("tuesday", {"id": 7, "n": 7})
    shop.commit("monday", {"id": 1, "n": 5}, {"id": 3, "n": 3})
    shop.place.delete(untouched)  # Both versions have it, so it is not read.
    changes = await shop.diff()
    assert (changes.keys, changes.added, changes.removed, changes.changed) == (["id"], 1, 1, 1)
    assert changes.columns == {"n": 1}
    assert changes.changed_rows == [{"key": {"id": 1}, "before": {"n": 1}, "after": {"n": 5}}]
    assert (changes.added_rows, changes.removed_rows) == ([{"id": 3, "n": 3}], [{"id": 2, "n": 2}])
    versions, _ = await shop.versions()
    assert (versions.shared, len(versions.added), len(versions.removed)) == (1, 1, 1)


async def test_versions_are_named_by_revision_or_by_version_of_the_pipeline(shop: Shop) -> None:
    shop.commit("monday", {"id": 1, "n": 1})
    shop.commit("tuesday", {"id": 2, "n": 2})
    (first, second) = sorted(each["revision"] for each in pipeline_tasks.all_of(shop.state, schema.commits))
    assert (await shop.diff("0", str(second))).added == 2
    assert (await shop.diff(str(first), "active")).added_rows == [{"id": 2, "n": 2}]
    assert (await shop.diff(f"v1@{first}", "v1")).added == 1
    assert (await shop.diff("0", partition="monday")).added_rows == [{"id": 1, "n": 1}]
    assert (await shop.diff("v1", "v1")).is_empty
    for wrong, message in (
        ("v9", "version 9"),
        ("staged", "no version of this dataset is staged"),
        ("x", "revision"),
    ):
        with pytest.raises(UsageError, match=message):
            await shop.diff(wrong)


async def test_a_staged_version_is_compared_with_the_active_one_before_the_cutover(shop: Shop) -> None:
    shop.commit("monday", {"id": 1, "n": 1}, {"id": 2, "n": 2})
    staged(shop.state, edited(SHOP, "orders", config={"tax": True}))
    new = next(each for each in loaded(shop.state).jobs.values() if each.edition_id != shop.orders.edition_id)
    shop.commit("monday", {"id": 1, "n": 1, "tax": 0}, {"id": 2, "n": 3, "tax": 1}, job=new)
    changes = await shop.diff()
    assert (changes.added, changes.removed, changes.changed) == (0, 0, 2)
    assert changes.columns == {"n": 1, "tax": 2}
    versions, _ = await shop.versions()
    assert column_changes(versions) == {"added": ["tax"], "removed": [], "retyped": []}
    assert (await shop.diff(to="staged")).columns == (await shop.diff("active", "v2")).columns


async def test_rows_without_a_usable_key_are_compared_as_a_whole(shop: Shop) -> None:
    shop.commit("monday", {"id": 1, "n": 1}, {"id": 1, "n": 1}, {"id": 2, "n": 2})
    shop.commit("monday", {"id": 1, "n": 1}, {"id": 2, "n": 3})
    changes = await shop.diff()
    assert changes.note is not None
    assert "id is no key of the earlier version: 1 occur more than once, such as 1" in changes.note
    assert (changes.keys, changes.added, changes.removed) == ([], 1, 2)
    assert (await shop.diff(keys=[])).removed == 2
    with pytest.raises(UsageError, match=r"id is no key .* give other --keys"):
        await shop.diff(keys=["id"])
    with pytest.raises(UsageError, match="there is no column 'nr' in both versions: they have id, n"):
        await shop.diff(keys=["nr"])


async def test_a_file_that_is_gone_is_named(shop: Shop) -> None:
    shop.place.delete(shop.commit("monday", {"id": 1, "n": 1}))
    with pytest.raises(NotFound, match=r"part-0\.parquet is missing: it was collected"):
        await shop.diff()


def test_files_elsewhere_are_refused_in_words() -> None:
    with (
        pytest.raises(UsageError, match=r"^https://HOST/a\.csv cannot be compared: it is neither"),
        open_duckdb(Settings(), ["https://HOST/a.csv"], []),
    ):
        pass
