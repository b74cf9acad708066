"""`qo sink` as a process that is killed at the worst moments: every commit is in the table exactly once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from support.dispatcher.states import Clock, opened
from support.servers.postgres import PostgresServer
from support.sink.warehouses import Warehouse, start_sink, until, warehouse

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'qo sink' AND wait_event_type = 'Lock'"


@pytest.fixture
async def shop(tmp_path: Path, postgres_server: PostgresServer) -> AsyncIterator[Warehouse]:
    url = postgres_server.make_database()
    with opened(f"sqlite:{tmp_path / 'state.db'}", Clock()) as state:
        async with warehouse(state, tmp_path, url) as made:
            yield made


async def test_a_loader_that_is_killed_before_or_after_its_transaction_loads_nothing_twice(
    shop: Warehouse,
) -> None:
    shop.commit("a", {"id": [1]})
    await shop.service.run_round()
    shop.commit("a", {"id": [2, 3]})
    with psycopg.connect(shop.url) as holding:
        # The rows are copied, and the books cannot be written: it hangs just before the end of its transaction.
        holding.execute("LOCK TABLE qo.sink_generations IN SHARE MODE")
        process = start_sink(shop)
        try:
            await until(lambda: shop.query(WAITING) == [(1,)])
        finally:
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.communicate)
    assert shop.query() == [(1,)]
    process = start_sink(shop)
    try:
        await until(lambda: shop.query() == [(2,), (3,)])
    finally:
        process.send_signal(signal.SIGKILL)  # Whether or not it has reported by now.
        await asyncio.to_thread(process.communicate)
    shop.commit("b", {"id": [4]})
    process = start_sink(shop)
    try:
        await until(lambda: shop.query() == [(2,), (3,), (4,)])
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.communicate)
    assert process.returncode == 0
    assert [each["is_current"] for each in await shop.states()] == [True]


@pytest.mark.long
async def test_loaders_that_are_killed_again_and_again_end_with_the_committed_rows(shop: Warehouse) -> None:
    for number in range(120):
        shop.commit(f"p{number % 11}", {"id": list(range(number, number + 3)), "of": [number] * 3})
        if number % 12 == 0:
            process = start_sink(shop)
            await asyncio.sleep(0.8 + number / 100)
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.communicate)
    await shop.service.run_round()
    expected = sorted((row, number) for number in range(109, 120) for row in range(number, number + 3))
    assert sorted(shop.query()) == expected
