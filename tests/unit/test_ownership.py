"""Shard leases one call at a time, and what looking at leased shards costs."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.discovery import IndexMode
from qo.core.ownership import LOOKOUT, ShardLease, blocks, may_look_out, plan, units
from qo.core.pricing import Operation
from qo.errors import Unavailable
from qo.queue.feed import Feed
from qo.queue.members import READ_AGAIN, Members
from qo.queue.options import NewTask, Options, build
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo, report
from qo.queue.shard_leases import ShardLeases
from qo.queue.survey import Survey
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import ObjectStore, Stored, Written
from qo.testing import virtual

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

    async def put(self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False) -> Written:
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


# Members


async def enlist(store: ObjectStore, worker_id: str, **more: object) -> None:
    at = await store.now()
    options = {"leasing": True, **more}
    await report(store, WorkerInfo(worker_id=worker_id, started_at=at, last_heartbeat=at, **options))  # type: ignore[arg-type]


def test_members_are_those_who_lease_and_were_heard_of() -> None:
    async def story() -> None:
        store = made_store()
        await enlist(store, "silent")
        await asyncio.sleep(20)
        for name in ("w2", "w1"):
            await enlist(store, name)
        await enlist(store, "plain", leasing=False)
        await enlist(store, "paused", state="paused")
        await enlist(store, "leaving", state="draining")
        await store.put(keys.worker("broken"), b"{")
        members = Members(made_queue(store), silent_max_s=30)
        assert await members.live() == ["silent", "w1", "w2"]
        await asyncio.sleep(15)
        assert await members.live() == ["w1", "w2"]

    virtual.run(story())


def test_records_are_read_once_and_then_a_few_at_a_time() -> None:
    async def story() -> None:
        store = made_store()
        for n in range(100):
            await enlist(store, f"w{n:03}")
        meter = Metered(store)
        members = Members(made_queue(meter), silent_max_s=30)
        for reads in (100, READ_AGAIN, READ_AGAIN):
            meter.reset()
            assert len(await members.live()) == 100
            assert meter.counts == {Operation.LIST: 1, Operation.GET: reads}
        await enlist(store, "w050", leasing=False)
        for _ in range(100 // READ_AGAIN + 1):
            found = await members.live()
        assert len(found) == 99

    virtual.run(story())


def test_workers_that_cannot_run_the_same_tasks_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        store = made_store()
        await enlist(store, "w1", task_types=["a", "b"])
        await enlist(store, "w2", task_types=["b", "a"])
        members = Members(made_queue(store), silent_max_s=30)
        await members.live()
        assert caplog.text == ""
        await enlist(store, "w3", task_types=["a"])
        await members.live()
        await members.live()
        assert caplog.text.count("different task types") == 1

    virtual.run(story())


# Looking


async def fill(queue: Queue, count: int, **options: float) -> None:
    await queue.submit_many([NewTask("t", n, Options(**options)) for n in range(count)])  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix_len", [1, 2, 3, 4])
@pytest.mark.parametrize("backlog", [0, 2_000])
def test_an_idle_look_at_adjacent_units_is_one_list_however_crowded_the_others_are(
    prefix_len: int, backlog: int
) -> None:
    async def story() -> None:
        meter = Metered(made_store())
        queue = made_queue(meter, prefix_len=prefix_len)
        mine = plan([f"w{n}" for n in range(5)], units(prefix_len), 256)["w2"]
        assert len(mine) >= 3
        strangers = (NewTask("t", n, Options(key=f"{n}")) for n in range(backlog))
        made = [new for new in strangers if (_unit(queue, new) not in mine)]
        await queue.submit_many(made)
        feed = Feed(queue, mode=IndexMode.INDEX_ONLY)
        feed.own(mine)
        meter.reset()
        assert await feed.take(10) == []
        assert meter.counts == {Operation.LIST: 1}

    virtual.run(story())


def _unit(queue: Queue, new: NewTask) -> str:
    task = build(new, now=virtual.STARTED_AT, prefix_len=queue.prefix_len, ambient=queue.ambient)
    return task.id[: min(2, queue.prefix_len)]


def test_an_owner_of_nothing_asks_for_nothing() -> None:
    async def story() -> None:
        meter = Metered(made_store())
        queue = made_queue(meter)
        await fill(queue, 10)
        for mode in IndexMode:
            feed = Feed(queue, mode=mode)
            feed.own(())
            meter.reset()
            assert await feed.take(10) == []
            assert meter.counts == {}

    virtual.run(story())


@pytest.mark.parametrize("prefix_len", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", list(IndexMode))
@pytest.mark.parametrize("page_size", [3, 100])
def test_an_owner_finds_all_that_is_in_its_units_and_nothing_else(
    prefix_len: int, mode: IndexMode, page_size: int
) -> None:
    async def story() -> None:
        queue = made_queue(made_store(), prefix_len=prefix_len)
        await fill(queue, 200)
        leasable = units(prefix_len)
        mine = {*leasable[3 : len(leasable) // 4 + 4], leasable[-2]}
        assert len(blocks(mine)) == 2
        feed = Feed(queue, mode=mode, ready_page_size=page_size, log_scan_page_size=page_size)
        feed.own(mine)
        found: set[str] = set()
        for _ in range(800):
            found |= {due.task_id for due in await feed.take(1000)}
        wanted = {task.id for task in await queue.list(limit=1000) if task.id[: min(2, prefix_len)] in mine}
        assert found == wanted

    virtual.run(story())


@pytest.mark.parametrize("prefix_len", [1, 2, 3])
def test_a_crowded_unit_does_not_keep_an_owner_from_its_others(prefix_len: int) -> None:
    async def story() -> None:
        queue = made_queue(made_store(), prefix_len=prefix_len)
        await fill(queue, 3_000)
        leasable = units(prefix_len)
        mine = leasable[: 16 if prefix_len > 1 else 4]
        feed = Feed(queue, mode=IndexMode.INDEX_ONLY, ready_page_size=5)
        feed.own(mine)
        looks = 60
        offered = [due.task_id[: len(mine[0])] for _ in range(looks) for due in await feed.take(5)]
        assert set(offered) == set(mine)

    virtual.run(story())


def test_what_was_found_in_a_unit_that_is_lost_meanwhile_is_not_offered() -> None:
    async def story() -> None:
        queue = made_queue(made_store())
        await fill(queue, 60)
        feed = Feed(queue, mode=IndexMode.INDEX_ONLY)
        feed.own(units(1))
        await feed.take(1)
        feed.own(["7"])
        assert {due.task_id[0] for due in await feed.take(100)} == {"7"}

    virtual.run(story())


# The survey


@pytest.mark.parametrize("prefix_len", [1, 2, 3, 4])
def test_a_survey_of_few_keys_is_one_list_and_knows_where_something_is_due(prefix_len: int) -> None:
    async def story() -> None:
        meter = Metered(made_store())
        queue = made_queue(meter, prefix_len=prefix_len)
        await fill(queue, 100, delay_s=3600)
        survey = Survey(queue)
        await survey.round(lambda due: True, late_s=TTL_S)
        assert survey.lit == []
        task = await queue.submit("t", 1)
        meter.reset()
        assert await survey.round(lambda due: True, late_s=TTL_S) == []
        assert meter.counts == {Operation.LIST: 1}
        assert survey.lit == [task.id[: min(2, prefix_len)]]
        await asyncio.sleep(TTL_S + 1)
        assert [due.task_id for due in await survey.round(lambda due: True, late_s=TTL_S)] == [task.id]
        assert await survey.round(lambda due: False, late_s=TTL_S) == []

    virtual.run(story())


@pytest.mark.parametrize("delay_s", [0.0, 3600.0])
def test_a_survey_of_many_keys_jumps_over_what_it_need_not_see(delay_s: float) -> None:
    async def story() -> None:
        meter = Metered(made_store())
        queue = made_queue(meter)
        await fill(queue, 20_000, delay_s=delay_s)
        due = await queue.submit("t", 1)
        survey = Survey(queue)
        meter.reset()
        await survey.round(lambda due: True, late_s=TTL_S)
        assert meter.counts[Operation.LIST] <= 2 * 16 + 1
        assert survey.lit == ([due.shard] if delay_s else list(units(1)))

    virtual.run(story())


def test_a_survey_that_does_not_get_round_goes_on_and_forgets_nothing() -> None:
    async def story() -> None:
        store = made_store()
        queue = made_queue(store, prefix_len=2)
        minute = keys.minute_of(await store.now())
        for unit in units(2):
            for n in range(1001):
                key = keys.index(keys.READY, unit, minute, f"{unit}000000-0000-4000-8000-{n:012d}")
                await store.put(key, b"")
        survey = Survey(queue)
        for _ in range(10):
            await survey.round(lambda due: False, late_s=TTL_S)
        assert survey.lit == list(units(2))

    virtual.run(story())
