"""Inboxes of workers that die, stand still, are full or leave: their tasks are run by others soon."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.dispatch import Dispatch, DispatchConfig
from qo.core.task import Status, Task
from qo.queue.monitor import Monitor
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.worker import Worker
from simulation.engine import machines
from support.stores.queues import keys_under

pytestmark = pytest.mark.fast

DIRECT = DispatchConfig(dispatch=Dispatch.DIRECT)


def build_worker(store: MemoryStore, name: str, seed: int, concurrency: int = 4) -> Worker:
    app = App()

    @app.task("t")
    async def handle(input: float) -> None:
        await asyncio.sleep(input)

    queue = Queue(store, ambient=Ambient.seeded(seed, virtual.monotonic), dispatch=DIRECT)
    config = WorkerConfig(
        worker_id=name, has_monitor=True, dispatch=Dispatch.DIRECT, concurrency=concurrency, inbox_capacity=0
    )
    return Worker(queue, app, config)


async def live(worker: Worker) -> None:
    monitor = asyncio.create_task(Monitor(worker._queue).run(asyncio.Event(), on_duty=lambda: worker.on_duty))
    try:
        await worker.run()
    finally:
        monitor.cancel()


async def start(store: MemoryStore, names: Sequence[str], concurrency: int = 4) -> dict[str, Worker]:
    loop, workers = machines.machines(), dict[str, Worker]()
    for seed, name in enumerate(names):
        workers[name] = loop.context(name).run(build_worker, store, name, seed, concurrency)
        loop.spawn(name, live(workers[name]))
    await asyncio.sleep(30)
    return workers


def make_producer(store: MemoryStore) -> Queue:
    return Queue(store, ambient=Ambient.seeded(99, virtual.monotonic), dispatch=DIRECT)


async def finish(queue: Queue, tasks: Sequence[Task], within_s: float) -> float:
    """Wait until all tasks are completed, and return how long that took."""
    began = virtual.monotonic()
    while not all([(await queue.get(task.id)).status is Status.COMPLETED for task in tasks]):
        await asyncio.sleep(1)
        assert virtual.monotonic() - began <= within_s
    return virtual.monotonic() - began


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_inbox_of_a_worker_that_is_killed_or_stands_still_is_emptied_by_the_others(how: str) -> None:
    async def story() -> None:
        loop, store = machines.machines(), MemoryStore(clock=virtual.wall_clock)
        workers = await start(store, ["a", "b", "c"])
        queue = make_producer(store)
        await queue.submit("t", 0.0)  # Its view of the workers is fresh now.
        if how == "killed":
            loop.kill("b")
        else:
            loop.pause("b", 500.0)
        tasks = [await queue.submit("t", 0.1) for _ in range(30)]
        assert {task.inbox for task in tasks} == {"a", "b", "c"}
        await finish(queue, tasks, within_s=90 if workers["b"].on_duty else 35)
        assert not [key for key in await keys_under(store, keys.INBOX) if "/b/" in key]
        if how == "stopped":
            await asyncio.sleep(520)
            later = [await queue.submit("t", 0.1) for _ in range(9)]
            await finish(queue, later, within_s=30)

    machines.run(story())


def test_a_worker_that_is_full_does_not_keep_its_tasks_from_others_for_long() -> None:
    async def story() -> None:
        store = MemoryStore(clock=virtual.wall_clock)
        await start(store, ["a", "b"], concurrency=1)
        queue = make_producer(store)
        first = [await queue.submit("t", 600.0)]  # One of them is busy for ten minutes.
        await asyncio.sleep(5)
        (busy,) = {task.inbox for task in first}
        tasks = [await queue.submit("t", 0.1) for _ in range(20)]
        mine = [task for task in tasks if task.inbox == busy]
        assert mine
        await finish(queue, tasks, within_s=60)
        assert {(await queue.get(task.id)).worker_id for task in mine} == {"a", "b"} - {busy}

    machines.run(story())


def test_a_queue_that_is_busy_everywhere_offers_few_tasks_and_runs_all() -> None:
    async def story() -> None:
        store = MemoryStore(clock=virtual.wall_clock)
        await start(store, ["a", "b"], concurrency=2)
        queue = make_producer(store)
        tasks = [await queue.submit("t", 2.0) for _ in range(200)]
        await finish(queue, tasks, within_s=400)
        moved = [task for task in tasks if len(await queue.history(task.id)) > 3]
        print(f"{len(moved)} of {len(tasks)} were offered, in {virtual.monotonic():.0f} s")
        assert len(moved) < len(tasks) / 2, "most are run by the worker that they were routed to"

    machines.run(story())
