"""The meter: what it counts, and that it changes nothing."""

from __future__ import annotations

import pytest

from qo.core.pricing import READ_PRICE, WRITE_PRICE, Operation
from qo.errors import PreconditionFailed
from qo.store.memory import MemoryStore
from qo.store.metered import Metered, Usage
from qo.store.port import Deletion, ObjectStore

pytestmark = pytest.mark.fast


async def test_every_request_is_counted_under_its_operation() -> None:
    store = Metered(MemoryStore())
    written = await store.put("a", b"1")
    await store.put("a", b"2", if_match=written.etag)
    await store.get("a")
    await store.get("missing")
    await store.list("")
    await store.versions("a")
    await store.versioned()
    await store.delete("a")
    await store.delete_many([Deletion("a"), Deletion("b")])
    assert store.counts == {
        Operation.PUT: 2,
        Operation.GET: 2,
        Operation.LIST: 1,
        Operation.VERSIONS: 1,
        Operation.VERSIONING: 1,
        Operation.DELETE: 1,
        Operation.DELETE_MANY: 1,
    }
    assert store.dollars() == pytest.approx(5 * WRITE_PRICE + 3 * READ_PRICE)


async def test_the_time_is_free() -> None:
    store = Metered(MemoryStore())
    await store.now()
    assert store.snapshot().requests == 0


async def test_answers_and_refusals_come_through_unchanged() -> None:
    inner = MemoryStore()
    store: ObjectStore = Metered(inner)
    written = await store.put("k", b"body", if_absent=True)
    assert await store.get("k", version=written.version) == await inner.get("k")
    assert await store.list("k", start_after="a", limit=1) == await inner.list("k")
    with pytest.raises(PreconditionFailed):
        await store.put("k", b"other", if_absent=True)
    with pytest.raises(PreconditionFailed):
        await store.delete("k", if_match='"stale"')


async def test_a_refused_write_costs_like_any_other() -> None:
    store = Metered(MemoryStore())
    with pytest.raises(PreconditionFailed):
        await store.put("k", b"", if_match='"none"')
    assert store.counts[Operation.PUT] == 1


async def test_the_difference_of_two_snapshots_is_what_happened_between() -> None:
    store = Metered(MemoryStore())
    await store.put("a", b"")
    before = store.snapshot()
    await store.get("a")
    await store.get("a")
    spent = store.snapshot() - before
    assert spent == Usage({Operation.GET: 2})
    assert spent.requests == 2
    assert spent.dollars() == pytest.approx(2 * READ_PRICE)
    assert before + spent == store.snapshot()


async def test_reset_starts_over_and_leaves_snapshots_alone() -> None:
    store = Metered(MemoryStore())
    await store.put("a", b"")
    seen = store.snapshot()
    store.reset()
    assert store.dollars() == 0
    assert seen.requests == 1
