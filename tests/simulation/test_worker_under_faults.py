"""Workers in virtual time, under faults drawn from a seed: paused, resumed, stopped, hurried, cancelled, cut off in the
middle of a request and killed, with small inboxes, tight limits and short leases.

At every step each worker's books add up, and no task is run by two handlers at a time. In the end everything that was
acknowledged has ended, once.

Seeds are chosen as in ``test_queue_under_faults.py``: ``SIM_SEEDS=17`` or ``SIM_SEEDS=100-199``; ``PROVE=1`` runs
a thousand.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from qo.ambient import Ambient
from qo.core.control import Target
from qo.core.discovery import IndexMode
from qo.core.poll import Pace
from qo.core.task import RetryPolicy, Status, Task
from qo.errors import QoError, Refused, StoreError, Unavailable
from qo.queue import control
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import Options
from qo.queue.queue import Queue
from qo.store.faulty import Fault, FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.retrying import Retrying
from qo.testing import virtual
from qo.worker.app import App
from qo.worker.config import WorkerConfig
from qo.worker.context import Context
from qo.worker.handler import Rate
from qo.worker.layers import ServiceOptions
from qo.worker.signals import Reject, Reschedule, Retry
from qo.worker.worker import Worker
from stores import all_tasks
from watched import Books

T = TypeVar("T")

TASKS = 24
GIVE_UP_S = 2 * 3600.0
QUICK = RetryPolicy(initial_interval_ms=200, max_interval_ms=2_000)


def seeds() -> Iterable[int]:
    chosen = os.environ.get("SIM_SEEDS")
    if chosen is None:
        return range(1000 if os.environ.get("PROVE") else 60)
    first, _, last = chosen.partition("-")
    return range(int(first), int(last or first) + 1)


class Line(Faulty):
    """One process's way to the store. It can be cut: then requests hang, wherever they are just then."""

    _open: asyncio.Event | None = None
    _gone = False

    def cut(self) -> None:
        self._open = asyncio.Event()

    def mend(self, *, gone: bool = False) -> None:
        """Let what hangs go on; or, if the process is gone, fail without having done anything."""
        self._gone = gone
        if self._open is not None:
            self._open.set()
            self._open = None

    async def _passes(self) -> None:
        while self._open is not None:
            await self._open.wait()
        if self._gone:
            raise Unavailable("this process is gone")

    async def _suffer(
        self, what: str, act: Callable[[], Awaitable[T]], possible: Sequence[Fault] = tuple(Fault)[:2]
    ) -> T:
        async def reached() -> T:
            await self._passes()
            return await act()

        await self._passes()
        try:
            answer = await super()._suffer(what, reached, possible)
        except QoError:
            await self._passes()
            raise
        await self._passes()
        return answer


