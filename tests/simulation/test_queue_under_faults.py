"""Whole queues in virtual time, under faults drawn from a seed: workers, monitors and submitters that lose
replies, are refused, cut off and frozen, for as long as it takes. Whatever was acknowledged is completed, by one
attempt at a time.

One seed is one history; ``SIM_SEEDS=17`` or ``SIM_SEEDS=100-199`` chooses which are run, ``PROVE=1`` runs
a thousand.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.discovery import IndexMode
from qo.core.poll import Pace
from qo.core.task import RetryPolicy, Status, Task
from qo.errors import StoreError
from qo.queue.listing import pages
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import Options
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.retrying import Retrying
from qo.testing import virtual
from qo.worker.app import App
from qo.worker.context import Context
from qo.worker.signals import Reschedule, Retry
from qo.worker.worker import Worker, WorkerConfig
from stores import all_tasks

TASKS = 30
FAR_AHEAD_S = 30 * 86_400.0
GIVE_UP_S = 4 * 3600.0
QUICK = RetryPolicy(initial_interval_ms=200, max_interval_ms=5_000)


def seeds() -> Iterable[int]:
    chosen = os.environ.get("SIM_SEEDS")
    if chosen is None:
        return range(1000 if os.environ.get("PROVE") else 60)
    first, _, last = chosen.partition("-")
    return range(int(first), int(last or first) + 1)


@dataclass
class World:
    """One seed's queue, and everybody who uses it, each over an unreliable line of their own."""

    seed: int
    rng: random.Random = field(init=False)
    truth: MemoryStore = field(init=False)
    acknowledged: set[str] = field(default_factory=set)
    attempts: list[tuple[str, int]] = field(default_factory=list)  # Of each handler that was started.

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.truth = MemoryStore(clock=virtual.wall_clock)
        self.prefix_len = self.rng.choice([1, 1, 2, 3])
        self.retrying = self.rng.random() < 0.7
        self.worst = self.rng.choice([0.01, 0.05, 0.15])  # How likely each kind of fault is.

    def ambient(self) -> Ambient:
        return Ambient.seeded(self.rng.getrandbits(64), virtual.monotonic)

    def plain_queue(self) -> Queue:
        return Queue(self.truth, prefix_len=self.prefix_len, ambient=self.ambient())

    def queue(self, *, outages: int) -> Queue:
        """As one process sees it: with faults of its own, and away for a while now and then."""
        rng, ambient = self.rng, self.ambient()
        starts = [rng.uniform(0, 100) for _ in range(outages)]
        plan = FaultPlan(
            refused=rng.uniform(0, self.worst),
            lost_reply=rng.uniform(0, self.worst),
            conflict=rng.uniform(0, self.worst),
            own_412=rng.uniform(0, self.worst),
            latency_s=rng.choice([(0.0, 0.0), (0.001, 0.05), (0.01, 1.0)]),
            outages_s=tuple((start, start + rng.uniform(1, 30)) for start in starts),
        )
        store = Faulty(self.truth, plan, ambient)
        line = Retrying(store, ambient=ambient) if self.retrying else store
        return Queue(line, prefix_len=self.prefix_len, ambient=ambient)

    def app(self) -> App:
        app, rng = App(), random.Random(self.seed + 1)

        @app.task("work")
        async def work(input: int, ctx: Context) -> dict[str, object]:
            self.attempts.append((ctx.task_id, ctx.attempt))
            await asyncio.sleep(rng.choice([0.0, 0.1, 1.0, 5.0, 15.0]))
            match rng.randrange(10):
                case 0:
                    raise RuntimeError("out of luck")
                case 1:
                    raise Retry("later", delay_s=0)
                case 2:
                    raise Reschedule(rng.uniform(0, 2))
                case _:
                    return {"input": input, "attempt": ctx.attempt}

        return app


async def submit_all(world: World) -> None:
    """Submit what is due now and what is due in a month; try again with a key where there was no answer."""
    queue, rng = world.queue(outages=1), world.rng
    for n in range(TASKS):
        await asyncio.sleep(rng.uniform(0, 1))
        options = Options(
            key=f"{n}" if n % 2 else None,
            delay_s=FAR_AHEAD_S if n % 6 == 5 else rng.choice([None, None, rng.uniform(0, 90)]),
            timeout_s=rng.choice([4.0, 10.0, 30.0]),
            max_retries=10_000,
            retry_policy=QUICK,
            priority=rng.choice([0, 0, 4]),
        )
        for _ in range(1000 if options.key else 1):
            try:
                task = await queue.submit("work", n, options)
            except StoreError:
                await asyncio.sleep(0.5)
            else:
                world.acknowledged.add(task.id)
                break
    await queue.hints.flush()


