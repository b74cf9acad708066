"""Whole queues: workers, monitors, schedulers and submitters that lose replies, are refused, cut off, stopped and
killed, for as long as it takes. Whatever was acknowledged is completed, by one attempt at a time; every planned run of
a schedule is submitted once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

from qo.ambient import Ambient
from qo.core import keys
from qo.core.discovery import IndexMode
from qo.core.poll import Pace
from qo.core.schedule import CatchUp, _between
from qo.core.task import RetryPolicy, Status, Task
from qo.errors import StoreError
from qo.queue.listing import pages
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import Options
from qo.queue.queue import Queue
from qo.queue.schedule_runner import Scheduler
from qo.queue.schedules import Schedules
from qo.queue.sweeper import Sweeper
from qo.store.faulty import FaultPlan
from qo.store.retrying import Retrying
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.api.signals import Reschedule, Retry
from qo.worker.worker import Worker, WorkerConfig
from simulation.engine.dispatching import draw_dispatch
from simulation.engine.faults import Faults
from simulation.engine.ledger import Ledger, planned
from simulation.engine.line import Line, Perils
from simulation.engine.machines import machines
from support.stores.queues import all_tasks

TASKS = 24
FRAGILE = range(0, TASKS, 4)  # These fail at the first failure, and a task follows.
FAR_AHEAD_S = 30 * 86_400.0
PLANNED_S = 150.0  # How long the schedule is there.
GIVE_UP_S = 4 * 3600.0
IN_INBOX_S_MAX = 1800.0  # Inboxes are listed every ten minutes at least, by somebody who may die meanwhile.
QUICK = RetryPolicy(initial_interval_ms=200, max_interval_ms=5_000)
LATENCIES = [(0.0, 0.0), (0.001, 0.05), (0.01, 1.0)]


class World:
    """One seed's queue, and everybody who uses it, each over an unreliable line of their own."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.rng = faults.stream("world")
        self.truth = Ledger(faults)
        self.prefix_len = self.rng.choice([1, 1, 2, 3])
        self.retrying = self.rng.random() < 0.7
        self.learns_time = self.rng.random() < 0.5
        self.worst = self.rng.choice([0.01, 0.05, 0.15])  # How likely each kind of fault is.
        self.stops = self.rng.choice(
            [0.0, 0.002, 0.01]
        )  # And how likely a request is a process's last for a while.
        self.dispatch = draw_dispatch(faults)
        self.acknowledged: set[str] = set()
        self.attempts: list[tuple[str, int]] = []  # Of each handler that was started.

    def plain_queue(self) -> Queue:
        return Queue(
            self.truth, prefix_len=self.prefix_len, ambient=Ambient.seeded(self.faults.seed, virtual.monotonic)
        )

    def queue(self, name: str, *, outages: int) -> Queue:
        """As one process sees it: with faults of its own, and away for a while now and then."""
        rng = self.faults.stream(f"queue {name}")
        began = virtual.monotonic()
        starts = [began + rng.uniform(0, 100) for _ in range(outages)]
        perils = Perils(
            FaultPlan(
                refused=rng.uniform(0, self.worst),
                lost_reply=rng.uniform(0, self.worst),
                conflict=rng.uniform(0, self.worst),
                own_412=rng.uniform(0, self.worst),
                latency_s=rng.choice(LATENCIES),
            ),
            crash=self.stops,
            pause=self.stops,
            outages_s=tuple((start, start + rng.uniform(1, 30)) for start in starts),
            learns_time=self.learns_time,
        )
        ambient = Ambient.seeded(rng.getrandbits(64), virtual.monotonic)
        line = Line(name, self.truth, perils, self.faults)
        return Queue(
            Retrying(line, ambient=ambient) if self.retrying else line,
            prefix_len=self.prefix_len,
            ambient=ambient,
            dispatch=self.dispatch.config,
        )

    def app(self, name: str) -> App:
        app, rng = App(), self.faults.stream(f"app {name}")

        @app.task("work")
        async def work(input: int, ctx: Context) -> dict[str, object]:
            if not machines().over:  # What a process that is being buried begins, nobody judges.
                machines().require_process(f"attempt {ctx.attempt} at {ctx.task_id}")
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

        @app.task("alert")
        async def alert(input: dict[str, object]) -> object:
            return input["task_id"]

        return app


