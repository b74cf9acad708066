"""Who shares the shards, what looking at leased ones costs, and what the lookout sees."""

from __future__ import annotations

import asyncio

import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.discovery import IndexMode
from qo.core.ownership import blocks, plan, units
from qo.core.pricing import Operation
from qo.queue.feed import Feed
from qo.queue.members import READ_AGAIN, Members
from qo.queue.options import NewTask, Options, build
from qo.queue.queue import Queue
from qo.queue.ready_scan import LISTS_MAX, ReadyScan
from qo.queue.roster import WorkerInfo, report
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import LIST_LIMIT_MAX, ObjectStore
from qo.testing import virtual

pytestmark = pytest.mark.fast

TTL_S = 30.0


def made_store() -> MemoryStore:
    return MemoryStore(clock=virtual.wall_clock)


def made_queue(store: ObjectStore, *, prefix_len: int = 1, seed: int = 1) -> Queue:
    return Queue(store, prefix_len=prefix_len, ambient=Ambient.seeded(seed, virtual.monotonic))


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
        survey = ReadyScan(queue)
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


async def crowd(store: ObjectStore, unit: str, *, in_minutes: int = 0) -> None:
    """More hints in one unit than a LIST can show."""
    minute = keys.minute_of(await store.now()) + in_minutes
    for n in range(LIST_LIMIT_MAX + 1):
        await store.put(keys.index(keys.READY, unit, minute, f"{unit:0<8}-0000-4000-8000-{n:012d}"), b"")


@pytest.mark.parametrize("in_minutes", [0, 60])
def test_a_survey_of_many_keys_jumps_over_what_it_need_not_see(in_minutes: int) -> None:
    async def story() -> None:
        meter = Metered(made_store())
        queue = made_queue(meter)
        for unit in units(1):
            await crowd(meter, unit, in_minutes=in_minutes)
        due = await queue.submit("t", 1)
        survey = ReadyScan(queue)
        meter.reset()
        await survey.round(lambda due: True, late_s=TTL_S)
        assert meter.counts[Operation.LIST] <= 2 * 16 + 1
        assert survey.lit == ([due.shard] if in_minutes else list(units(1)))

    virtual.run(story())


def test_a_survey_that_does_not_get_round_goes_on_and_forgets_nothing() -> None:
    async def story() -> None:
        store = made_store()
        crowded = units(2)[: LISTS_MAX + 8]
        for unit in crowded:
            await crowd(store, unit)
        survey = ReadyScan(made_queue(store, prefix_len=2))
        for _ in range(5):
            await survey.round(lambda due: False, late_s=TTL_S)
        assert survey.lit == list(crowded)

    virtual.run(story())