async def keep_working(world: World, name: str, over: asyncio.Event) -> None:
    """A worker that is started again when it fails, and now and then for no reason."""
    queue, rng, app = world.queue(outages=3), world.rng, world.app()
    config = WorkerConfig(
        worker_id=name,
        concurrency=rng.choice([1, 4]),
        index_mode=rng.choice(list(IndexMode)),
        ready_page_size=rng.choice([3, 100]),
        log_scan_page_size=rng.choice([5, 50]),
        pace=Pace(0.1, 2.0),
        heartbeat_s=rng.choice([1.0, 4.0]),
        shutdown_grace_s=rng.choice([0.0, 2.0]),
    )
    while not over.is_set():
        worker = Worker(queue, app, config)
        stop = asyncio.get_running_loop().call_later(rng.uniform(5, 120), worker.stop)
        with suppress(StoreError):
            await worker.run()
        stop.cancel()
        await asyncio.sleep(rng.uniform(0, 3))


async def keep_watching(world: World, over: asyncio.Event) -> None:
    queue = world.queue(outages=1)
    config = MonitorConfig(
        check_interval_s=world.rng.choice([2.0, 10.0]),
        sweep_interval_s=10.0,
        sweep_page_size=world.rng.choice([4, 100]),
    )
    await Monitor(queue, config).run(over)


async def unfinished(store: MemoryStore) -> bool:
    """Whether anything is left that is due within this simulation."""
    give_up_at = virtual.STARTED_AT + timedelta(seconds=GIVE_UP_S)
    return any(not task.ended and task.available_at < give_up_at for task in await all_tasks(store))


async def live(world: World) -> None:
    """Everybody at once, until all that is due has been done."""
    over = asyncio.Event()
    crowd = [keep_working(world, f"w{n}", over) for n in range(world.rng.choice([2, 3]))]
    crowd += [keep_watching(world, over) for _ in range(world.rng.choice([1, 2]))]
    running = [asyncio.create_task(each) for each in crowd]
    await submit_all(world)
    async with asyncio.timeout(GIVE_UP_S):
        while await unfinished(world.truth):  # noqa: ASYNC110 - looking costs no time here.
            await asyncio.sleep(5)
    over.set()
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await asyncio.sleep(5)  # Removals of hints that are still on their way.


async def check_tasks(world: World, queue: Queue) -> list[Task]:
    tasks = await all_tasks(world.truth)
    assert world.acknowledged <= {task.id for task in tasks}, "what was acknowledged is there"
    for task in tasks:
        check_history(await queue.history(task.id))
        far_ahead = (task.available_at - task.created_at).total_seconds() == FAR_AHEAD_S
        assert task.status is (Status.PENDING if far_ahead else Status.COMPLETED)
        if task.status is Status.COMPLETED:
            assert task.output == {"input": task.input, "attempt": task.attempt}, (
                "the last attempt's result stands"
            )
    assert len(world.attempts) == len(set(world.attempts)), "no attempt was begun twice"
    return tasks


def check_history(history: list[Task]) -> None:
    first, last = history[0], history[-1]
    assert (first.status, first.attempt) == (Status.PENDING, 0)
    assert sum(task.status is Status.COMPLETED for task in history) == last.ended
    for before, after in pairwise(history):
        assert before.token != after.token, "every version is another write"
        assert before.updated_at <= after.updated_at
        assert not before.ended, "what has ended stays ended"
        if after.status is Status.RUNNING and before.status is Status.RUNNING:
            assert (before.lease_id, before.attempt) == (after.lease_id, after.attempt), "renewed, not taken over"
        elif after.status is Status.RUNNING:
            assert after.attempt == before.attempt + 1, "each claim is the next attempt"
        else:
            assert before.status is Status.RUNNING, "only a claimed task comes back or ends"
            assert after.attempt == before.attempt
            if after.settled_lease_id != before.lease_id:
                assert before.lease_expires_at is not None
                assert after.updated_at >= before.lease_expires_at, "taken back only from who was late"


async def check_hints(queue: Queue, tasks: list[Task]) -> None:
    """After one undisturbed round of the sweeper every hint is right, and none is missing."""
    await queue.store.delete(keys.SWEEP)
    sweeper = Sweeper(queue, page_size=7)
    while not (await sweeper.sweep()).wrapped:
        pass
    found = {
        entry.key
        for prefix in (keys.READY, keys.LEASES)
        async for entries in pages(queue.store, prefix)
        for entry in entries
    }
    assert found == {key for task in tasks if (key := keys.index_key(task)) is not None}


async def simulate(seed: int) -> World:
    world = World(seed)
    await live(world)
    queue = world.plain_queue()
    tasks = await check_tasks(world, queue)
    await check_hints(queue, tasks)
    return world


@pytest.mark.parametrize("seed", seeds())
def test_whatever_goes_wrong_every_acknowledged_task_is_done_by_one_attempt_at_a_time(seed: int) -> None:
    virtual.run(simulate(seed))


def test_the_same_seed_is_the_same_history() -> None:
    first, second = (virtual.run(simulate(7)) for _ in range(2))
    assert first.attempts == second.attempts
    assert first.truth._kept == second.truth._kept