async def submit_all(world: World) -> None:
    """Submit what is due now and what is due in a month, some after others, some in groups; try again with a key where
    there was no answer."""
    queue, rng = world.queue("submitter", outages=1), world.faults.stream("submitter")
    finite: list[str] = []  # What was submitted and will end within this simulation.
    for n in range(TASKS):
        await asyncio.sleep(rng.uniform(0, 1))
        options = Options(
            key=f"{n}" if n % 2 else None,
            delay_s=FAR_AHEAD_S if n % 6 == 5 else rng.choice([None, None, rng.uniform(0, 90)]),
            timeout_s=rng.choice([4.0, 10.0, 30.0]),
            max_retries=0 if n in FRAGILE else 10_000,
            max_deliveries=10_000,
            retry_policy=QUICK,
            priority=rng.choice([0, 0, 4]),
            on_failure="alert" if n in FRAGILE else None,
            depends_on=rng.sample(finite, min(len(finite), rng.choice([1, 3])))
            if n % 4 == 3 and n % 6 != 5
            else (),
            group=rng.choice(["g", "h"]) if n % 3 == 1 else None,
            on_dependency_failure="run",
        )
        for _ in range(1000 if options.key else 1):
            try:
                task = await queue.submit("work", n, options)
            except StoreError:
                await asyncio.sleep(0.5)
            else:
                world.acknowledged.add(task.id)
                if options.delay_s != FAR_AHEAD_S:
                    finite.append(task.id)
                break
    await queue.hints.flush()


async def keep(
    name: str, live: Callable[[str], Coroutine[Any, Any, Any]], rng: random.Random, over: asyncio.Event
) -> None:
    """A process that is started again whenever it ends, however that may be."""
    life = 0
    while not over.is_set():
        life += 1
        process = f"{name}-{life}"
        root = machines().spawn(process, live(process))
        if await machines().ended(process, root):
            with suppress(StoreError):
                root.result()
        await asyncio.sleep(rng.uniform(0, 3))


async def work(world: World, name: str) -> None:
    rng = world.faults.stream(f"worker {name}")
    config = WorkerConfig(
        worker_id=name,
        concurrency=rng.choice([1, 4]),
        index_mode=world.dispatch.index_mode(rng.choice(list(IndexMode))),
        dispatch=world.dispatch.draw_mode(name),
        ready_page_size=rng.choice([3, 100]),
        log_scan_page_size=rng.choice([5, 50]),
        pace=Pace(0.1, 2.0),
        heartbeat_s=rng.choice([1.0, 4.0]),
        shutdown_grace_s=rng.choice([0.0, 2.0]),
    )
    worker = Worker(world.queue(name, outages=1), world.app(name), config)
    stop = asyncio.get_running_loop().call_later(rng.uniform(5, 120), worker.stop)
    try:
        await worker.run()
    finally:
        stop.cancel()


async def watch(world: World, name: str) -> None:
    rng = world.faults.stream(f"monitor {name}")
    config = MonitorConfig(
        check_interval_s=rng.choice([2.0, 10.0]), sweep_interval_s=10.0, sweep_page_size=rng.choice([4, 100])
    )
    await Monitor(world.queue(name, outages=1), config).run(asyncio.Event())


async def plan(world: World, name: str) -> None:
    await Scheduler(world.queue(name, outages=1)).run(
        asyncio.Event(), interval_s=world.faults.stream(f"scheduler {name}").choice([3.0, 15.0])
    )


async def unfinished(store: Ledger) -> bool:
    """Whether anything is left that is due within this simulation."""
    give_up_at = virtual.STARTED_AT + timedelta(seconds=GIVE_UP_S)
    last = (history[-1] for history in store.histories.values())
    return any(task.follow_up_due or (not task.ended and task.available_at < give_up_at) for task in last)


def check_inboxes(store: Ledger) -> None:
    """No task stays in the inbox of one worker for long: it is claimed, or offered to all."""
    since = virtual.wall_clock() - timedelta(seconds=IN_INBOX_S_MAX)
    for key, history in store.histories.items():
        if history[-1].inbox is not None and history[-1].updated_at < since:
            store._say(key, f"it has been in the inbox of {history[-1].inbox} for half an hour")


