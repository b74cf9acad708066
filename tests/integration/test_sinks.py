"""The table of a sink shows its dataset as of one revision, exactly once, whatever happens to those who load it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qo.api.contract.sink import SinkReport
from qo.api.internal_client import DispatcherClient
from qo.dispatcher.state.database import State
from qo.errors import Unavailable
from support.dispatcher.states import Clock
from support.servers.postgres import PostgresServer
from support.sink.warehouses import Warehouse, service_of, warehouse


@pytest.fixture
async def shop(state: State, tmp_path: Path, postgres_server: PostgresServer) -> AsyncIterator[Warehouse]:
    async with warehouse(state, tmp_path, postgres_server.make_database()) as made:
        yield made


async def test_a_table_has_the_rows_of_every_commit_once(shop: Warehouse) -> None:
    shop.commit("a", {"id": [1, 2], "item": ["pen", None]})
    await shop.service.run_round()
    assert shop.query() == [(1, "pen"), (2, None)]
    shop.commit("b", {"id": [3], "item": ["ink"]})
    shop.commit("a", {"id": [1, 4], "item": ["pen", "cap"]})
    await shop.service.run_round()
    await shop.service.run_round()
    assert shop.query() == [(1, "pen"), (3, "ink"), (4, "cap")]


async def test_a_removed_partition_is_deleted_from_the_table(shop: Warehouse) -> None:
    shop.commit("a", {"id": [1]})
    shop.commit("b", {"id": [2]})
    await shop.service.run_round()
    shop.remove("a")
    await shop.service.run_round()
    assert shop.query() == [(2,)]


async def test_new_columns_are_added_and_null_in_older_rows(shop: Warehouse) -> None:
    shop.commit("a", {"id": [1]})
    await shop.service.run_round()
    shop.commit("b", {"id": [2], "note": ["new"]})
    await shop.service.run_round()
    assert shop.query() == [(1, None), (2, "new")]


class _LostReports(DispatcherClient):
    """A dispatcher to which no report ever gets through, as if the loader died before each."""

    async def report_sink(self, name: str, report: SinkReport) -> None:
        raise Unavailable("lost")


async def test_a_load_that_nobody_heard_of_is_not_repeated(shop: Warehouse) -> None:
    shop.commit("a", {"id": [1]})
    for _ in range(3):  # Each time another process, which knows nothing of the one before.
        worker = _LostReports(shop.dispatcher.addresses.internal, shop.dispatcher.tokens["worker"])
        async with worker as client:
            await service_of(shop.dispatcher, shop.url, client).run_round()
    assert shop.query() == [(1,)]
    assert [each["revision"] for each in await shop.states()] == [0]
    await shop.service.run_round()
    assert [each["is_current"] for each in await shop.states()] == [True]


async def test_steps_that_are_repeated_or_late_change_nothing(shop: Warehouse) -> None:
    from qo.sink.data_tables import open_table

    async with shop.dispatcher.worker() as client:
        (sink,) = (await client.sinks()).sinks
        generation = str(sink.current)
        shop.commit("a", {"id": [1]})
        first = await client.sink_step("orders", generation, 0)
        shop.commit("a", {"id": [2]})
        await shop.service.run_round()
        second = await client.sink_step("orders", generation, first.upto)
        table = await asyncio.to_thread(open_table, shop.url, sink, _NoFiles())
        try:
            for step in (first, second, first):
                assert not await asyncio.to_thread(table.apply, step)
        finally:
            table.close()
    assert shop.query() == [(2,)]


class _NoFiles:
    def read(self, uri: str) -> bytes:
        raise AssertionError(f"{uri} is a local file")


async def test_several_loaders_at_once_load_everything_once(shop: Warehouse) -> None:
    for number in range(20):
        shop.commit(f"p{number % 7}", {"id": [number]})
    async with shop.dispatcher.worker() as client:
        loaders = [service_of(shop.dispatcher, shop.url, client) for _ in range(4)]
        await asyncio.gather(*(each.run_round() for each in loaders))
        await shop.service.run_round()
    assert shop.query() == [(number,) for number in range(13, 20)]


async def test_a_reader_never_sees_a_mixture_of_two_versions(shop: Warehouse) -> None:
    """Each version has its own mark on every row, and its own number of rows."""
    shop.commit("a", {"version": [1]})
    shop.commit("b", {"version": [1]})
    await shop.service.run_round()
    seen: set[Any] = set()
    stop = threading.Event()

    def read() -> None:
        with psycopg.connect(shop.url, autocommit=True) as connection:
            while not stop.is_set():
                query = b"SELECT version, count(*) FROM orders GROUP BY version"
                seen.add(tuple(connection.execute(query).fetchall()))

    reader = asyncio.create_task(asyncio.to_thread(read))
    number = shop.stage(2)
    for key in ("a", "b", "c"):
        shop.commit(key, {"version": [2]}, version=number)
        await shop.service.run_round()  # The rows of the version to come are loaded beside.
    assert shop.query("SELECT DISTINCT version FROM orders") == [(1,)]
    shop.activate(number)
    await shop.service.run_round()
    assert shop.query("SELECT DISTINCT version FROM orders") == [(2,)]
    shop.roll_back()
    await shop.service.run_round()
    stop.set()
    await reader
    assert seen == {((1, 2),), ((2, 3),)}
    assert shop.query("SELECT DISTINCT version FROM orders") == [(1,)]


async def test_a_version_that_is_gone_for_good_leaves_no_rows_behind(shop: Warehouse) -> None:
    for number in range(1, 5):
        if number > 1:
            shop.activate(shop.stage(number))
        shop.commit("a", {"version": [number]})
        await shop.service.run_round()
    assert shop.query() == [(4,)]
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'qo' AND tablename LIKE 'orders%'"
    assert shop.query(tables) == [(2,)]  # Its own, and that of the version that a rollback returns to.


async def test_a_stale_loader_does_not_undo_a_rollback(shop: Warehouse) -> None:
    from qo.errors import Refused
    from qo.sink.data_tables import open_table

    shop.commit("a", {"version": [1]})
    await shop.service.run_round()
    shop.activate(shop.stage(2))
    shop.commit("a", {"version": [2]})
    async with shop.dispatcher.worker() as client:
        (stale,) = (await client.sinks()).sinks
    await shop.service.run_round()
    shop.roll_back()
    await shop.service.run_round()
    table = await asyncio.to_thread(open_table, shop.url, stale, _NoFiles())
    try:
        with pytest.raises(Refused, match="later cutover"):
            await asyncio.to_thread(table.show_current)
    finally:
        table.close()
    assert shop.query() == [(1,)]


async def test_privileges_and_indexes_stay_when_another_version_serves(shop: Warehouse) -> None:
    shop.commit("a", {"id": [1], "gone": ["x"]})
    await shop.service.run_round()
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute("GRANT SELECT ON orders TO PUBLIC")
        connection.execute("CREATE INDEX by_id ON qo.orders_1 (id)")
    shop.activate(shop.stage(2))
    shop.commit("a", {"id": ["now a text"]})
    await shop.service.run_round()
    assert shop.query() == [("now a text",)]
    assert shop.query("SELECT count(*) FROM pg_indexes WHERE schemaname = 'qo' AND indexdef LIKE '%(id)'") == [
        (2,)
    ]
    acl = "SELECT count(*) FROM information_schema.role_table_grants WHERE table_name = 'orders' AND grantee = 'PUBLIC'"
    assert shop.query(acl) == [(1,)]


async def test_a_database_that_is_away_holds_nothing_back_and_is_caught_up_with(
    shop: Warehouse, state_clock: Clock
) -> None:
    url, away = shop.url, shop.url.replace("127.0.0.1:", "127.0.0.1:1")
    async with shop.dispatcher.worker() as client:
        broken = service_of(shop.dispatcher, away.rpartition(":")[0] + ":1/none", client)
        shop.commit("a", {"id": [1]})
        await broken.run_round()
        state_clock.advance(90)
        (found,) = await shop.states()
        assert "does not answer" in found["error"]
        assert found["lag_s"] >= 90
        shop.commit("b", {"id": [2]})  # Nothing waits for it.
        await service_of(shop.dispatcher, url, client).run_round()
    (found,) = await shop.states()
    assert (found["error"], found["lag_s"], found["is_current"]) == (None, None, True)
    assert shop.query() == [(1,), (2,)]


async def test_why_and_the_dataset_say_how_far_the_table_is(shop: Warehouse) -> None:
    shop.commit("a", {"id": [1]})

    async def line() -> str:
        answer = await shop.dispatcher.get("/v1/why?target=orders@a", "reader")
        return answer.json()["lines"][-1]

    assert "was never loaded: run qo sink" in await line()
    await shop.service.run_round()
    assert "the table public.orders of 'data' is current" in await line()
    shop.commit("a", {"id": [2]})
    assert "behind" in await line()


async def test_errors_say_what_is_wrong_and_what_to_do(shop: Warehouse) -> None:
    async def error() -> str:
        async with shop.dispatcher.worker() as client:
            await service_of(shop.dispatcher, shop.url, client).run_round()
        (found,) = await shop.states()
        return str(found["error"])

    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (own text)")
    shop.commit("a", {"id": [1]})
    assert "qo did not make it" in await error()
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute("DROP TABLE orders")
    assert await error() == "None"
    shop.commit("b", {"id": ["a text"]})
    assert "is text in new data, and bigint in the table" in await error()
    async with shop.dispatcher.worker() as client:
        unset = service_of(shop.dispatcher, shop.url, client)
        unset._databases = {}  # pyright: ignore[reportPrivateUsage]
        await unset.run_round()
    (found,) = await shop.states()
    assert "'data' is not configured" in found["error"]
