"""The local store keeps the promises of every store, and answers exactly as the memory store does."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import resource
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.errors import ConfigError, PreconditionFailed, QoError, Unavailable, UsageError
from qo.store import sqlite_file, sqlite_schema
from qo.store.local import LocalStore
from qo.store.memory import MemoryStore
from qo.store.port import Deletion, ObjectStore
from qo.testing.conformance import StoreConformance

pytestmark = pytest.mark.fast


def in_a_loop(call: Callable[[], Awaitable[Any]]) -> Any:
    """What a call gives in an event loop of its own."""

    async def run() -> Any:
        return await call()

    return asyncio.run(run())


@asynccontextmanager
async def opened(path: Path, *, forget: tuple[str, ...] = (), durable: bool = False) -> AsyncIterator[LocalStore]:
    store = await LocalStore.open(path, forget=forget, durable=durable)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    async with opened(tmp_path / "store") as store:
        yield store


def connection_of(store: LocalStore) -> sqlite3.Connection:
    return store._thread._objects._connection


class TestLocalStore(StoreConformance):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        async with opened(tmp_path / "store") as store:
            yield store


# --- the model ---

NAMES = ["a/b", "a/bc", "\uff5e", "\U0001f600"]  # The last two sort the other way round in UTF-16.
KEYS = st.sampled_from(NAMES)
BODIES = st.sampled_from([b"", b"x", b"y", b"\x00" * 9])
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, BODIES),
    st.tuples(st.just("create"), KEYS, BODIES),
    st.tuples(st.just("replace"), KEYS, BODIES, BODIES),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("delete_if"), KEYS, BODIES),
    st.tuples(st.just("delete_many"), st.lists(KEYS, max_size=4)),
    st.tuples(st.just("erase"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("list"), st.sampled_from(["", "a", "a/", "c"]), KEYS | st.just(""), st.integers(1, 4)),
)


async def etag_of(body: bytes) -> str:
    return (await MemoryStore().put("any", body)).etag


async def obey(store: ObjectStore, root: str, operation: tuple[Any, ...]) -> object:
    """Do it, and say everything that can be seen of the answer except version ids and times."""
    match operation:
        case "put", key, body:
            return (await store.put(root + key, body)).etag
        case "create", key, body:
            return (await store.put(root + key, body, if_absent=True)).etag
        case "replace", key, before, body:
            return (await store.put(root + key, body, if_match=await etag_of(before))).etag
        case "delete", key:
            await store.delete(root + key)
        case "delete_if", key, before:
            await store.delete(root + key, if_match=await etag_of(before))
        case "delete_many", keys:
            await store.delete_many([Deletion(root + key) for key in keys])
        case "erase", key, place:
            versions = list(await store.versions(root + key))
            await store.delete_many([Deletion(root + key, each.version) for each in versions[place : place + 1]])
        case "list", prefix, start_after, limit:
            page = await store.list(root + prefix, start_after=start_after and root + start_after, limit=limit)
            return [entry[:3] for entry in page.entries], page.truncated
        case _:
            raise AssertionError(operation)
    return None


async def seen(store: ObjectStore, root: str) -> list[object]:
    page = await store.list(root)
    known: list[object] = [entry[:3] for entry in page.entries]
    for key in NAMES:
        current = await store.get(root + key)
        known.append(current and current[:2])
        for version in await store.versions(root + key):
            found = await store.get(root + key, version=version.version)
            known.append((version.etag, version.size, version.latest, version.deleted, found and found[:2]))
    return known


async def answers(store: ObjectStore, root: str, operations: list[tuple[Any, ...]]) -> list[object]:
    said: list[object] = []
    for operation in operations:
        try:
            said.append(await obey(store, root, operation))
        except QoError as error:
            said.append((type(error), str(error)))
    return [*said, await seen(store, root)]


def test_whatever_is_asked_local_answers_as_memory_does(tmp_path: Path) -> None:
    local = asyncio.run(LocalStore.open(tmp_path))
    examples = itertools.count()

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.lists(OPERATIONS, max_size=30))
    def law(operations: list[tuple[Any, ...]]) -> None:
        root = f"{next(examples)}/"
        expected = asyncio.run(answers(MemoryStore(), root, operations))
        assert asyncio.run(answers(local, root, operations)) == expected

    law()
    asyncio.run(local.close())


# --- one batch, many callers ---


async def test_a_refused_call_does_not_touch_the_others_of_its_batch(store: LocalStore) -> None:
    await store.put("taken", b"")
    calls = [
        store.put("taken" if number % 3 == 0 else f"free/{number}", b"%d" % number, if_absent=True)
        for number in range(30)
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(result, PreconditionFailed) for result in results] == [n % 3 == 0 for n in range(30)]
    assert len((await store.list("free/")).entries) == 20


async def test_a_call_the_database_cannot_do_fails_alone(store: LocalStore) -> None:
    connection_of(store).setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    await store.put("large", b"before")
    results = await asyncio.gather(
        *(store.put(f"small/{number}", b"x") for number in range(10)),
        store.put("large", b"x" * 200_000),
        *(store.put(f"small/{number}", b"x") for number in range(10, 20)),
        return_exceptions=True,
    )
    failed = [result for result in results if isinstance(result, Exception)]
    assert [type(error) for error in failed] == [Unavailable]
    assert len((await store.list("small/")).entries) == 20
    assert len(await store.versions("large")) == 1


async def test_a_failed_write_gives_no_version_to_two(tmp_path: Path) -> None:
    async with opened(tmp_path) as failing, opened(tmp_path) as other:
        connection_of(failing).setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
        with pytest.raises(Unavailable):
            await failing.put("a", b"x" * 2000)
        written = [await other.put("a", b"%d" % number) for number in range(3)]
        await failing.get("a")
        written += [await other.put("a", b"%d" % number) for number in range(3)]
        assert len({each.version for each in written}) == 6
        assert [each.version for each in await failing.versions("a")] == [each.version for each in written[::-1]]


async def test_a_full_disk_is_unavailable_and_loses_nothing(store: LocalStore) -> None:
    connection = connection_of(store)
    await store.put("a", b"before")
    connection.execute("PRAGMA max_page_count = 8")
    with pytest.raises(Unavailable, match="full"):
        await store.put("b", b"x" * 100_000)
    found = await store.get("a")
    assert found is not None
    assert found.body == b"before"
    connection.execute("PRAGMA max_page_count = 1000000")
    await store.put("b", b"x" * 100_000)


@pytest.mark.parametrize("is_there", [True, False], ids=["opened before", "never opened"])
async def test_a_full_disk_is_unavailable_to_who_opens_a_store(tmp_path: Path, is_there: bool) -> None:
    """It is no reason to name another directory, nor to restore a backup."""
    if is_there:
        async with opened(tmp_path) as store:
            await store.put("a", b"before")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (0, unlimited[1])
    )  # As without root in place of a disk that is full.
    try:
        with pytest.raises(Unavailable, match="make room"):
            await LocalStore.open(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    async with opened(tmp_path) as store:
        await store.put("b", b"after")


async def test_a_call_that_is_cancelled_does_not_disturb_the_others(store: LocalStore) -> None:
    tasks = [asyncio.ensure_future(store.put(f"{number}", b"x")) for number in range(20)]
    await asyncio.sleep(0)  # All are handed in now.
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 10
    assert sum(isinstance(result, tuple) for result in results) == 10


async def test_while_another_process_writes_reads_go_on_and_writes_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_S_MAX", 0.05)
    async with opened(tmp_path) as store:
        await store.put("a", b"one")
        with closing(sqlite3.connect(tmp_path / sqlite_file.FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await store.get("a") is not None
            with pytest.raises(Unavailable, match="locked"):
                await store.put("a", b"two")
            other.execute("ROLLBACK")
        await store.put("a", b"two")
        assert len(await store.versions("a")) == 2


async def test_a_write_that_had_to_wait_leaves_the_patience_of_reads_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with closing(sqlite3.connect(tmp_path / sqlite_file.FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            put = asyncio.ensure_future(store.put("a", b"one"))
            await asyncio.wait({put}, timeout=0.01)
            assert not put.done()
            other.execute("ROLLBACK")
            await put
        assert connection_of(store).execute("PRAGMA busy_timeout").fetchone() == (1000 * sqlite_file.BUSY_S_MAX,)


# --- opening and closing ---


async def test_what_was_written_is_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "deep" / "er") as store:
        written = await store.put("a", b"one")
        await store.delete("b")
    async with opened(tmp_path / "deep" / "er", durable=True) as store:
        assert await store.get("a") == (b"one", *written)
        later = await store.put("a", b"two")
        assert [each.version for each in await store.versions("a")] == [later.version, written.version]


async def test_closing_finishes_what_was_asked_before_and_refuses_what_comes_after(tmp_path: Path) -> None:
    store = await LocalStore.open(tmp_path)
    puts = [asyncio.ensure_future(store.put(f"{number:03d}", b"x")) for number in range(700)]
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*puts)) == 700
    with pytest.raises(UsageError, match="closed"):
        await store.get("000")
    await store.close()
    async with opened(tmp_path) as again:
        assert len((await again.list("")).entries) == 700


async def test_a_store_that_was_dropped_ends_its_thread(tmp_path: Path) -> None:
    store = await LocalStore.open(tmp_path)
    await store.put("a", b"one")
    thread = store._thread._thread
    del store
    gc.collect()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


def test_one_store_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    store = asyncio.run(LocalStore.open(tmp_path))
    first = in_a_loop(lambda: store.put("a", b"one"))
    in_a_loop(lambda: store.put("a", b"two", if_match=first.etag))
    found = in_a_loop(lambda: store.get("a"))
    assert found is not None
    assert found.body == b"two"
    asyncio.run(store.close())


def test_an_event_loop_that_ends_before_its_call_is_sent_does_not_hold_up_others(tmp_path: Path) -> None:
    store = asyncio.run(LocalStore.open(tmp_path))
    loop = asyncio.new_event_loop()
    loop.call_soon(store.put, "a", b"one")
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    found = in_a_loop(lambda: store.get("a"))
    assert found is not None
    assert found.body == b"one"
    asyncio.run(store.close())


async def test_calls_that_are_made_together_share_a_transaction(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are made one by one over a busy moment of the event loop, in which the store could begin."""
    batches: list[int] = []
    run_batch = store._thread._run_batch
    monkeypatch.setattr(store._thread, "_run_batch", lambda batch: batches.append(len(batch)) or run_batch(batch))

    async def put(number: int) -> None:
        time.sleep(0.02)  # noqa: ASYNC251 - the interpreter's lock is free meanwhile, as in a call of C code.
        await store.put(f"{number}", b"x")

    await asyncio.gather(*(put(number) for number in range(5)))
    assert batches == [5]


