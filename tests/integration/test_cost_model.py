"""The request model of `qo cost` against what the queue really sends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from qo.ambient import Ambient
from qo.core.discovery import IndexMode
from qo.core.pricing import (
    DAY_S,
    Load,
    Operation,
    Requests,
    Rhythm,
    heartbeats_per_day,
    monitor_per_day,
    polling_per_day,
    purge_per_day,
    requests_per_task,
)
from qo.core.retention import Keep, Policy
from qo.queue import roster
from qo.queue.feed import Feed
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask
from qo.queue.purger import Purger
from qo.queue.queue import Claim, Queue
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.worker import Worker

pytestmark = pytest.mark.fast


def nonzero(requests: Requests) -> dict[Operation, float]:
    return {operation: count for operation, count in requests.items() if count}


async def test_a_task_takes_the_requests_that_the_model_says() -> None:
    meter = Metered(MemoryStore())
    async with Queue(meter) as queue:
        tasks = await queue.submit_many([NewTask("add", n) for n in range(100)])
        claims = [await queue.claim(task.id, worker_id="w") for task in tasks]
        await queue.hints.flush()
        for claim in claims:
            assert isinstance(claim, Claim)
            await queue.complete(claim)
        await queue.hints.flush()
    assert meter.counts == {operation: 100 * n for operation, n in requests_per_task(100).items()}


@pytest.mark.parametrize("mode", [IndexMode.INDEX_ONLY, IndexMode.HYBRID, IndexMode.LOG_SCAN])
async def test_an_idle_poll_is_one_list(mode: IndexMode) -> None:
    meter = Metered(MemoryStore())
    feed = Feed(Queue(meter), mode=mode)
    assert await feed.take(10) == []
    assert meter.counts == {Operation.LIST: 1}


@pytest.mark.parametrize("workers", [1, 7])
async def test_monitors_take_the_requests_that_the_model_says(workers: int) -> None:
    meter = Metered(MemoryStore())
    now = datetime.now(UTC)
    for n in range(workers):
        info = roster.WorkerInfo(worker_id=f"w{n}", started_at=now, last_heartbeat=now)
        await roster.report(meter, info)
    monitors = [Monitor(Queue(meter)) for _ in range(workers)]
    meter.reset()

    for monitor in monitors:
        await monitor.check()
    per_check = Rhythm(check_s=DAY_S, sweep_s=0)
    assert meter.counts == nonzero(monitor_per_day(Load(workers, 0), per_check))

    for monitor in monitors:
        await monitor.sweep(unless_within_s=DAY_S)
    with_sweep = Rhythm(check_s=DAY_S, sweep_s=DAY_S)
    assert meter.counts == nonzero(monitor_per_day(Load(workers, 0), with_sweep))


def test_an_idle_worker_takes_the_requests_that_the_model_says() -> None:
    async def main() -> None:
        meter = Metered(MemoryStore(clock=virtual.wall_clock))
        queue = Queue(meter, ambient=Ambient.seeded(1, virtual.monotonic))
        worker = Worker(queue, App(), WorkerConfig(worker_id="w", index_mode=IndexMode.INDEX_ONLY))
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(600)  # By then it polls at its slowest.
        meter.reset()
        await asyncio.sleep(6 * 3600)
        counts = dict(meter.counts)
        worker.stop()
        await running
        polling, beats = polling_per_day(Load(1, 0), IndexMode.INDEX_ONLY), heartbeats_per_day(0)
        expected = {each: (polling.get(each, 0) + beats.get(each, 0)) / 4 for each in Operation}
        assert counts == {operation: pytest.approx(n, rel=0.03) for operation, n in expected.items() if n}

    virtual.run(main())


async def test_a_purge_takes_the_requests_that_the_model_says() -> None:
    meter = Metered(MemoryStore())
    queue = Queue(meter)
    tasks = 1000
    for task in await queue.submit_many([NewTask("t", n) for n in range(tasks)]):
        claim = await queue.claim(task.id, worker_id="w")
        assert isinstance(claim, Claim)
        await queue.complete(claim)
    await queue.hints.flush()
    meter.reset()
    assert (await Purger(queue, Policy(Keep(completed=timedelta(0)))).purge_all()).tasks == tasks
    assert meter.counts == nonzero(purge_per_day(Load(1, tasks, kept_d=1)))
