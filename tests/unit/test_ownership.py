"""Shard leases, one call at a time."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.ownership import LOOKOUT, LeasingConfig, ShardLease, may_look_out
from qo.errors import Unavailable, UsageError
from qo.queue.feed import Feed
from qo.queue.queue import Queue
from qo.queue.shard_leases import ShardLeases
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.port import ObjectStore, PutResult, Stored
from qo.testing import virtual
from qo.worker.leasing.ownership import Ownership

pytestmark = pytest.mark.fast

TTL_S = 30.0


def made_store() -> MemoryStore:
    return MemoryStore(clock=virtual.wall_clock)


def made_queue(store: ObjectStore, *, prefix_len: int = 1, seed: int = 1) -> Queue:
    return Queue(store, prefix_len=prefix_len, ambient=Ambient.seeded(seed, virtual.monotonic))


def made_leases(store: ObjectStore, worker_id: str, seed: int = 1) -> ShardLeases:
    return ShardLeases(made_queue(store, seed=seed), worker_id=worker_id, ttl_s=TTL_S)


async def stored(store: ObjectStore, unit: str) -> ShardLease:
    found = await store.get(keys.shard_lease(unit))
    assert found is not None
    return wire.decode(ShardLease, found.body, unit)


# Leases


def test_a_lease_is_written_as_documented() -> None:
    async def story() -> None:
        store = made_store()
        assert await made_leases(store, "w1").acquire("a") is not None
        found = await store.get("shard-leases/a.json")
        assert found is not None
        written = json.loads(found.body)
        assert written.pop("token")
        assert written == {
            "shard": "a",
            "worker_id": "w1",
            "lease_expires_at": "2026-01-01T00:00:30Z",
            "updated_at": "2026-01-01T00:00:00Z",
        }

    virtual.run(story())


def test_a_lease_is_kept_from_others_until_it_runs_out_and_then_lost_to_them() -> None:
    async def story() -> None:
        store = made_store()
        first, second = made_leases(store, "w1", 1), made_leases(store, "w2", 2)
        held = await first.acquire("a")
        assert held is not None
        await asyncio.sleep(20)
        held = await first.renew(held)
        assert held is not None
        await asyncio.sleep(TTL_S - 0.1)
        assert await second.acquire("a") is None
        await asyncio.sleep(0.1)
        assert held.until < virtual.monotonic(), "its holder has stopped to believe in it before"
        assert await second.acquire("a") is not None
        assert await first.renew(held) is None
        await first.release(held)
        assert (await stored(store, "a")).worker_id == "w2"
        assert (await stored(store, "a")).lease_expires_at > virtual.wall_clock()

    virtual.run(story())


def test_what_is_released_can_be_taken_at_once() -> None:
    async def story() -> None:
        store = made_store()
        first, second = made_leases(store, "w1", 1), made_leases(store, "w2", 2)
        held = await first.acquire("a")
        assert held is not None
        await first.release(held)
        assert await second.acquire("a") is not None

    virtual.run(story())


class Deaf(MemoryStore):
    """Does the next write, and then answers nothing any more until it hears again."""

    deaf = away = False

    def hear(self) -> None:
        self.deaf = self.away = False

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        if self.away:
            raise Unavailable("away")
        return await super().get(key, version=version)

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        written = await super().put(key, body, if_match=if_match, if_absent=if_absent)
        if self.deaf:
            self.away = True
            raise Unavailable("no reply")
        return written


def test_a_write_whose_reply_was_lost_is_recognised_later() -> None:
    async def story() -> None:
        store = Deaf(clock=virtual.wall_clock)
        leases = made_leases(store, "w1")
        store.deaf = True
        with pytest.raises(Unavailable):
            await leases.acquire("a")
        store.hear()
        held = await leases.acquire("a")
        assert held is not None, "the lease bears our own token"
        store.deaf = True
        with pytest.raises(Unavailable):
            await leases.renew(held)
        store.hear()
        held = await leases.renew(held)
        assert held is not None, "a renewal that came through unheard is not another's lease"
        store.deaf = True
        with pytest.raises(Unavailable):
            await leases.renew(held)
        store.hear()
        await leases.release(held)
        assert (await stored(store, "a")).lease_expires_at <= virtual.wall_clock()

    virtual.run(story())


def test_a_write_that_was_refused_by_itself_is_recognised_at_once() -> None:
    async def story() -> None:
        store = Faulty(made_store(), FaultPlan(own_412=1.0), Ambient.seeded(1, virtual.monotonic))
        leases = made_leases(store, "w1")
        held = await leases.acquire("a")
        assert held is not None
        held = await leases.renew(held)
        assert held is not None
        await leases.release(held)
        assert (await stored(store, "a")).lease_expires_at <= virtual.wall_clock()

    virtual.run(story())


def test_a_worker_of_the_same_name_does_not_inherit_a_lease() -> None:
    """The process that held it may still run."""

    async def story() -> None:
        store = made_store()
        assert await made_leases(store, "w1", 1).acquire("a") is not None
        assert await made_leases(store, "w1", 2).acquire("a") is None

    virtual.run(story())


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"shard":"a","worker_id":"w","lease_expires_at":"now"}'])
def test_a_broken_lease_is_taken_over_once_its_holder_must_have_stopped(body: bytes) -> None:
    async def story() -> None:
        store = made_store()
        first, second = made_leases(store, "w1", 1), made_leases(store, "w2", 2)
        held = await first.acquire("a")
        assert held is not None
        await store.put(keys.shard_lease("a"), body)
        assert await second.acquire("a") is None
        await asyncio.sleep(TTL_S)
        assert held.until < virtual.monotonic()
        assert await second.acquire("a") is not None
        assert await first.renew(held) is None

    virtual.run(story())


def test_a_deleted_lease_is_lost_and_can_be_taken() -> None:
    async def story() -> None:
        store = made_store()
        leases = made_leases(store, "w1")
        held = await leases.acquire("a")
        assert held is not None
        await store.delete(keys.shard_lease("a"))
        assert await leases.renew(held) is None
        assert await leases.acquire("a") is not None

    virtual.run(story())


def test_a_new_lookout_begins_with_what_the_last_one_knew() -> None:
    async def story() -> None:
        store = made_store()
        first, second = made_leases(store, "w1", 1), made_leases(store, "w2", 2)
        held = await first.acquire(LOOKOUT)
        assert held is not None
        await first.renew(held, members=["w1", "w2"], lit=["a"])
        await asyncio.sleep(TTL_S)
        taken = await second.acquire(LOOKOUT)
        assert taken is not None
        assert (taken.lease.members, taken.lease.lit) == (["w1", "w2"], ["a"])

    virtual.run(story())


def test_the_idle_go_first_for_the_lookout_and_the_busy_if_nobody_else_does() -> None:
    now = virtual.STARTED_AT
    lease = ShardLease(shard=LOOKOUT, worker_id="w", lease_expires_at=now, updated_at=now)
    assert may_look_out(None, now=now, room=False, ttl_s=TTL_S)
    assert may_look_out(lease, now=now, room=True, ttl_s=TTL_S)
    assert not may_look_out(lease, now=now, room=False, ttl_s=TTL_S)
    assert may_look_out(lease, now=now + timedelta(seconds=TTL_S), room=False, ttl_s=TTL_S)
    assert not may_look_out(lease, now=now - timedelta(seconds=1), room=True, ttl_s=TTL_S)


@pytest.mark.parametrize(
    "wrong", [{"shards_per_worker": 0}, {"renew_s": 16.0}, {"renew_s": 0.0}, {"watch_s": 0.0}, {"ttl_s": 19.0}]
)
def test_leasing_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LeasingConfig(**wrong)


# Being broken off


class Unanswered(MemoryStore):
    """Carries out a write of the lookout's lease, and keeps the answer to itself until it is asked for it."""

    def __init__(self) -> None:
        super().__init__(clock=virtual.wall_clock)
        self.withholds = False
        self.written = asyncio.Event()
        self.answers = asyncio.Event()

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        written = await super().put(key, body, if_match=if_match, if_absent=if_absent)
        if self.withholds and key == keys.shard_lease(LOOKOUT):
            self.written.set()
            await self.answers.wait()
        return written


@pytest.mark.parametrize("first", [True, False], ids=["acquiring", "renewing"])
def test_a_worker_that_leaves_before_it_knows_that_it_is_the_lookout_leaves_no_lease(first: bool) -> None:
    async def story() -> None:
        store = Unanswered()
        queue = made_queue(store)
        owner = Ownership(
            queue,
            LeasingConfig(),
            worker_id="a",
            feed=Feed(queue),
            has_room=lambda: True,
            heartbeat_s=5.0,
            on_change=lambda: None,
        )
        store.withholds = first
        running = asyncio.create_task(owner.run())
        if not first:
            await asyncio.sleep(1.0)
            assert owner.on_duty
            store.withholds = True
        await store.written.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        store.withholds = False
        asyncio.get_running_loop().call_later(0.5, store.answers.set)
        await owner.leave()
        assert (await stored(store, LOOKOUT)).lease_expires_at <= await store.now()
        assert not owner.on_duty

    virtual.run(story())
