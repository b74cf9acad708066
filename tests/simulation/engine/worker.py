"""Workers that are paused, resumed, stopped, hurried, cancelled, cut off in the middle of a request, stopped past their
leases and killed, with small inboxes, tight limits and short leases.

At every step each worker's books add up, and no task is run by two handlers at a time. In the end everything that was
acknowledged has ended, once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Any

from qo.ambient import Ambient
from qo.core.control import Target
from qo.core.discovery import IndexMode
from qo.core.poll import Pace
from qo.core.task import RetryPolicy, Status, Task
from qo.errors import QoError, Refused, StoreError
from qo.queue import control
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import Options
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan
from qo.store.retrying import Retrying
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.api.handler import Rate
from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.config import WorkerConfig
from qo.worker.layers import ServiceOptions
from qo.worker.worker import Worker
from simulation.engine.dispatching import draw_dispatch
from simulation.engine.faults import Faults
from simulation.engine.ledger import Ledger
from simulation.engine.line import Line, Perils
from simulation.engine.machines import machines
from support.stores.queues import all_tasks
from support.worker.checked_worker import Books

TASKS = 24
GIVE_UP_S = 2 * 3600.0
QUICK = RetryPolicy(initial_interval_ms=200, max_interval_ms=2_000)
SHORT, LONG = [1.5, 4.0, 10.0], [30.0, 60.0]


class World:
    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        rng = self.rng = faults.stream("world")
        self.truth = Ledger(faults)
        self.books = Books()
        self.retrying = rng.random() < 0.5
        self.worst = rng.choice([0.0, 0.02, 0.1])  # How likely each kind of fault is.
        self.stops = rng.choice([0.0, 0.002, 0.01])
        self.learns_time = rng.random() < 0.4
        # A clock that is known to a second or so needs leases that are longer than that.
        self.leases_s = LONG if self.learns_time else SHORT
        self.dispatch = draw_dispatch(faults)
        self.acknowledged: set[str] = set()
        self.cancelled: set[str] = set()  # Those that somebody asked to cancel.
        self.stopped: set[str] = set()  # Those whose attempt was stopped for good at its worker.
        self.begun: list[tuple[str, int]] = []  # Task and attempt of each handler.
        self.running: dict[str, dict[int, str]] = {}  # By task and attempt: the process that it runs in.
        self.wrong: list[str] = []
        self.served: set[str] = set()  # The keys of the tasks that the workers were there for, to the end.

    def line(self, name: str) -> tuple[Line, Queue]:
        rng = self.faults.stream(f"line of {name}")
        perils = Perils(
            FaultPlan(
                refused=rng.uniform(0, self.worst),
                lost_reply=rng.uniform(0, self.worst),
                conflict=rng.uniform(0, self.worst),
                own_412=rng.uniform(0, self.worst),
                latency_s=rng.choice([(0.0, 0.0), (0.001, 0.05), (0.01, 0.5)]),
            ),
            crash=self.stops,
            pause=self.stops,
            pause_s=(0.1, 90.0),
            learns_time=self.learns_time,
        )
        line = Line(name, self.truth, perils, self.faults)
        ambient = Ambient.seeded(rng.getrandbits(64), virtual.monotonic)
        store = Retrying(line, ambient=ambient) if self.retrying else line
        return line, Queue(store, ambient=ambient, dispatch=self.dispatch.config)

    def plain(self) -> Queue:
        return Queue(self.truth, ambient=Ambient.seeded(self.faults.seed, virtual.monotonic))

    @contextmanager
    def alone(self, ctx: Context) -> Generator[None]:
        """Whoever begins a task must find it alone: a handler is stopped before its lease ends.

        One whose process is stopped just then cannot be: it ends as soon as its process goes on.
        """
        loop = machines()
        if loop.over:  # Its process is being buried.
            yield
            return
        process = loop.require_process(f"attempt {ctx.attempt} at {ctx.task_id}")
        if process != ctx.worker_id:
            loop.refuse(f"attempt {ctx.attempt} at {ctx.task_id} of {ctx.worker_id} runs in {process}")
        self.begun.append((ctx.task_id, ctx.attempt))
        beside = self.running.setdefault(ctx.task_id, {})
        for attempt, where in beside.items():
            if not loop.stopped(where):
                self.wrong.append(
                    f"{virtual.monotonic():.3f}: {ctx.task_id} begins attempt {ctx.attempt} beside {attempt}"
                )
        beside[ctx.attempt] = process
        try:
            yield
        finally:
            beside.pop(ctx.attempt, None)

    def app(self, name: str) -> App:
        app, rng = App(), self.faults.stream(f"app {name}")

        async def work(input: int, ctx: Context) -> dict[str, Any]:
            with self.alone(ctx):
                await asyncio.sleep(rng.choice([0.0, 0.05, 0.3, 3.0, 12.0]))
                child = None
                match rng.randrange(10) if input % 8 else -1:
                    case -1:
                        raise Reject("no use")
                    case 0:
                        raise RuntimeError("out of luck")
                    case 1:
                        raise Retry("later", delay_s=0)
                    case 2:
                        raise Reschedule(rng.uniform(0, 2))
                    case 3 if input < TASKS:
                        options = Options(key=ctx.task_id, max_retries=50)
                        child = (await ctx.submit("work", TASKS + input, options)).id
                    case _:
                        pass
                return {"input": input, "attempt": ctx.attempt, "child": child}

        @app.task("many", batch=rng.choice([2, 5]), batch_wait_s=rng.choice([0.0, 0.5]), concurrency=2)
        async def many(items: list[tuple[int, Context]]) -> list[Any]:
            with ExitStack() as stack:
                for _, ctx in items:
                    stack.enter_context(self.alone(ctx))
                await asyncio.sleep(rng.choice([0.0, 0.05, 3.0]))
                if rng.randrange(10) == 0:
                    raise RuntimeError("all of them")
                return [
                    {"input": input, "attempt": ctx.attempt, "child": None} if input % 8 else Reject("no use")
                    for input, ctx in items
                ]

        app.task("work")(work)
        app.task("limited", concurrency=rng.choice([1, 2]), rate=rng.choice([None, Rate(2, 1.0)]))(work)
        return app

    def config(self, name: str) -> WorkerConfig:
        rng = self.faults.stream(f"config {name}")
        return WorkerConfig(
            worker_id=name,
            concurrency=rng.choice([1, 2, 4]),
            inbox_capacity=rng.choice([0, 1, 3]),
            index_mode=self.dispatch.index_mode(rng.choice(list(IndexMode))),
            dispatch=self.dispatch.draw_mode(name),
            ready_page_size=rng.choice([3, 100]),
            pace=Pace(0.1, 2.0),
            lease_s=rng.choice(self.leases_s),
            service=ServiceOptions(
                load_shed=rng.random() < 0.8,
                buffer=rng.choice([1, 128]),
                timeout_s=rng.choice([5.0, None]),
                concurrency_limit=rng.choice([None, 1, 3]),
            ),
            producer_buffer=rng.choice([1, 128]),
            result_buffer=rng.choice([1, 128]),
            heartbeat_s=rng.choice([2.0, 10.0]),
            control_s=rng.choice([0.5, 3.0]),
            shutdown_grace_s=rng.choice([0.0, 1.0, 20.0]),
            cancel_grace_s=rng.choice([0.5, 3.0]),
        )


async def submit_all(world: World) -> None:
    _, queue = world.line("submitter")
    rng = world.faults.stream("submitter")
    for n in range(TASKS):
        await asyncio.sleep(rng.uniform(0, 1))
        options = Options(
            key=f"{n}",
            delay_s=rng.choice([None, None, rng.uniform(0, 20)]),
            timeout_s=rng.choice([None, 2.0, 30.0]),
            max_retries=rng.choice([2, 50]),
            max_deliveries=rng.choice([2, 1000]),
            retry_policy=QUICK,
        )
        task_type = rng.choice(["work", "limited", "many"])
        for _ in range(1000):
            with suppress(StoreError):
                task = await queue.submit(task_type, n, options)
                world.acknowledged.add(task.id)
                break
            await asyncio.sleep(0.5)
    await queue.hints.flush()


async def disturb(world: World, name: str, worker: Worker, line: Line) -> None:
    """What can happen to a worker in its life."""
    rng = world.faults.stream(f"disturb {name}")
    for n in range(rng.randrange(12)):
        rest_s, what, for_s, times = rng.uniform(0, 6), rng.randrange(7), rng.uniform(0, 15), rng.randrange(40)
        await asyncio.sleep(rest_s)
        if not world.faults.strikes(f"{name}!{n}", DISTURBANCES[what]):
            continue
        chance = world.faults.stream(f"disturb {name}!{n}")
        match DISTURBANCES[what]:
            case "cut":
                line.cut()
                await asyncio.sleep(for_s)
                line.mend()
            case "outage":
                line.outage(True)
                await asyncio.sleep(for_s)
                line.outage(False)
            case "sigstop":
                machines().pause(name, for_s)
            case "cancel":
                machines().call_in(name, partial(cancel_one, world, worker, chance))
            case "to and fro":
                machines().call_in(name, partial(pause_and_resume, worker, chance, times))
            case order:
                machines().call_in(name, worker.pause if order == "pause" else worker.resume)


DISTURBANCES = ["pause", "resume", "cancel", "cut", "outage", "sigstop", "to and fro"]


def cancel_one(world: World, worker: Worker, rng: random.Random) -> None:
    if held := [hold.task.id for hold in worker._holds]:
        task_id = rng.choice(held)
        world.stopped.add(task_id)
        assert worker.cancel(task_id)


def pause_and_resume(worker: Worker, rng: random.Random, times: int) -> None:
    for _ in range(times):
        rng.choice([worker.pause, worker.resume])()
    worker.resume()


async def keep_working(world: World, name: str, over: asyncio.Event) -> None:
    """A worker that is started again whenever it ends, however that may be."""
    life, rng = 0, world.faults.stream(f"keep {name}")
    while not over.is_set():
        life += 1
        await one_life(world, f"{name}-{life}", rng)
        await asyncio.sleep(rng.uniform(0, 2))


def build_worker(world: World, process: str) -> tuple[Line, Worker]:
    line, queue = world.line(process)
    worker = Worker(queue, world.app(process), world.config(process))
    world.books.watch(worker)
    return line, worker


async def one_life(world: World, process: str, rng: random.Random) -> None:
    line, worker = machines().context(process).run(build_worker, world, process)
    end, patience_s, hurry_s = rng.randrange(5), rng.uniform(0, 40), rng.uniform(0, 2)
    root = machines().spawn(process, worker.run())
    await disturb(world, process, worker, line)
    machines().call_in(process, worker.resume)
    await asyncio.sleep(patience_s)
    if end == 0 and world.faults.strikes(f"{process}!x", "killed"):
        machines().kill(process)
    elif end == 1 and world.faults.strikes(f"{process}!c", "broken off"):
        machines().call_in(process, root.cancel)
    else:
        machines().call_in(process, worker.stop)
        if end == 2:
            await asyncio.sleep(hurry_s)
            machines().call_in(process, worker.hurry)
    if not await machines().ended(process, root):
        return
    with suppress(QoError, asyncio.CancelledError):
        root.result()
    if not worker.stats.held == len(worker._holds) == 0:
        world.wrong.append(f"{process} has ended and holds {len(worker._holds)}: {worker.stats}")


async def keep_operating(world: World, over: asyncio.Event) -> None:
    """Somebody who cancels, pauses and resumes."""
    queue, rng = world.plain(), world.faults.stream("operator")
    n = 0
    while not over.is_set():
        n += 1
        await asyncio.sleep(rng.uniform(0, 10))
        match rng.randrange(4):
            case 0 if world.faults.strikes(f"operator!{n}", "cancels"):
                for task_id in rng.sample(sorted(world.acknowledged), k=len(world.acknowledged) // 8):
                    with suppress(Refused):
                        await queue.cancel(task_id)
                        world.cancelled.add(task_id)
            case 1 if world.faults.strikes(f"operator!{n}", "pauses"):
                await control.pause(queue, rng.choice([Target(), Target(task_type="work")]))
                await asyncio.sleep(rng.uniform(0, 10))
                await control.resume_all(queue)
            case _:
                pass


async def keep_watching(world: World, over: asyncio.Event) -> None:
    life, rng = 0, world.faults.stream("monitor")
    config = MonitorConfig(check_interval_s=rng.choice([0.5, 3.0]), sweep_interval_s=10.0)

    async def watch(process: str) -> None:
        _, queue = world.line(process)
        await Monitor(queue, config).run(over)

    while not over.is_set():
        life += 1
        root = machines().spawn(f"m-{life}", watch(f"m-{life}"))
        await machines().ended(f"m-{life}", root)


async def live(world: World) -> None:
    over = asyncio.Event()
    crowd = [keep_working(world, f"w{n}", over) for n in range(world.rng.choice([2, 3]))]
    crowd += [keep_watching(world, over), keep_operating(world, over)]
    running = [asyncio.create_task(each) for each in crowd]
    await submit_all(world)
    async with asyncio.timeout(GIVE_UP_S):
        while not all(history[-1].ended for history in world.truth.histories.values()):
            world.truth.check()
            assert world.wrong == [], world.wrong
            await asyncio.sleep(2)
        world.served = {*world.truth.histories}
        over.set()
        await asyncio.gather(*running)
    check_processes(world)
    await machines().bury()


def check_processes(world: World) -> None:
    """Before the dead are buried: what they hold, they held when they died, and nobody is to judge them by it."""
    assert world.wrong == []
    world.books.close()
    left = {
        task: beside for task, beside in world.running.items() if not all(map(machines().stopped, beside.values()))
    }
    assert left == {}, f"handlers run on: {left}"
    check_counts(
        world, Counter(status for history in world.truth.histories.values() for status in reports(history))
    )


def reports(history: list[Task]) -> list[Status]:
    """What the task became each time that somebody who held it said how it went."""
    settled = (
        after for before, after in pairwise(history) if after.settled_lease_id == before.lease_id is not None
    )
    return [after.status for after in settled]


def check_counts(world: World, reported: Counter[Status]) -> None:
    """What a worker counts as reported is in the store. The other way round, it may have died before it counted."""
    counted = [worker.stats for worker in world.books.workers]
    assert sum(stats.acked for stats in counted) <= reported[Status.COMPLETED], "more are counted as done than are"
    # Which of these it was may look different by the time the worker learns that its report came through.
    counted_reports = sum(stats.acked + stats.retried + stats.dead + stats.released for stats in counted)
    assert counted_reports <= reported.total(), "more reports are counted than were written"
    assert sum(stats.started for stats in counted) >= len(world.begun), "a handler began that nobody counted"


async def check(world: World) -> None:
    queue = world.plain()
    world.truth.check()
    tasks = {task.id: task for task in await all_tasks(world.truth)}
    assert world.acknowledged <= {*tasks}, "what was acknowledged is there"
    for task in tasks.values():
        history = await queue.history(task.id)
        assert history == world.truth.histories[queue.tasks.key(task.id)], "its history is what was written"
        if queue.tasks.key(task.id) not in world.served:
            # A process that was stopped in the middle of submitting it went on when all others had ended.
            assert task.input >= TASKS, "only handlers submit that late"
            continue
        assert sum(each.ended for each in history) == 1, "it ended once"
        check_end(world, task, tasks)
    assert len(world.begun) == len({*world.begun}), "no attempt was begun twice"


def check_end(world: World, task: Task, tasks: dict[str, Task]) -> None:
    match task.status:
        case Status.COMPLETED:
            assert (task.output["input"], task.output["attempt"]) == (task.input, task.attempt)
            assert task.output["child"] is None or task.output["child"] in tasks, "children come first"
            assert task.input % 8, "what was rejected is never done"
        case Status.CANCELLED:
            assert task.id in world.cancelled | world.stopped
        case Status.FAILED:
            assert task.last_error
            lenient = task.max_retries == 50 and task.max_deliveries == 1000
            assert task.input % 8 == 0 or not lenient or task.id in world.stopped, task.last_error
        case _:
            raise AssertionError(f"{task.id} is left {task.status}")


async def simulate(faults: Faults) -> None:
    world = World(faults)
    await live(world)
    await check(world)