@dataclass
class World:
    seed: int
    rng: random.Random = field(init=False)
    truth: MemoryStore = field(init=False)
    books: Books = field(default_factory=Books)
    acknowledged: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)  # Those that somebody asked to cancel.
    stopped: set[str] = field(default_factory=set)  # Those whose attempt was stopped for good at its worker.
    begun: list[tuple[str, int]] = field(default_factory=list)  # Task and attempt of each handler.
    running: dict[str, int] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    abandoned: list[asyncio.Task[Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.truth = MemoryStore(clock=virtual.wall_clock)
        self.retrying = self.rng.random() < 0.5
        self.worst = self.rng.choice([0.0, 0.02, 0.1])  # How likely each kind of fault is.

    def ambient(self) -> Ambient:
        return Ambient.seeded(self.rng.getrandbits(64), virtual.monotonic)

    def line(self) -> tuple[Line, Queue]:
        rng, ambient = self.rng, self.ambient()
        plan = FaultPlan(
            refused=rng.uniform(0, self.worst),
            lost_reply=rng.uniform(0, self.worst),
            conflict=rng.uniform(0, self.worst),
            own_412=rng.uniform(0, self.worst),
            latency_s=rng.choice([(0.0, 0.0), (0.001, 0.05), (0.01, 0.5)]),
        )
        line = Line(self.truth, plan, ambient)
        self.lines.append(line)
        store = Retrying(line, ambient=ambient) if self.retrying else line
        return line, Queue(store, ambient=ambient)

    def plain(self) -> Queue:
        return Queue(self.truth, ambient=self.ambient())

    @contextmanager
    def alone(self, ctx: Context) -> Generator[None]:
        """Whoever begins a task must find it alone: a handler is stopped before its lease ends."""
        task_id = ctx.task_id
        self.begun.append((task_id, ctx.attempt))
        if self.running.get(task_id):
            self.wrong.append(f"{virtual.monotonic():.3f}: {task_id} begins attempt {ctx.attempt} beside another")
        self.running[task_id] = self.running.get(task_id, 0) + 1
        try:
            yield
        finally:
            self.running[task_id] -= 1

    def app(self) -> App:
        app, rng = App(), self.rng

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
                        child = (
                            await ctx.submit("work", TASKS + input, Options(key=ctx.task_id, max_retries=50))
                        ).id
                    case _:
                        pass
                return {"input": input, "attempt": ctx.attempt, "child": child}

        app.task("work")(work)
        app.task("limited", concurrency=rng.choice([1, 2]), rate=rng.choice([None, Rate(2, 1.0)]))(work)
        return app

    def config(self, name: str) -> WorkerConfig:
        rng = self.rng
        return WorkerConfig(
            worker_id=name,
            concurrency=rng.choice([1, 2, 4]),
            inbox_capacity=rng.choice([0, 1, 3]),
            index_mode=rng.choice(list(IndexMode)),
            ready_page_size=rng.choice([3, 100]),
            pace=Pace(0.1, 2.0),
            lease_s=rng.choice([1.5, 4.0, 10.0]),
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
    _, queue = world.line()
    for n in range(TASKS):
        await asyncio.sleep(world.rng.uniform(0, 1))
        options = Options(
            key=f"{n}",
            delay_s=world.rng.choice([None, None, world.rng.uniform(0, 20)]),
            timeout_s=world.rng.choice([None, 2.0, 30.0]),
            max_retries=world.rng.choice([2, 50]),
            max_deliveries=world.rng.choice([2, 1000]),
            retry_policy=QUICK,
        )
        for _ in range(1000):
            with suppress(StoreError):
                task = await queue.submit(world.rng.choice(["work", "limited"]), n, options)
                world.acknowledged.add(task.id)
                break
            await asyncio.sleep(0.5)
    await queue.hints.flush()


async def disturb(world: World, worker: Worker, line: Line) -> None:
    """What can happen to a worker in its life."""
    rng = world.rng
    for _ in range(rng.randrange(12)):
        await asyncio.sleep(rng.uniform(0, 6))
        match rng.randrange(6):
            case 0:
                worker.pause()
            case 1:
                worker.resume()
            case 2 if held := [hold.task.id for hold in worker._held]:
                task_id = rng.choice(held)
                world.stopped.add(task_id)
                assert worker.cancel(task_id)
            case 3:
                line.cut()
                await asyncio.sleep(rng.uniform(0, 15))
                line.mend()
            case 4:
                line.outage(True)
                await asyncio.sleep(rng.uniform(0, 15))
                line.outage(False)
            case _:
                for _ in range(rng.randrange(40)):
                    rng.choice([worker.pause, worker.resume])()
                worker.resume()


async def keep_working(world: World, name: str, over: asyncio.Event) -> None:
    """A worker that is started again whenever it ends, however that may be."""
    rng = world.rng
    while not over.is_set():
        line, queue = world.line()
        worker = Worker(queue, world.app(), world.config(name))
        world.books.watch(worker)
        running = asyncio.create_task(worker.run())
        await disturb(world, worker, line)
        worker.resume()
        await asyncio.sleep(rng.uniform(0, 40))
        match rng.randrange(5):
            case 0:
                line.cut()  # Killed: nothing of it reaches the store any more.
                world.abandoned.append(running)
                continue
            case 1:
                running.cancel()
            case 2:
                worker.stop()
                await asyncio.sleep(rng.uniform(0, 2))
                worker.hurry()
            case _:
                worker.stop()
        with suppress(QoError, asyncio.CancelledError):
            await running
        if not worker.stats.held == len(worker._held) == 0:
            world.wrong.append(f"{name} has ended and holds {len(worker._held)}: {worker.stats}")
        await asyncio.sleep(rng.uniform(0, 2))


async def keep_operating(world: World, over: asyncio.Event) -> None:
    """Somebody who cancels, pauses and resumes."""
    queue, rng = world.plain(), world.rng
    while not over.is_set():
        await asyncio.sleep(rng.uniform(0, 10))
        match rng.randrange(4):
            case 0:
                for task_id in rng.sample(sorted(world.acknowledged), k=len(world.acknowledged) // 8):
                    with suppress(Refused):
                        await queue.cancel(task_id)
                        world.cancelled.add(task_id)
            case 1:
                await control.pause(queue, rng.choice([Target(), Target(task_type="work")]))
                await asyncio.sleep(rng.uniform(0, 10))
                await control.resume_all(queue)
            case _:
                pass


async def keep_watching(world: World, over: asyncio.Event) -> None:
    _, queue = world.line()
    config = MonitorConfig(check_interval_s=world.rng.choice([0.5, 3.0]), sweep_interval_s=10.0)
    await Monitor(queue, config).run(over)


async def live(world: World) -> None:
    over = asyncio.Event()
    crowd = [keep_working(world, f"w{n}", over) for n in range(world.rng.choice([2, 3]))]
    crowd += [keep_watching(world, over), keep_operating(world, over)]
    running = [asyncio.create_task(each) for each in crowd]
    await submit_all(world)
    async with asyncio.timeout(GIVE_UP_S):
        while not all(task.ended for task in await all_tasks(world.truth)):  # noqa: ASYNC110 - looking costs no time.
            await asyncio.sleep(2)
        over.set()
        await asyncio.gather(*running)
        for line in world.lines:
            line.mend(gone=True)
        for each in world.abandoned:
            each.cancel()
        await asyncio.gather(*world.abandoned, return_exceptions=True)


def check_history(history: list[Task]) -> None:
    assert (history[0].status, history[0].attempt) == (Status.PENDING, 0)
    assert sum(task.ended for task in history) == 1, "it ended once"
    for before, after in pairwise(history):
        assert before.token != after.token, "every version is another write"
        assert before.updated_at <= after.updated_at
        assert not before.ended, "what has ended stays ended"
        assert before.attempt <= after.attempt <= before.attempt + 1
        if after.attempt > before.attempt:
            assert (before.status, after.status) == (Status.PENDING, Status.RUNNING), "only a claim is an attempt"
        elif after.status is Status.RUNNING:
            assert before.lease_id == after.lease_id, "renewed or asked to stop, not taken over"
        elif before.status is Status.RUNNING and after.settled_lease_id != before.lease_id:
            assert before.lease_expires_at is not None
            assert after.updated_at >= before.lease_expires_at, "taken back only from who was late"


def reports(history: list[Task]) -> list[Status]:
    """What the task became each time that somebody who held it said how it went."""
    settled = (
        after for before, after in pairwise(history) if after.settled_lease_id == before.lease_id is not None
    )
    return [after.status for after in settled]


def check_counts(world: World, reported: Counter[Status]) -> None:
    """What a worker counts as reported is in the store. The other way round, it may have died before it counted."""
    counted = [worker.stats for worker in world.books.workers]
    assert sum(stats.acked for stats in counted) <= reported[Status.COMPLETED]
    # Which of these it was may look different by the time the worker learns that its report came through.
    assert sum(stats.acked + stats.retried + stats.dead + stats.released for stats in counted) <= reported.total()
    assert sum(stats.started for stats in counted) >= len(world.begun)


async def check(world: World) -> None:
    queue = world.plain()
    tasks = {task.id: task for task in await all_tasks(world.truth)}
    assert world.acknowledged <= {*tasks}, "what was acknowledged is there"
    reported: Counter[Status] = Counter()
    for task in tasks.values():
        history = await queue.history(task.id)
        check_history(history)
        reported.update(reports(history))
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
    assert world.wrong == []
    check_counts(world, reported)
    assert len(world.begun) == len({*world.begun}), "no attempt was begun twice"
    assert not any(world.running.values()), "no handler runs on"
    world.books.close()


async def simulate(seed: int) -> World:
    world = World(seed)
    await live(world)
    await check(world)
    return world


@pytest.mark.parametrize("seed", seeds())
def test_whatever_happens_to_workers_each_claim_has_one_outcome_and_each_task_one_handler_at_a_time(
    seed: int,
) -> None:
    virtual.run(simulate(seed))


def test_the_same_seed_is_the_same_history() -> None:
    first, second = (virtual.run(simulate(3)) for _ in range(2))
    assert first.begun == second.begun
    assert first.truth._kept == second.truth._kept
