"""Index keys: restored when lost, offered when due, and gone when the task has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.ambient import SYSTEM, Ambient
from qo.core import keys
from qo.core.discovery import IndexMode
from qo.core.pricing import Operation
from qo.queue.feed import Feed
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options, build
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.testing import virtual
from qo.worker.api.app import App
from support.stores.queues import (
    StoreClock,
    claimed,
    config,
    drain,
    hasty,
    hints,
    keys_under,
    wanted_hints,
)


def counting() -> tuple[App, list[Any]]:
    """An app for type ``t``, and the inputs it has been given."""
    app, seen = App(), list[Any]()

    @app.task("t")
    async def handle(input: Any) -> None:
        seen.append(input)

    return app, seen


@pytest.mark.fast
def test_a_lost_hint_is_restored_by_a_monitor_as_it_comes() -> None:
    """Without any setting, and for missing keys, not only for stale ones."""

    async def main() -> None:
        queue = Queue(MemoryStore(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))
        waiting = await queue.submit("t")
        held = (await claimed(queue, (await queue.submit("t")).id, lease_s=86_400)).task
        await hints(queue)
        for key in wanted_hints(waiting, held):
            await queue.store.delete(key)
        stop = asyncio.Event()
        monitor = asyncio.create_task(Monitor(queue, MonitorConfig()).run(stop))
        await asyncio.sleep(400)
        stop.set()
        await monitor
        assert await hints(queue) == wanted_hints(waiting, held)

    virtual.run(main())


@pytest.mark.fast
async def test_no_shard_waits_behind_one_that_is_never_empty(clock: StoreClock) -> None:
    queue = Queue(MemoryStore(clock=clock.now))
    feed = Feed(queue, mode=IndexMode.INDEX_ONLY, ready_page_size=5)
    await queue.submit_many([NewTask("t", n) for n in range(400)])
    first = (await feed.take(5))[0].task_id[0]
    keyed = (NewTask("t", n, Options(key=f"{n}")) for n in range(10_000))
    more = (new for new in keyed if build(new, now=clock.now(), prefix_len=1, ambient=SYSTEM).shard == first)
    seen = {first}
    for _ in range(16):
        await queue.submit_many([next(more) for _ in range(5)])
        seen |= {due.task_id[0] for due in await feed.take(5)}
    assert len(seen) == 16


@pytest.mark.fast
async def test_monitor_and_sweeper_do_not_read_everything_every_time(clock: StoreClock) -> None:
    meter = Metered(MemoryStore(clock=clock.now))
    queue = Queue(meter)
    for task in await queue.submit_many([NewTask("t", n) for n in range(500)]):
        await claimed(queue, task.id, lease_s=3600)
    await hints(queue)
    meter.reset()
    await Monitor(queue).check()
    assert meter.counts[Operation.GET] == 0, "no lease is due"
    meter.reset()
    report = await Sweeper(queue, page_size=50).sweep()
    assert (report.checked, report.wrapped) == (50, False)
    assert meter.counts[Operation.GET] == 50 + 1, "a page, and the cursor"


@pytest.mark.fast
async def test_nothing_is_offered_before_its_minute(clock: StoreClock) -> None:
    queue = Queue(MemoryStore(clock=clock.now), ambient=hasty())
    for delay_s in (40, 100, 3600):  # It is half past a minute.
        await queue.submit("t", delay_s, Options(delay_s=delay_s))
    feed = Feed(queue, mode=IndexMode.INDEX_ONLY)
    offered: list[int] = []
    for wait_s in (0, 30, 60, 1800, 1800):
        clock.advance(wait_s)
        offered.append(len(await Feed(queue, mode=IndexMode.INDEX_ONLY).take(10)))
    assert offered == [0, 1, 2, 2, 3]
    assert len(await feed.take(10)) == 3


@pytest.mark.fast
async def test_polling_costs_one_list_whatever_the_number_of_shards(clock: StoreClock) -> None:
    meter = Metered(MemoryStore(clock=clock.now))
    feed = Feed(Queue(meter, prefix_len=2), mode=IndexMode.INDEX_ONLY)
    for _ in range(10):
        assert await feed.take(16) == []
    assert meter.counts == {Operation.LIST: 10}


async def test_finished_tasks_leave_no_leases_behind_not_even_old_versions(queue: Queue) -> None:
    tasks = [await queue.submit("t", n) for n in range(3)]
    leases: list[str] = []
    for task in tasks:
        claim = await claimed(queue, task.id)
        leases += wanted_hints(claim.task)
        await queue.complete(claim)
    assert await hints(queue) == set()
    assert [await queue.store.versions(key) for key in leases] == [[], [], []]


@pytest.mark.fast
async def test_requests_per_task_are_counted_and_few() -> None:
    meter = Metered(MemoryStore())
    queue = Queue(meter)
    app, seen = counting()
    count = 500
    await queue.submit_many([NewTask("t", n) for n in range(count)])
    await drain(queue, app, **{"pace": config().pace})
    assert len(seen) == count
    await queue.hints.flush()
    assert meter.counts.total() / count <= 8
    assert meter.counts[Operation.LIST] / count < 0.2
    assert await keys_under(queue.store, keys.READY) == []