def test_one_store_serves_event_loops_of_several_threads_at_a_time(tmp_path: Path) -> None:
    store = asyncio.run(LocalStore.open(tmp_path))

    async def increment(times: int) -> None:
        done = 0
        while done < times:
            found = await store.get("count")
            assert found is not None
            try:
                await store.put("count", b"%d" % (int(found.body) + 1), if_match=found.etag)
            except PreconditionFailed:
                continue
            done += 1

    in_a_loop(lambda: store.put("count", b"0"))
    threads = [threading.Thread(target=lambda: asyncio.run(increment(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = in_a_loop(lambda: store.get("count"))
    assert found is not None
    assert found.body == b"200"
    asyncio.run(store.close())


# --- forgetting ---


async def test_forgotten_prefixes_keep_neither_versions_nor_markers(tmp_path: Path) -> None:
    async with opened(tmp_path, forget=("ready/", "workers/")) as store:
        first = await store.put("ready/a", b"one")
        second = await store.put("ready/a", b"two", if_match=first.etag)
        (only,) = await store.versions("ready/a")
        assert (only.etag, only.latest, only.deleted) == (second.etag, True, False)
        assert first.version is None
        assert second.version is None
        with pytest.raises(PreconditionFailed):
            await store.put("ready/a", b"three", if_match=first.etag)
        with pytest.raises(PreconditionFailed):
            await store.delete("ready/a", if_match=first.etag)
        await store.delete("ready/a", if_match=second.etag)
        await store.put("workers/w", b"beat")
        await store.delete_many([Deletion("workers/w")])
        assert list(await store.versions("ready/a")) == list(await store.versions("workers/w")) == []
        (rows,) = (
            connection_of(store)
            .execute("SELECT (SELECT count(*) FROM heads) + (SELECT count(*) FROM versions)")
            .fetchone()
        )
        assert rows == 0
        await store.put("tasks/a", b"one")
        await store.delete("tasks/a")
        assert len(await store.versions("tasks/a")) == 2


# --- what cannot be a store ---


async def test_a_file_in_place_of_the_directory_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Name a directory"):
        await LocalStore.open(tmp_path / "file")
    with pytest.raises(ConfigError, match="Name a directory"):
        await LocalStore.open(tmp_path / "file" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
async def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="writable"):
        await LocalStore.open(tmp_path / "locked")


@pytest.mark.parametrize("damage", [b"not a database at all" * 400, b"SQLite format 3\x00" + b"\xff" * 8192])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / sqlite_file.FILE).write_bytes(damage)
    with pytest.raises(ConfigError, match="backup"):
        await LocalStore.open(tmp_path)
    assert (tmp_path / sqlite_file.FILE).read_bytes() == damage


async def test_damage_found_later_is_unavailable(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await asyncio.gather(*(store.put(f"{number}", b"x" * 500) for number in range(200)))
    file = tmp_path / sqlite_file.FILE
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:8192] + b"\xff" * (size - 8192))
    async with opened(tmp_path) as store:
        with pytest.raises(Unavailable, match="malformed"):
            await asyncio.gather(*(store.get(f"{number}") for number in range(200)))


async def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / sqlite_file.FILE)) as other:
        other.execute("CREATE TABLE bookmarks (url)")
        other.commit()
    with pytest.raises(ConfigError, match="something else"):
        await LocalStore.open(tmp_path)
    with closing(sqlite3.connect(tmp_path / sqlite_file.FILE)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)


