"""Tables as real clients read them from the catalogue: now, as of older versions, on a branch, and during cutovers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover
from support.catalog.client_venvs import spark_environment, talking
from support.catalog.snippets import command_at, run_snippet
from support.cli.command import Qo
from support.dispatcher.listeners import Served, served
from support.dispatcher.pipelines import dag, deployed, edited, live, loaded, source, staged
from support.dispatcher.states import Clock, opened
from support.dispatcher.tables import TableSite, table_site

SHOP = dag(
    "shop", source("orders", drift="add"), source("clicks"), publish={"orders": "orders", "clicks": "clicks"}
)
EDITED = edited(SHOP, "orders", config={"v": 2})
# The versions of the table: of the second, one partition is new and has a column more; of the third, one is replaced.
FIRST = [(1, None), (2, None)]
SECOND = [(1, None), (2, None), (3, "c")]
THIRD = [(3, "c"), (4, "d")]
NEXT = [(10, "x")]


@dataclass
class Desk:
    """A table with three versions and a staged one, its catalogue, and the command of a reader."""

    site: TableSite
    dispatcher: Served
    qo: Qo
    versions: list[int]
    staged: int

    def catalog(self) -> RestCatalog:
        uri = f"{self.dispatcher.addresses.public}/iceberg"
        return RestCatalog("qo", uri=uri, token=self.dispatcher.tokens["reader"])

    def activate(self) -> None:
        with self.site.state.write() as tx:
            cutover.activate(tx, "shop", self.staged, "ann", force=True)
        self.site.keep()

    def roll_back(self) -> None:
        with self.site.state.write() as tx:
            cutover.rollback(tx, "shop", "ann")
        self.site.keep()


@pytest.fixture
def state(tmp_path: Path, state_clock: Clock) -> Iterator[State]:
    """What the database is makes no difference to a client."""
    with opened(f"sqlite:{tmp_path / 'state.db'}", state_clock) as database:
        yield database


@pytest.fixture
async def desk(
    state: State, state_clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Desk]:
    state_clock.advance(
        -3600
    )  # Keeping tables moves it on, and DuckDB takes no document of a later time than its own.
    deployed(state, SHOP)
    site = table_site(state, state_clock, tmp_path / "data", monkeypatch)
    versions, number = await asyncio.to_thread(build, site)
    async with served(state, tmp_path, data=f"file:{tmp_path / 'data'}") as dispatcher:
        monkeypatch.setenv("QO_TOKEN", dispatcher.tokens["reader"])
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Or Polars advises to install a faster one.
        yield Desk(site, dispatcher, command_at(dispatcher, tmp_path), versions, number)


def build(site: TableSite) -> tuple[list[int], int]:
    """Commit the versions. Return their revisions, and the number of the version that is staged."""
    revisions: list[int] = []
    for rows, key in (
        ({"id": [1, 2]}, "a"),
        ({"id": [3], "name": ["c"]}, "b"),
        ({"id": [4], "name": ["d"]}, "a"),
    ):
        site.commit(rows, key, field_ids=True)
        site.keep()
        revisions.append(site.record().revision or 0)
    number = staged(site.state, EDITED).version
    job = live(loaded(site.state), "shop.orders", number)
    site.commit({"id": [10], "name": ["x"]}, "a", job=job, field_ids=True)
    site.keep()
    return revisions, number


def rows_of(columns: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """Rows without the column of the partition key, in order. What is not there is None."""
    values = zip(columns["id"], columns.get("name", [None] * len(columns["id"])), strict=True)
    return sorted((number, name if isinstance(name, str) else None) for number, name in values)


async def test_what_the_command_prints_reads_the_table_with_every_program(desk: Desk) -> None:
    printed, out = await asyncio.to_thread(run_snippet, desk.qo, "pyiceberg")
    table = printed["table"]
    assert "id" in out
    first, second, third = desk.versions
    for rows, chosen in (
        (FIRST, {"snapshot_id": first}),
        (SECOND, {"snapshot_id": second}),
        (THIRD, {"snapshot_id": third}),
        (THIRD, {}),
    ):
        assert rows_of(table.scan(**chosen).to_arrow().to_pydict()) == rows
    assert rows_of(table.scan().use_ref("next").to_arrow().to_pydict()) == NEXT
    assert table.scan(row_filter="partition_key = 'b'").to_arrow()["id"].to_pylist() == [3]

    printed, out = await asyncio.to_thread(run_snippet, desk.qo, "polars")
    assert "shape: (2, 3)" in out
    assert rows_of(printed["frame"].collect().to_dict(as_series=False)) == THIRD
    older = printed["pl"].scan_iceberg(table, snapshot_id=second).collect()
    assert rows_of(older.to_dict(as_series=False)) == SECOND

    printed, _ = await asyncio.to_thread(run_snippet, desk.qo, "pandas")
    assert rows_of(printed["frame"].to_dict("list")) == THIRD

    printed, _ = await asyncio.to_thread(run_snippet, desk.qo, "daft")
    assert rows_of(printed["frame"].to_pydict()) == THIRD
    older = printed["daft"].read_iceberg(table, snapshot_id=first).to_pydict()
    assert rows_of(older) == FIRST


async def test_a_cutover_and_a_rollback_are_seen_at_the_next_load(desk: Desk) -> None:
    catalog = await asyncio.to_thread(desk.catalog)

    def current() -> list[tuple[Any, ...]]:
        return rows_of(catalog.load_table("shop.orders").scan().to_arrow().to_pydict())

    assert await asyncio.to_thread(current) == THIRD
    await asyncio.to_thread(desk.activate)
    assert await asyncio.to_thread(current) == NEXT
    await asyncio.to_thread(desk.roll_back)
    assert await asyncio.to_thread(current) == THIRD


async def test_a_reader_in_a_loop_never_sees_a_mixture_of_versions(desk: Desk) -> None:
    catalog = await asyncio.to_thread(desk.catalog)
    done, seen = threading.Event(), set[tuple[tuple[Any, ...], ...]]()
    allowed = {tuple(THIRD), tuple(NEXT)}

    def read() -> None:
        while not done.is_set():
            seen.add(tuple(rows_of(catalog.load_table("shop.orders").scan().to_arrow().to_pydict())))

    def change() -> None:
        """A partition is replaced, the staged version takes over, and is rolled back."""
        try:
            for number in range(20, 24):
                allowed.add(((3, "c"), (number, "e")))
                job = live(loaded(desk.site.state), "shop.orders", 1)
                desk.site.commit({"id": [number], "name": ["e"]}, "a", job=job, field_ids=True)
                desk.site.keep()
                desk.activate()
                desk.roll_back()
                desk.staged = staged(desk.site.state, EDITED, again=True).version
        finally:
            done.set()

    await asyncio.gather(asyncio.to_thread(read), asyncio.to_thread(change))
    assert seen
    assert seen <= allowed


async def test_a_client_that_writes_is_told_what_to_do_instead(desk: Desk) -> None:
    catalog = await asyncio.to_thread(desk.catalog)

    def insert() -> None:
        table = catalog.load_table("shop.orders")
        table.append(table.scan().to_arrow())

    with pytest.raises(Exception, match=r"read-only|does not support endpoint") as refused:
        await asyncio.to_thread(insert)
    assert "Timeout" not in type(refused.value).__name__
    with pytest.raises(Exception, match=r"read-only|does not support endpoint"):
        await asyncio.to_thread(catalog.drop_table, "shop.orders")
    assert desk.site.rows() == THIRD


async def test_the_command_lists_what_is_a_table_and_what_is_none_and_why(desk: Desk) -> None:
    listed = await asyncio.to_thread(desk.qo.json, "catalog")
    shown = [(f"{each['namespace']}.{each['name']}", each["is_table"]) for each in listed]
    assert shown == [("shop.clicks", False), ("shop.orders", True)]
    text = await asyncio.to_thread(desk.qo.ok, "catalog", "list")
    assert "nothing is committed" in text
    about = await asyncio.to_thread(desk.qo.json, "catalog", "connect")
    assert about["uri"] == f"{desk.dispatcher.addresses.public}/iceberg"
    assert (about["namespace"], about["table"]) == ("shop", "orders")  # The first that is one.
    assert (about["token_variable"], about["lends_credentials"]) == ("QO_TOKEN", False)
    for program in ("spark", "trino", "duckdb", "snowflake"):
        text = await asyncio.to_thread(desk.qo.ok, "catalog", "connect", program)
        assert about["uri"] in text
        assert "orders" in text
        assert desk.dispatcher.tokens["reader"] not in text  # It is named, and never printed.
    refused = await asyncio.to_thread(desk.qo.here, "catalog", "connect", "duckdb", "--table", "clicks")
    assert refused.code == 3
    assert "is a dataset, and no table: " in refused.err


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_duckdb_reads_the_table_by_the_printed_text(desk: Desk) -> None:
    text = (await asyncio.to_thread(desk.qo.json, "catalog", "connect", "duckdb"))["text"]
    token = {"QO_TOKEN": desk.dispatcher.tokens["reader"]}
    first, second, third = desk.versions
    table = "qo.shop.orders"
    async with talking("duckdb", text, token) as ask:
        assert ordered(await ask(f"SELECT id, name FROM {table}")) == THIRD
        assert await ask(f"SELECT id FROM {table} WHERE partition_key = 'b'") == [[3]]
        for version, rows in ((second, SECOND), (third, THIRD)):
            assert ordered(await ask(f"SELECT id, name FROM {table} AT (VERSION => {version})")) == rows
        assert (
            ordered([[row[0], None] for row in await ask(f"SELECT id FROM {table} AT (VERSION => {first})")])
            == FIRST
        )
        assert "this catalogue is read-only" in await ask(f"INSERT INTO {table} SELECT * FROM {table}")
        assert "this catalogue is read-only" in await ask("CREATE TABLE qo.shop.other AS SELECT 1 AS a")
        await asyncio.to_thread(desk.activate)
        assert ordered(await ask(f"SELECT id, name FROM {table}")) == NEXT
        await asyncio.to_thread(desk.roll_back)
        assert ordered(await ask(f"SELECT id, name FROM {table}")) == THIRD


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_spark_reads_the_table_by_the_printed_text(desk: Desk, tmp_path: Path) -> None:
    text = (await asyncio.to_thread(desk.qo.json, "catalog", "connect", "spark"))["text"]
    variables = {"QO_TOKEN": desk.dispatcher.tokens["reader"], **spark_environment(tmp_path / "conf")}
    first, second, third = desk.versions
    table = "qo.shop.orders"
    async with talking("spark", text, variables) as ask:
        assert ordered(await ask(f"SELECT id, name FROM {table}")) == THIRD
        for version, rows in ((second, SECOND), (third, THIRD)):
            assert ordered(await ask(f"SELECT id, name FROM {table} VERSION AS OF {version}")) == rows
        assert await ask(f"SELECT id FROM {table} VERSION AS OF {first} ORDER BY id") == [[1], [2]]
        assert ordered(await ask(f"SELECT id, name FROM {table} VERSION AS OF 'next'")) == NEXT
        snapshots = await ask(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY 1")
        assert [first, second, third] == [each for (each,) in snapshots][:3]
        assert await ask("SHOW TABLES IN qo.shop") == [["shop", "orders", False]]
        for write in (
            f"INSERT INTO {table} SELECT * FROM {table}",
            f"DROP TABLE {table}",
            "CREATE NAMESPACE qo.other",
        ):
            assert "does not support endpoint" in await ask(write)
        await asyncio.to_thread(desk.activate)
        await ask(f"REFRESH TABLE {table}")  # Spark keeps a table for half a minute.
        assert ordered(await ask(f"SELECT id, name FROM {table}")) == NEXT
        await asyncio.to_thread(desk.roll_back)
        await ask(f"REFRESH TABLE {table}")
        assert ordered(await ask(f"SELECT id, name FROM {table}")) == THIRD


def ordered(rows: list[list[Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows)
