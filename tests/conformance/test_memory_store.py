"""The memory store keeps the promises of every store, and those of a model: it repeats itself exactly."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from qo.errors import PreconditionFailed, UsageError
from qo.store.memory import UNVERSIONED, MemoryStore
from qo.store.port import Deletion, ObjectStore
from qo.testing.conformance import StoreConformance

pytestmark = pytest.mark.fast


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()


async def drawn(store: MemoryStore) -> list[object]:
    """Everything that can be seen of the store after a few writes drawn from one seed."""
    rng = random.Random(5)
    for _ in range(50):
        key = rng.choice("abc")
        await (store.put(key, rng.randbytes(3)) if rng.random() < 0.7 else store.delete(key))
    return [await store.list(""), [await store.versions(key) for key in "abc"]]


async def test_the_same_calls_give_the_same_answers_version_ids_included() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert await drawn(MemoryStore(clock=lambda: noon)) == await drawn(MemoryStore(clock=lambda: noon))


async def test_time_is_what_the_given_clock_says_but_never_goes_back_a_little() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    later = noon + timedelta(seconds=1)
    readings = iter([noon, later, noon])
    store = MemoryStore(clock=lambda: next(readings))
    assert [await store.now() for _ in range(3)] == [noon, later, later]


async def test_without_versioning_only_the_present_is_kept() -> None:
    store = MemoryStore(versioned=False)
    assert await store.versioned() is False
    written = await store.put("a", b"one")
    await store.put("a", b"two")
    assert written.version is None
    found = await store.get("a")
    assert found is not None
    assert found.version is None
    (only,) = await store.versions("a")
    assert (only.version, only.size, only.latest) == (UNVERSIONED, 3, True)
    await store.delete("a")
    assert list(await store.versions("a")) == []
    await store.put("a", b"three", if_absent=True)


async def test_a_hundred_thousand_keys_are_no_burden() -> None:
    store = MemoryStore()
    rng = random.Random(1)
    began = time.process_time()
    for number in range(100_000):
        await store.put(f"ready/{number:06d}", b"")
    for _ in range(2_000):
        key = f"ready/{rng.randrange(100_000):06d}"
        await store.delete(key)
        await store.put(key, b"")
        page = await store.list("ready/", start_after=key, limit=10)
        assert all(entry.key > key for entry in page.entries)
    spent_s = time.process_time() - began
    assert len((await store.list("ready/0001")).entries) == 100
    assert spent_s < 10  # It takes about one; a store that scanned its keys for every list would take minutes.


def test_threads_that_race_on_one_key_have_one_winner_each_round() -> None:
    store = MemoryStore()
    rounds, wins = 200, [0] * 200

    def claim_all() -> None:
        async def claim() -> None:
            for number in range(rounds):
                try:
                    await store.put(f"{number}", b"mine", if_absent=True)
                except PreconditionFailed:
                    continue
                wins[number] += 1

        asyncio.run(claim())

    threads = [threading.Thread(target=claim_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wins == [1] * rounds


async def test_wrong_calls_are_refused_with_a_reason() -> None:
    store = MemoryStore()
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