async def live(world: World) -> None:
    """Everybody at once, until all that is due has been done."""
    over, rng = asyncio.Event(), world.rng
    schedules = Schedules(world.plain_queue())
    await schedules.create(
        "minutely", task_type="work", cron="* * * * *", input=-1, catch_up=CatchUp.ALL, max_retries=10_000
    )
    crowd = {
        **{f"w{n}": work for n in range(rng.choice([2, 3]))},
        **{f"m{n}": watch for n in range(rng.choice([1, 2]))},
        **{f"s{n}": plan for n in range(rng.choice([1, 2]))},
    }
    keeping = [
        asyncio.create_task(
            keep(name, lambda process, act=act: act(world, process), world.faults.stream(f"keep {name}"), over)
        )
        for name, act in crowd.items()
    ]
    await submit_all(world)
    async with asyncio.timeout(GIVE_UP_S):
        while virtual.monotonic() < PLANNED_S or not await all_planned(world) or await unfinished(world.truth):
            check_inboxes(world.truth)
            world.truth.check()
            await asyncio.sleep(5)
    over.set()
    for each in keeping:
        each.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)
    await machines().bury()


async def all_planned(world: World) -> bool:
    """Whether every run of the schedule within its time was submitted."""
    schedule = world.truth.schedules[keys.schedule("minutely")]
    until = schedule.active_since + timedelta(seconds=PLANNED_S)
    there = {history[-1].id for history in world.truth.histories.values()}
    runs = {planned(schedule, instant) for instant in _between(schedule, schedule.active_since, until)}
    if not runs <= there:
        return False
    if schedule.enabled:
        await Schedules(world.plain_queue()).disable("minutely")
    return True


async def check_tasks(world: World, queue: Queue) -> list[Task]:
    world.truth.check()
    tasks = await all_tasks(world.truth)
    assert world.acknowledged <= {task.id for task in tasks}, "what was acknowledged is there"
    check_followers(tasks)
    for task in tasks:
        assert await queue.history(task.id) == world.truth.histories[queue.tasks.key(task.id)], (
            "its history is what was written"
        )
        far_ahead = (task.available_at - task.created_at).total_seconds() == FAR_AHEAD_S
        crashed = task.schedule is not None and task.deliveries == task.max_deliveries
        if task.on_failure is not None or task.task_type == "alert":
            continue
        assert task.status is (Status.PENDING if far_ahead else Status.FAILED if crashed else Status.COMPLETED), (
            task
        )
        if task.status is Status.COMPLETED:
            assert task.output == {"input": task.input, "attempt": task.attempt}, (
                "the last attempt's result stands"
            )
    assert len(world.attempts) == len(set(world.attempts)), "no attempt was begun twice"
    scheduled = [task.idempotency_key for task in tasks if task.schedule]
    assert len(scheduled) == len({*scheduled}), "a run was submitted twice"
    return tasks


def check_followers(tasks: list[Task]) -> None:
    """Every task that failed for good and wanted it is followed by one task, and no other is."""
    failed = [(task.id, task.attempt) for task in tasks if task.status is Status.FAILED and task.on_failure]
    followers = [task for task in tasks if task.task_type == "alert"]
    about = [(task.input["task_id"], task.input["attempt"]) for task in followers]
    assert sorted(about) == sorted(failed), "each final failure is followed once"
    assert all(task.status is Status.COMPLETED for task in followers if task.deliveries < task.max_deliveries)


async def check_hints(queue: Queue, tasks: list[Task]) -> None:
    """After one undisturbed round of the sweeper every hint is right, and none is missing."""
    await queue.store.delete(keys.SWEEP)
    sweeper = Sweeper(queue, page_size=7)
    while not (await sweeper.sweep()).wrapped:
        pass
    found = {
        entry.key
        for prefix in (keys.READY, keys.LEASES, keys.WAITING, keys.INBOX)
        async for entries in pages(queue.store, prefix)
        for entry in entries
    }
    assert found == {key for task in tasks if (key := keys.index_key(task)) is not None}


async def simulate(faults: Faults) -> None:
    world = World(faults)
    await live(world)
    queue = world.plain_queue()
    await check_hints(queue, await check_tasks(world, queue))