async def test_a_store_of_a_newer_qo_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put("a", b"one")
    with closing(sqlite3.connect(tmp_path / sqlite_file.FILE)) as newer:
        newer.execute(f"PRAGMA user_version = {sqlite_schema.SCHEMA_VERSION + 1}")
    with pytest.raises(ConfigError, match="upgrade qo"):
        await LocalStore.open(tmp_path)


async def test_wrong_calls_are_refused_with_a_reason(store: LocalStore) -> None:
    with pytest.raises(UsageError, match="empty"):
        await store.put("", b"")
    with pytest.raises(UsageError, match="not both"):
        await store.put("a", b"", if_match='"x"', if_absent=True)
    with pytest.raises(UsageError, match="1001 deletes"):
        await store.delete_many([Deletion("a")] * 1001)
    with pytest.raises(UsageError, match="at least 1"):
        await store.list("", limit=0)
    with pytest.raises(UsageError, match="links"):
        await store.presign("a", expires_s=60)


@pytest.mark.parametrize("version", ["", "null", "1x", "-1", "9" * 30, "1.5"])
async def test_a_version_that_cannot_exist_is_not_found(store: LocalStore, version: str) -> None:
    await store.put("a", b"one")
    assert await store.get("a", version=version) is None
    await store.delete_many([Deletion("a", version)])
    assert await store.get("a") is not None
