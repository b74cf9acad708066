"""A worker's mailbox: pause, stop, children, and bursts of commands."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.core.task import Status, Task
from qo.errors import Refused
from qo.queue import control
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.api.context import Context
from qo.worker.api.producer import ProducerHandle
from qo.worker.loop.state import State
from qo.worker.worker import Worker
from support.stores.queues import AT_ONCE, app_of, config, drain, ended, until, virtual_queue, working
from support.worker.checked_worker import books, in_virtual_time

__all__ = ["books"]

pytestmark = pytest.mark.fast


P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


NEVER_S = 3600.0


async def statuses(queue: Queue, tasks: Iterable[Task]) -> list[Status]:
    return [(await queue.get(task.id)).status for task in tasks]


async def has_ended(queue: Queue, task_id: str) -> Task | None:
    task = await queue.get(task_id)
    return task if task.ended else None


async def true(value: object) -> bool:
    return bool(value)


@in_virtual_time
async def test_a_pause_in_mid_flight_finishes_what_runs_and_resuming_takes_the_rest() -> None:
    queue, begun = virtual_queue(), 0

    async def work(input: Any) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(10)

    tasks = await queue.submit_many([NewTask("work", n) for n in range(6)])
    async with working(queue, app_of(work), concurrency=2) as worker:
        await until(lambda: true(begun == 2))
        worker.pause()
        await asyncio.sleep(100)
        assert (worker.state, begun) == (State.PAUSED, 2)
        assert sorted(await statuses(queue, tasks)) == [C, C, P, P, P, P]
        worker.resume()
        for task in tasks:
            assert (await until(lambda task=task: has_ended(queue, task.id), within_s=60)).attempt == 1


@in_virtual_time
async def test_stop_drains_all_that_is_in_flight() -> None:
    queue, begun = virtual_queue(), 0

    async def work(input: float) -> float:
        nonlocal begun
        begun += 1
        await asyncio.sleep(input)
        return input

    tasks = await queue.submit_many([NewTask("work", 5.0 + n) for n in range(8)])
    worker = Worker(queue, app_of(work), config(concurrency=8, shutdown_grace_s=60))
    running = asyncio.create_task(worker.run())
    await until(lambda: true(begun == 8))
    worker.stop()
    stats = await running
    assert (stats.acked, stats.released, worker.state) == (8, 0, State.STOPPED)
    assert await statuses(queue, tasks) == [C] * 8


@in_virtual_time
async def test_the_cap_on_retries_holds_from_end_to_end() -> None:
    queue, ran = virtual_queue(), 0

    async def fails(input: Any) -> None:
        nonlocal ran
        ran += 1
        raise ValueError(f"attempt {ran}")

    task = await queue.submit("fails", options=Options(max_retries=3, retry_policy=AT_ONCE))
    async with working(queue, app_of(fails)) as worker:
        failed = await ended(queue, task.id)
        await asyncio.sleep(100)
    assert (failed.status, failed.attempt, failed.last_error) == (F, 4, "ValueError: attempt 4")
    assert (ran, worker.stats.retried, worker.stats.dead, worker.stats.terminal_failures) == (4, 3, 1, 1)


@in_virtual_time
async def test_a_producer_that_has_closed_refuses_and_leaves_what_is_pending_alone() -> None:
    queue = virtual_queue()
    kept: list[ProducerHandle] = []

    async def parent(input: Any, ctx: Context) -> None:
        await ctx.producer.enqueue_many([NewTask("child", n) for n in range(5)])
        kept.append(ctx.producer)

    async def child(input: Any) -> None: ...

    await queue.submit("parent")
    await drain(queue, app_of(parent))
    with pytest.raises(Refused):
        await kept[0].enqueue("child")
    assert (await drain(queue, app_of(child))).completed == 5


@pytest.mark.parametrize("how", ["paused", "stopped"])
@in_virtual_time
async def test_what_waits_in_an_inbox_is_given_back_at_once_by_a_pause_or_a_stop(how: str) -> None:
    queue = virtual_queue()
    begun: list[str] = []

    async def work(input: float, ctx: Context) -> None:
        begun.append(ctx.task_id)
        await asyncio.sleep(input)

    worker = Worker(queue, app_of(work), config(concurrency=1, inbox_capacity=1))
    running = asyncio.create_task(worker.run())
    for n in range(5):  # Quick ones, so that the worker claims ahead.
        await ended(queue, (await queue.submit("work", 0.01 * n)).id)
    slow = await queue.submit_many([NewTask("work", 1.7, Options(max_retries=0)) for _ in range(2)])
    await until(lambda: true(worker.snapshot().waiting == 1))
    (waits,) = (task for task in slow if task.id != begun[-1])
    asked = virtual.monotonic()
    if how == "paused":
        worker.pause()
    else:
        worker.stop()
    await until(lambda: true(worker.stats.released == 1))
    assert virtual.monotonic() - asked < 0.1
    given_back = await queue.get(waits.id)
    assert (given_back.status, given_back.retry_count, waits.id in begun) == (P, 0, False)
    worker.stop()
    assert (await running).acked == 6, "what ran was finished"


class Escape(BaseException):
    pass


@pytest.mark.parametrize("kind", [Escape, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@in_virtual_time
async def test_a_base_exception_in_a_handler_is_one_failure_and_frees_its_slot(
    kind: type[BaseException],
) -> None:
    queue = virtual_queue()

    async def breaks_out(input: Any) -> None:
        raise kind("out")

    async def works(input: Any) -> None: ...

    bad = await queue.submit("breaks_out", options=Options(max_retries=0))
    async with working(queue, app_of(breaks_out, works), concurrency=1) as worker:
        failed = await ended(queue, bad.id)
        good = await queue.submit("works")
        assert (await ended(queue, good.id)).status is C
    assert (failed.status, failed.attempt) == (F, 1)
    assert failed.last_error == f"{kind.__name__}: out"
    assert (worker.stats.claimed, worker.stats.dead, worker.stats.acked) == (2, 1, 1)
    assert worker.state is State.STOPPED


@pytest.mark.parametrize("kind", [Escape, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
async def test_so_it_is_on_a_thread(kind: type[BaseException]) -> None:
    queue = Queue(MemoryStore())

    def breaks_out(input: Any) -> None:
        raise kind("out")

    def works(input: Any) -> None: ...

    bad = await queue.submit("breaks_out", options=Options(max_retries=0))
    async with working(queue, app_of(breaks_out, works), concurrency=1, threads=1) as worker:
        failed = await ended(queue, bad.id)
        good = await queue.submit("works")
        assert (await ended(queue, good.id)).status is C
    assert (failed.status, failed.attempt) == (F, 1)
    assert (worker.stats.claimed, worker.stats.dead, worker.stats.acked) == (2, 1, 1)


@in_virtual_time
async def test_children_enqueued_just_before_a_stop_survive() -> None:
    queue = virtual_queue()
    children: list[Task] = []

    async def parent(input: Any, ctx: Context) -> None:
        children.extend([await ctx.submit("child", n) for n in range(50)])
        worker.stop()

    task = await queue.submit("parent")
    worker = Worker(queue, app_of(parent), config())
    stats = await worker.run()
    assert (await queue.get(task.id)).status is C
    assert await statuses(queue, children) == [P] * 50
    assert stats.enqueued == 50


@pytest.mark.parametrize("seed", range(10))
@in_virtual_time
async def test_no_parent_is_done_before_its_children_are_there_whenever_it_is_stopped(seed: int) -> None:
    ambient = Ambient.seeded(seed, virtual.monotonic)
    inner = MemoryStore(clock=virtual.wall_clock)
    slow = Queue(Faulty(inner, FaultPlan(latency_s=(0.01, 0.1)), ambient), ambient=ambient)
    queue = Queue(inner, ambient=ambient)

    async def parent(input: Any, ctx: Context) -> None:
        for n in range(10):
            await ctx.submit("child", n, Options(key=f"{ctx.task_id}/{n}"))

    tasks = await queue.submit_many([NewTask("parent", n) for n in range(4)])
    while P in await statuses(queue, tasks):
        worker = Worker(slow, app_of(parent), config(shutdown_grace_s=ambient.unit()))
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(1 + ambient.unit() * 3)
        worker.stop()
        await running
        done = (await statuses(queue, tasks)).count(C)
        assert len(await queue.list(task_type="child", limit=1000)) >= 10 * done
    assert len(await queue.list(task_type="child", limit=1000)) == 40


@in_virtual_time
async def test_a_handler_that_runs_may_enqueue_while_the_worker_drains() -> None:
    queue, begun = virtual_queue(), asyncio.Event()
    children: list[Task] = []

    async def parent(input: Any, ctx: Context) -> None:
        begun.set()
        while not ctx.draining:  # noqa: ASYNC110 - it is a flag.
            await asyncio.sleep(0.1)
        children.append(await ctx.submit("child"))

    task = await queue.submit("parent")
    async with working(queue, app_of(parent)):
        await begun.wait()
    assert (await queue.get(task.id)).status is C
    assert await statuses(queue, children) == [P]


@in_virtual_time
async def test_a_burst_of_control_commands_comes_to_the_last_one() -> None:
    queue = virtual_queue()

    async def work(input: Any) -> None: ...

    async with working(queue, app_of(work)) as worker:
        await worker.reached(State.RUNNING)
        for _ in range(500):
            worker.pause()
            worker.resume()
        assert (await ended(queue, (await queue.submit("work")).id)).status is C
        for _ in range(500):
            worker.resume()
            worker.pause()
        task = await queue.submit("work")
        await asyncio.sleep(60)
        assert (worker.state, (await queue.get(task.id)).status) == (State.PAUSED, P)
        worker.resume()
        assert (await ended(queue, task.id)).status is C


@in_virtual_time
async def test_a_burst_of_operators_wishes_comes_to_the_last_one() -> None:
    queue = virtual_queue()

    async def work(input: Any) -> None: ...

    async with working(queue, app_of(work), control_s=1) as worker:
        for _ in range(20):
            await control.pause(queue)
            await control.resume(queue)
        await asyncio.sleep(5)
        assert worker.state is State.RUNNING
        assert (await ended(queue, (await queue.submit("work")).id)).status is C


@in_virtual_time
async def test_a_worker_that_nobody_refers_to_any_more_works_on() -> None:
    queue = virtual_queue()

    async def work(input: Any) -> None:
        await asyncio.sleep(5)

    tasks = await queue.submit_many([NewTask("work", n) for n in range(3)])
    running = asyncio.create_task(Worker(queue, app_of(work), config(concurrency=1, control_s=1)).run())
    for task in tasks:
        gc.collect()
        assert (await ended(queue, task.id)).attempt == 1
    await control.drain(queue, "w")
    assert (await running).acked == 3


@in_virtual_time
async def test_a_run_that_is_cancelled_gives_back_what_it_holds() -> None:
    queue, begun = virtual_queue(), 0

    async def endless(input: Any) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(NEVER_S)

    tasks = await queue.submit_many([NewTask("endless", n) for n in range(3)])
    worker = Worker(queue, app_of(endless), config())
    running = asyncio.create_task(worker.run())
    await until(lambda: true(begun == 3))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (worker.state, worker.stats.released) == (State.STOPPED, 3)
    assert await statuses(queue, tasks) == [P] * 3
