"""`qo stats`: how much waits, by type, with few requests."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest

from qo.core import keys
from qo.core.pricing import Operation
from qo.queue import roster
from qo.queue.depth import DepthReader
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo
from qo.store.metered import Metered
from qo.testing import virtual
from qo.worker.loop.state import State
from qo.worker.observe.depth_board import DepthBoard, DepthMetrics
from support.stores.queues import StoreClock, another, app_of, claimed, until, virtual_queue, working


async def report_worker(queue: Queue, *types: str) -> None:
    now = await queue.store.now()
    info = WorkerInfo(worker_id="w", started_at=now, last_heartbeat=now, heartbeat_s=15, task_types=[*types])
    await roster.report(queue.store, info)


async def test_depth_is_counted_by_type_and_by_what_tasks_wait_for(queue: Queue) -> None:
    await queue.submit_many([NewTask("load", n) for n in range(5)])
    await queue.submit_many([NewTask("send", n, Options(delay_s=3600)) for n in range(3)])
    running = await queue.submit("send", 9)
    await claimed(queue, running.id)
    done = await queue.submit("load", 99)
    await queue.complete(await claimed(queue, done.id))
    await report_worker(queue, "load")
    await queue.hints.flush()
    depth = await DepthReader(another(queue)).read()
    assert (depth.due, depth.delayed, depth.running, depth.exact, depth.workers) == (5, 3, 1, True, 1)
    counts = {each.task_type: (each.due, each.delayed, each.running, each.handled) for each in depth.types}
    assert counts == {"load": (5, 0, 0, True), "send": (0, 3, 1, False)}
    assert depth.oldest_age_s is not None
    assert 0 <= depth.oldest_age_s < 60


@pytest.mark.fast
async def test_tasks_that_wait_for_others_are_counted_as_such(clocked_queue: Queue) -> None:
    first = await clocked_queue.submit("load")
    await clocked_queue.submit_many([NewTask("send", n, Options(depends_on=[first.id])) for n in range(3)])
    await clocked_queue.submit_many([NewTask("mail", n, Options(group="g")) for n in range(4)])
    depth = await DepthReader(clocked_queue).read()
    counts = {each.task_type: (each.due, each.waiting) for each in depth.types}
    assert counts == {"load": (1, 0), "mail": (1, 3), "send": (0, 3)}
    assert (depth.due, depth.waiting, depth.exact, depth.waiting_complete) == (2, 6, True, True)
    board = DepthBoard()
    board.publish(depth)
    assert b'qo_queue_depth{task_type="send",wait="waiting"} 3.0' in DepthMetrics(board).exposition()


@pytest.mark.fast
async def test_very_many_waiting_tasks_take_a_bounded_number_of_requests(
    clocked_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qo.queue.depth.WAITING_LISTS_MAX", 2)
    ids = [f"{n % 16:x}{n:07x}-0000-4000-8000-000000000001" for n in range(2001)]
    for task_id in ids:
        await clocked_queue.store.put(keys.index(keys.WAITING, task_id[0], 1, task_id), b"")
    meter = Metered(clocked_queue.store)
    depth = await DepthReader(another(clocked_queue, store=meter), reads_max=1).read()
    assert meter.counts[Operation.LIST] <= 2 + 4
    assert (depth.waiting, depth.waiting_complete) == (1999, False), "the one that was read led nowhere"


@pytest.mark.fast
async def test_the_oldest_task_shows_its_age_not_its_priority(clocked_queue: Queue, clock: StoreClock) -> None:
    await clocked_queue.submit("load", options=Options(priority=9))
    clock.advance(300)
    await clocked_queue.submit("send")
    await clocked_queue.submit("wait", options=Options(delay_s=90, priority=9))
    clock.advance(120)
    depth = await DepthReader(clocked_queue).read()
    ages = {each.task_type: each.oldest_age_s for each in depth.types}
    assert ages["load"] == depth.oldest_age_s == 420
    assert ages["send"] == 120
    assert ages["wait"] is not None
    assert 30 <= ages["wait"] <= 60, "to the minute, as its key tells"


@pytest.mark.fast
async def test_each_type_is_read_once_and_never_more_than_a_bounded_number_at_a_time(clocked_queue: Queue) -> None:
    meter = Metered(clocked_queue.store)
    queue = another(clocked_queue, store=meter)
    await queue.submit_many([NewTask("load" if n % 4 else "send", n) for n in range(200)])
    reader = DepthReader(queue, reads_max=120)
    meter.reset()
    first = await reader.read()
    assert meter.counts[Operation.GET] == 120
    assert meter.counts[Operation.LIST] <= 5
    assert (first.due, first.exact) == (200, False)
    shares = {each.task_type: each.due for each in first.types}
    assert 100 <= shares["load"] <= 185
    meter.reset()
    second = await reader.read()
    assert meter.counts[Operation.GET] == 80
    assert second.exact
    assert {each.task_type: each.due for each in second.types} == {"load": 150, "send": 50}
    meter.reset()
    assert await reader.read() == second
    assert meter.counts[Operation.GET] == 0


@pytest.mark.fast
async def test_hints_that_lead_nowhere_are_not_counted(clocked_queue: Queue) -> None:
    task = await clocked_queue.submit("t")
    await clocked_queue.store.put("ready/a/0000000001/a3f1c0de-0000-4000-8000-000000000001", b"a lie")
    await clocked_queue.store.put(clocked_queue.tasks.key("b3f1c0de-0000-4000-8000-000000000001"), b"what is this")
    await clocked_queue.store.put("ready/b/0000000001/b3f1c0de-0000-4000-8000-000000000001", b"unreadable")
    depth = await DepthReader(clocked_queue).read()
    assert (depth.due, depth.exact) == (1, True)
    assert [each.task_type for each in depth.types] == [task.task_type]


@pytest.mark.fast
def test_a_monitor_reads_the_depth_only_while_it_is_on_duty_and_somebody_asks() -> None:
    async def scenario() -> None:
        queue = virtual_queue()
        await queue.submit("load")
        board = DepthBoard()
        on_duty = True
        stop = asyncio.Event()
        monitor = Monitor(queue, MonitorConfig(check_interval_s=30, sweep_interval_s=0), board)
        running = asyncio.create_task(monitor.run(stop, on_duty=lambda: on_duty))
        metrics = DepthMetrics(board)
        await asyncio.sleep(3600)
        assert b"qo_queue_depth{" not in metrics.exposition(), "until then nobody had asked"
        await asyncio.sleep(31)
        shown = metrics.exposition()
        assert b'qo_queue_depth{task_type="load",wait="due"} 1.0' in shown
        assert b'qo_queue_unhandled{task_type="load"} 1.0' in shown
        age = next(line for line in shown.splitlines() if line.startswith(b"qo_queue_oldest_age_seconds{"))
        assert 3600 <= float(age.rpartition(b" ")[2]) <= 3700
        on_duty = False
        await asyncio.sleep(31)
        assert b"qo_queue_depth{" not in metrics.exposition(), "another process shows it now"
        stop.set()
        await running

    virtual.run(scenario())


async def test_a_worker_shows_the_depth_among_its_metrics(queue: Queue) -> None:
    async def echo(input: object) -> object:
        return input

    await queue.submit("nobody")
    async with working(queue, app_of(echo), http="127.0.0.1:0") as worker:
        await worker.reached(State.RUNNING)
        stop = asyncio.Event()
        monitor = Monitor(
            another(queue), MonitorConfig(check_interval_s=0.1, sweep_interval_s=0), worker.stats.depths
        )
        running = asyncio.create_task(monitor.run(stop))

        async def scraped() -> bool:
            url = f"http://{worker.http}/metrics"
            page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())
            return b'qo_queue_depth{task_type="nobody",wait="due"} 1.0' in page

        await until(scraped)
        stop.set()
        await running
