"""The lookout dies, as by kill -9: another worker has its duty soon, and nothing that it watched over is lost."""

from __future__ import annotations

import asyncio

import pytest

from qo.ambient import Ambient
from qo.core.board import WATCH_TTL_MAX_S
from qo.core.task import Status
from qo.queue.monitor import Monitor
from qo.queue.options import Options
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.worker import Worker
from simulation.engine import machines

pytestmark = pytest.mark.fast


def build_worker(store: MemoryStore, name: str, seed: int) -> Worker:
    app = App()

    @app.task("t")
    async def handle(input: float) -> None:
        await asyncio.sleep(input)

    queue = Queue(store, ambient=Ambient.seeded(seed, virtual.monotonic))
    return Worker(queue, app, WorkerConfig(worker_id=name, has_monitor=True))


async def live(worker: Worker) -> None:
    monitor = asyncio.create_task(Monitor(worker._queue).run(asyncio.Event(), on_duty=lambda: worker.on_duty))
    try:
        await worker.run()
    finally:
        monitor.cancel()


def test_when_the_lookout_is_killed_another_takes_over_and_takes_its_tasks_back() -> None:
    async def story() -> None:
        loop, store = machines.machines(), MemoryStore(clock=virtual.wall_clock)
        workers: dict[str, Worker] = {}
        for n in range(4):
            name = f"w{n}"
            workers[name] = loop.context(name).run(build_worker, store, name, n)
            loop.spawn(name, live(workers[name]))
        await asyncio.sleep(60)
        (lookout,) = [name for name, worker in workers.items() if worker.on_duty]
        queue = Queue(store, ambient=Ambient.seeded(99, virtual.monotonic))
        tasks = [await queue.submit("t", 45.0) for _ in range(40)]
        delayed = await queue.submit("t", 0.0, Options(delay_s=90.0))
        await queue.flush()
        await asyncio.sleep(10)
        assert len(workers[lookout]._holds) > 0
        loop.kill(lookout)
        died_at = virtual.monotonic()
        del workers[lookout]
        while not any(worker.on_duty for worker in workers.values()):  # noqa: ASYNC110 - of whichever.
            await asyncio.sleep(1)
        assert virtual.monotonic() - died_at <= WATCH_TTL_MAX_S + 15
        await asyncio.sleep(300)
        assert sum(worker.on_duty for worker in workers.values()) == 1
        for task in [*tasks, delayed]:
            assert (await queue.get(task.id)).status is Status.COMPLETED

    machines.run(story())


def test_a_worker_that_is_killed_right_after_a_claim_leaves_a_key_that_leads_to_the_task() -> None:
    """A claim writes no lease hint: the ready hint stays for the first seconds."""

    async def story() -> None:
        loop, store = machines.machines(), MemoryStore(clock=virtual.wall_clock)
        victim = loop.context("victim").run(build_worker, store, "victim", 1)
        loop.spawn("victim", live(victim))
        await asyncio.sleep(30)
        queue = Queue(store, ambient=Ambient.seeded(99, virtual.monotonic))
        task = await queue.submit("t", 5.0)
        while not victim._holds:  # noqa: ASYNC110 - to kill it right then.
            await asyncio.sleep(0.01)
        loop.kill("victim")
        other = loop.context("other").run(build_worker, store, "other", 2)
        loop.spawn("other", live(other))
        await asyncio.sleep(240)
        done = await queue.get(task.id)
        assert (done.status, done.attempt) == (Status.COMPLETED, 2)

    machines.run(story())
