"""Who shares the shards, and what looking at leased ones costs."""

from __future__ import annotations

import asyncio

import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.discovery import IndexMode
from qo.core.ownership import Member, blocks, share_units, units
from qo.core.pricing import Operation
from qo.core.rhythm import MEMBERS_READ
from qo.queue.feed import Feed
from qo.queue.late_tasks import LATE_S, LateTasks
from qo.queue.members import Members
from qo.queue.options import NewTask, Options, build
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo, report
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import ObjectStore
from qo.testing import virtual

pytestmark = pytest.mark.fast


def made_store() -> MemoryStore:
    return MemoryStore(clock=virtual.wall_clock)


def made_queue(store: ObjectStore, *, prefix_len: int = 1, seed: int = 1) -> Queue:
    return Queue(store, prefix_len=prefix_len, ambient=Ambient.seeded(seed, virtual.monotonic))


# Members


async def enlist(store: ObjectStore, worker_id: str, **more: object) -> None:
    at = await store.now()
    options = {"leasing": True, "shards_max": 16, "shard_ttl_s": 30.0, **more}
    await report(store, WorkerInfo(worker_id=worker_id, started_at=at, last_heartbeat=at, **options))  # type: ignore[arg-type]


def test_members_are_those_who_lease_and_are_there() -> None:
    async def story() -> None:
        store = made_store()
        for name in ("w2", "w1", "silent"):
            await enlist(store, name)
        await enlist(store, "plain", leasing=False, shards_max=0)
        await enlist(store, "earlier", shards_max=0)
        await enlist(store, "odd", shard_ttl_s=-1.0)
        await enlist(store, "paused", state="paused")
        await enlist(store, "leaving", state="draining")
        await store.put(keys.worker("broken"), b"{")
        members = Members(made_queue(store))
        alive = ["w1", "w2", "plain", "earlier", "odd", "paused", "leaving", "broken", "gone"]
        assert await members.find(alive) == [Member("w1", 16, 30.0), Member("w2", 16, 30.0)]

    virtual.run(story())


def test_records_are_read_once_and_those_of_members_again_a_few_at_a_time() -> None:
    async def story() -> None:
        store, alive = made_store(), [f"w{n:03}" for n in range(100)]
        for name in alive:
            await enlist(store, name)
        meter = Metered(store)
        members = Members(made_queue(meter))
        for reads in (100, MEMBERS_READ, MEMBERS_READ):
            meter.reset()
            assert len(await members.find(alive)) == 100
            assert meter.counts == {Operation.GET: reads}
        await enlist(store, "w050", state="paused")
        assert len(await members.find(alive)) == 100
        assert len(await members.find(alive, read_all=True)) == 99

    virtual.run(story())


def test_workers_that_cannot_run_the_same_tasks_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        store = made_store()
        await enlist(store, "w1", task_types=["a", "b"])
        await enlist(store, "w2", task_types=["b", "a"])
        members = Members(made_queue(store))
        await members.find(["w1", "w2"])
        assert caplog.text == ""
        await enlist(store, "w3", task_types=["a"])
        for _ in range(2):
            await members.find(["w1", "w2", "w3"])
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
        mine = share_units({f"w{n}": 256 for n in range(5)}, units(prefix_len))["w2"]
        assert len(mine) >= 3
        strangers = (NewTask("t", n, Options(key=f"{n}")) for n in range(backlog))
        made = [new for new in strangers if (_unit(queue, new) not in mine)]
        await queue.submit_many(made)
        feed = Feed(queue, mode=IndexMode.INDEX_ONLY)
        feed.own(mine)
        meter.reset()
        assert await feed.take(10) == []
        late = 1 if len(made) < 100 else 2
        assert meter.counts == {Operation.LIST: 1 + late}, "one more for late tasks of others"

    virtual.run(story())


def _unit(queue: Queue, new: NewTask) -> str:
    task = build(new, now=virtual.STARTED_AT, prefix_len=queue.prefix_len, ambient=queue.ambient)
    return task.id[: min(2, queue.prefix_len)]


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
        tasks = await queue.list(limit=1000)
        wanted = {task.id for task in tasks if task.id[: min(2, prefix_len)] in mine or mode is IndexMode.HYBRID}
        assert found >= {task_id for task_id in wanted if task_id[: min(2, prefix_len)] in mine}
        assert found <= wanted, "in hybrid mode one worker scans for all"

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


def test_tasks_of_others_are_taken_only_when_they_are_late() -> None:
    async def story() -> None:
        queue = made_queue(made_store())
        tasks = await queue.submit_many([NewTask("t", n) for n in range(60)])
        mine = {"7"}
        feed = Feed(queue, mode=IndexMode.INDEX_ONLY)
        feed.own(mine)
        ours = {task.id for task in tasks if task.shard in mine}
        assert {due.task_id for due in await feed.take(100)} == ours
        assert await feed.take(100) == []
        await asyncio.sleep(LATE_S + 1)
        assert {due.task_id for due in await feed.take(100)} == {task.id for task in tasks} - ours

    virtual.run(story())


def test_late_tasks_of_a_crowded_index_are_found_with_two_lists() -> None:
    async def story() -> None:
        meter = Metered(made_store())
        queue = made_queue(meter, prefix_len=2)
        await fill(queue, 2_000)
        await asyncio.sleep(LATE_S + 1)
        late, found = LateTasks(queue, 100), set[str]()
        meter.reset()
        for _ in range(50):
            found |= {due.task_id for due in await late.find(lambda due: True)}
        assert meter.counts == {Operation.LIST: 100}
        assert len(found) > 500, "helpers spread over the index"

    virtual.run(story())


def test_a_worker_that_owns_nothing_any_more_lists_everything_again() -> None:
    async def story() -> None:
        queue = made_queue(made_store())
        tasks = await queue.submit_many([NewTask("t", n) for n in range(60)])
        for mode in IndexMode:
            feed = Feed(queue, mode=mode)
            feed.prefer(0, 4)
            feed.own({"7"})
            feed.own(None)
            found = {due.task_id for _ in range(20) for due in await feed.take(100)}
            assert found == {task.id for task in tasks}

    virtual.run(story())
