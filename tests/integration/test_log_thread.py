"""Logs are written whatever the store does, and bounded whatever the worker may do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from qo.agent.logs import log_thread
from qo.agent.logs.log_thread import LogThread
from qo.core import run_log
from qo.core.run_log import Limits, Line
from qo.dispatcher.views.run_log import read_page
from qo.errors import AccessDenied
from qo.store.bucket_directory import BucketDirectory
from qo.store.directory import Directory
from qo.store.faulty import Faulty
from qo.store.memory import MemoryStore
from support.stores.queues import until

NOW = datetime(2026, 11, 17, tzinfo=UTC)
PREFIX = run_log.prefix_of("0192e8c0-1111-7222-8333-444455556666", 1, NOW)
LOCATION = f"memory:x/{PREFIX}"
LIMITS = Limits(64 * 1024)


class NoDeletes(BucketDirectory):
    async def delete(self, paths: Sequence[str]) -> None:
        raise AccessDenied("this worker only writes")


@asynccontextmanager
async def writing(directory: Directory) -> AsyncIterator[LogThread]:
    async def open_root(location: str) -> Directory:
        assert location == "memory:x"
        return directory

    thread = LogThread(open_root, LIMITS)
    thread.start()
    try:
        yield thread
    finally:
        await asyncio.to_thread(thread.stop)


async def lines_in(store: MemoryStore) -> list[Line]:
    return list((await read_page(BucketDirectory(store, "memory:x/"), PREFIX, after=0, limit=10**6)).lines)


@pytest.mark.parametrize("kind", [BucketDirectory, NoDeletes])
async def test_a_long_log_keeps_its_beginning_and_its_end(kind: type[BucketDirectory]) -> None:
    store = MemoryStore()
    async with writing(kind(store, "memory:x/")) as logs:
        log = logs.open(LOCATION, NOW)
        for number in range(1, 5001):
            log.write("stdout", f"line {number} of many\n")
            if number % 1000 == 0:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(logs._write_now(log), logs._loop))
        await logs.finish(log)
    lines = await lines_in(store)
    numbers = [line.n for line in lines]
    assert (lines[0].text, lines[-1].text) == ("line 1 of many", "line 5000 of many")
    assert numbers == sorted(set(numbers))
    assert sum(entry.size for entry in (await store.list("")).entries) <= LIMITS.bytes_max + LIMITS.chunk
    last = await read_page(BucketDirectory(store, "memory:x/"), PREFIX, after=0, limit=1000, last=3)
    assert [line.n for line in last.lines] == [4998, 4999, 5000]


async def test_what_an_outage_held_up_is_written_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_thread, "FINISH_S", 0.05)
    store = MemoryStore()
    faulty = Faulty(store)
    faulty.outage(True)
    async with writing(BucketDirectory(faulty, "memory:x/")) as logs:
        log = logs.open(LOCATION, NOW)
        log.write("stdout", "one\ntwo")
        await logs.finish(log)  # Is not held up.
        assert await lines_in(store) == []
        faulty.outage(False)

        async def there() -> bool:
            return [line.text for line in await lines_in(store)] == ["one", "two"]

        await until(there, within_s=20)


async def test_what_is_not_written_yet_is_written_when_the_worker_ends() -> None:
    store = MemoryStore()
    async with writing(BucketDirectory(store, "memory:x/")) as logs:
        logs.open(LOCATION, NOW).write("stdout", "one\n")
    assert [line.text for line in await lines_in(store)] == ["one"]


async def test_a_log_without_lines_costs_no_request() -> None:
    store = MemoryStore()
    async with writing(BucketDirectory(store, "memory:x/")) as logs:
        await logs.finish(logs.open(LOCATION, NOW))
    assert not logs._roots
