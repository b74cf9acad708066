"""What runtimes of this shape get wrong, one promise after the other: none of it goes wrong here.

The numbers are those of a list of such faults. After every step of every worker its books are checked (25).
Crash loops (14) and signals (19) need whole processes, see ``test_worker_processes.py``; what needs real time or real
stores is in ``test_mailbox_stores.py``.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.discovery import UnknownTypes
from qo.core.poll import Pace
from qo.core.task import RetryPolicy, Status, Task
from qo.errors import QoError, Refused, Unavailable
from qo.queue import control
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.port import Written
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.api.producer import ProducerHandle
from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.layers import ServiceOptions
from qo.worker.loop.state import State
from qo.worker.worker import Worker
from support.stores.queues import AT_ONCE, app_of, claimed, config, drain, ended, until, virtual_queue, working
from support.worker.checked_worker import Books, books, in_virtual_time, moody_queue

__all__ = ["books"]

pytestmark = pytest.mark.fast

P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED
NEVER_S = 3600.0


async def statuses(queue: Queue, tasks: Iterable[Task]) -> list[Status]:
    return [(await queue.get(task.id)).status for task in tasks]


async def renewals(queue: Queue, task_id: str) -> list[datetime]:
    """When the lease of a task was prolonged."""
    found = pairwise(await queue.history(task_id))
    return [after.updated_at for before, after in found if before.lease_id == after.lease_id is not None]


async def has_ended(queue: Queue, task_id: str) -> Task | None:
    task = await queue.get(task_id)
    return task if task.ended else None


async def true(value: object) -> bool:
    return bool(value)


# What upstream knew to be untested


@in_virtual_time
async def test_00a_a_pause_in_mid_flight_finishes_what_runs_and_resuming_takes_the_rest() -> None:
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
async def test_00b_stop_drains_all_that_is_in_flight() -> None:
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
async def test_00c_the_cap_on_retries_holds_from_end_to_end() -> None:
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
async def test_00d_a_producer_that_has_closed_refuses_and_leaves_what_is_pending_alone() -> None:
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
async def test_00e_what_waits_in_an_inbox_is_given_back_at_once_by_a_pause_or_a_stop(how: str) -> None:
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


# 1 to 5: handlers that break out, children, and control


class Escape(BaseException):
    pass


@pytest.mark.parametrize("kind", [Escape, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@in_virtual_time
async def test_01a_a_base_exception_in_a_handler_is_one_failure_and_frees_its_slot(
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
async def test_01b_so_it_is_on_a_thread(kind: type[BaseException]) -> None:
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
async def test_02a_children_enqueued_just_before_a_stop_survive() -> None:
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
async def test_02b_no_parent_is_done_before_its_children_are_there_whenever_it_is_stopped(seed: int) -> None:
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
async def test_03_a_handler_that_runs_may_enqueue_while_the_worker_drains() -> None:
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
async def test_04a_a_burst_of_control_commands_comes_to_the_last_one() -> None:
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
async def test_04b_a_burst_of_operators_wishes_comes_to_the_last_one() -> None:
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
async def test_05a_a_worker_that_nobody_refers_to_any_more_works_on() -> None:
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
async def test_05b_a_run_that_is_cancelled_gives_back_what_it_holds() -> None:
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


# 6 to 10: a store that fails, is slow, or is flooded


def failing(times: int, status: Status, message: str = "503") -> Any:
    """A mood: so many times, no task can be written that has this status."""
    left = [times]

    def mood(verb: str, key: str, body: bytes) -> None:
        if (
            verb == "put"
            and key.startswith(keys.TASKS)
            and wire.decode_task(body, key).status is status
            and left[0]
        ):
            left[0] -= 1
            raise Unavailable(message)

    return mood


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["done", "failed", "rejected", "put off"])
@in_virtual_time
async def test_06a_a_report_that_the_store_does_not_take_is_repeated(when: str, how: str) -> None:
    """Also when it was taken, and only the reply was lost."""
    store, queue = moody_queue()
    ran = 0

    async def work(input: Any) -> str:
        nonlocal ran
        ran += 1
        match how:
            case "failed" if ran == 1:
                raise ValueError
            case "rejected":
                raise Reject("no use")
            case "put off" if ran == 1:
                raise Reschedule(1)
            case _:
                return "done"

    task = await queue.submit("work", options=Options(retry_policy=AT_ONCE))
    status = {"done": C, "rejected": F}.get(how, P)
    setattr(store, when, failing(15, status))
    async with working(queue, app_of(work)) as worker:
        last = await ended(queue, task.id)
    assert last.status is (F if how == "rejected" else C)
    assert ran == last.attempt == (2 if status is P else 1)
    assert worker.stats.lost == 0
    assert (worker.stats.settle_retries > 0) is (when == "before"), "a write that came through is recognised"


@pytest.mark.parametrize(("times", "attempts"), [(4, 1), (8, 2)])
@in_virtual_time
async def test_06b_a_child_that_could_not_be_written_is_not_taken_for_written(times: int, attempts: int) -> None:
    """The write is repeated; where that is given up, the handler is told, fails, and is tried again."""
    store, queue = moody_queue()

    async def parent(input: Any, ctx: Context) -> str:
        return (await ctx.submit("child")).id

    task = await queue.submit("parent", options=Options(retry_policy=AT_ONCE))
    store.before = failing(times, P)
    async with working(queue, app_of(parent)):
        done = await ended(queue, task.id)
    assert (await queue.get(done.output)).status is P
    assert (done.status, done.attempt) == (C, attempts)


@pytest.mark.parametrize("times", [1, 3, 6, 20])
@pytest.mark.parametrize("when", ["before", "after"])
@in_virtual_time
async def test_07a_a_claim_that_half_failed_loses_no_task(when: str, times: int) -> None:
    """Whether it was written or not: what this worker has not got is taken back, at the latest when its lease ends."""
    store, queue = moody_queue()

    async def work(input: Any, ctx: Context) -> int:
        return ctx.attempt

    task = await queue.submit("work", options=Options(retry_policy=AT_ONCE))
    setattr(store, when, failing(times, R))
    over = asyncio.Event()
    monitor = asyncio.create_task(Monitor(queue, MonitorConfig(check_interval_s=5)).run(over))
    async with working(queue, app_of(work), lease_s=10) as worker:
        done = await until(lambda: has_ended(queue, task.id), within_s=300)
    over.set()
    await monitor
    assert (done.status, done.output, worker.stats.acked) == (C, done.attempt, 1)
    assert done.attempt <= 2


@in_virtual_time
async def test_07b_a_claim_whose_hint_could_not_be_written_is_run_all_the_same() -> None:
    store, queue = moody_queue()

    async def work(input: Any) -> None: ...

    def no_leases(verb: str, key: str, body: bytes) -> None:
        if verb == "put" and key.startswith(keys.LEASES):
            raise Unavailable("503")

    task = await queue.submit("work")
    store.before = no_leases
    stats = await drain(queue, app_of(work))
    done = await queue.get(task.id)
    assert (done.status, done.attempt, stats.lost) == (C, 1, 0)


@in_virtual_time
async def test_07d_a_task_whose_worker_died_as_it_claimed_is_run_by_one_that_saw_it_too_soon() -> None:
    """Only its old hint leads to it. Who sees that at once cannot know yet that nobody is about to remove it."""
    store, queue = moody_queue()

    async def work(input: Any, ctx: Context) -> int:
        return ctx.attempt

    def no_leases(verb: str, key: str, body: bytes) -> None:
        if verb == "put" and key.startswith(keys.LEASES):
            raise Unavailable("503")

    task = await queue.submit("work", options=Options(retry_policy=AT_ONCE))
    content, store.before = store.before, no_leases
    await claimed(queue, task.id, lease_s=1)
    store.before = content
    over = asyncio.Event()
    monitor = asyncio.create_task(Monitor(queue, MonitorConfig(check_interval_s=1, sweep_interval_s=0)).run(over))
    async with working(queue, app_of(work)):
        done = await until(lambda: has_ended(queue, task.id), within_s=30)
    over.set()
    await monitor
    assert (done.status, done.output) == (C, 2)


@in_virtual_time
async def test_07c_a_worker_that_was_stopped_while_it_claimed_gives_the_task_back() -> None:
    ambient = Ambient.seeded(1, virtual.monotonic)
    inner = MemoryStore(clock=virtual.wall_clock)
    slow = Queue(Faulty(inner, FaultPlan(latency_s=(1.0, 1.0)), ambient), ambient=ambient)
    queue, ran = Queue(inner, ambient=ambient), 0

    async def work(input: Any) -> None:
        nonlocal ran
        ran += 1

    task = await queue.submit("work")
    worker = Worker(slow, app_of(work), config(shutdown_grace_s=0, cancel_grace_s=10))
    running = asyncio.create_task(worker.run())
    await until(lambda: true(worker._mailbox.claiming))
    worker.stop()
    stats = await running
    assert ran == 0
    assert stats.claimed == stats.released
    assert ((await queue.get(task.id)).status, (await queue.get(task.id)).retry_count) == (P, 0)


class Crowd:
    """How many run at a time, seen over time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.spent_s: dict[int, float] = {}
        self._since = virtual.monotonic()

    def __enter__(self) -> None:
        self._move(1)

    def __exit__(self, *_: object) -> None:
        self._move(-1)

    def _move(self, by: int) -> None:
        at = virtual.monotonic()
        self.spent_s[self.now] = self.spent_s.get(self.now, 0.0) + at - self._since
        self._since, self.now = at, self.now + by
        self.most = max(self.most, self.now)

    def share(self, least: int) -> float:
        """Of all the time, how much saw at least so many."""
        return sum(s for count, s in self.spent_s.items() if count >= least) / sum(self.spent_s.values())


@pytest.mark.parametrize(
    "request_s", [pytest.param(0.01, marks=pytest.mark.long), 0.03, pytest.param(0.1, marks=pytest.mark.long)]
)
@in_virtual_time
async def test_08_a_slow_store_keeps_no_slot_empty(request_s: float) -> None:
    ambient = Ambient.seeded(1, virtual.monotonic)
    inner = MemoryStore(clock=virtual.wall_clock)
    slow = Queue(Faulty(inner, FaultPlan(latency_s=(request_s, request_s)), ambient), ambient=ambient)
    crowd: Crowd | None = None

    async def work(input: Any) -> None:
        nonlocal crowd
        crowd = crowd or Crowd()
        with crowd:
            await asyncio.sleep(0.3)

    tasks = await Queue(inner, ambient=ambient).submit_many([NewTask("work", n) for n in range(1500)])
    async with working(slow, app_of(work), concurrency=32, inbox_capacity=2, ready_page_size=1000):
        await until(lambda: true(crowd is not None), every_s=0.1)
        await until(lambda: _most_ended(slow.store, len(tasks)), within_s=600, every_s=1)
    assert crowd is not None
    assert crowd.most == 32
    assert crowd.share(30) > 0.9, crowd.spent_s


async def _most_ended(store: Any, count: int) -> bool:
    ready = await store.store.list(keys.READY)
    return len(ready.entries) < 32


@in_virtual_time
async def test_08b_a_handler_that_only_reports_leaves_its_slot_to_another() -> None:
    """Here it waits for one that could else not begin. What it says afterwards still counts."""
    begun = asyncio.Event()

    async def first(input: Any, ctx: Context) -> str:
        ctx.free_slot()
        ctx.free_slot()  # Once is enough.
        await begun.wait()
        return "told"

    async def second(input: Any) -> None:
        begun.set()
        await asyncio.sleep(1)

    queue = virtual_queue()
    async with working(queue, app_of(first, second), concurrency=1) as worker:
        one = await queue.submit("first")
        await until(lambda: true(worker.stats.started == 1))
        others = await queue.submit_many([NewTask("second", n) for n in range(4)])
        assert (await ended(queue, one.id)).output == "told"
        assert worker.stats.slots[0].task_id in {task.id for task in others}  # Of who has the slot now.
        began = virtual.monotonic()
        for task in others:
            await ended(queue, task.id)
        took_s = virtual.monotonic() - began
    assert took_s > 3.0, "the slot was given away more often than it was freed"
    assert worker.stats.balanced


@in_virtual_time
async def test_08c_no_more_may_report_at_a_time_than_the_buffer_takes() -> None:
    open_, reporting = asyncio.Event(), 0

    async def slow(input: Any, ctx: Context) -> None:
        nonlocal reporting
        reporting += 1
        ctx.free_slot()
        await open_.wait()

    queue = virtual_queue()
    tasks = await queue.submit_many([NewTask("slow", n, Options(timeout_s=NEVER_S)) for n in range(20)])
    async with working(queue, app_of(slow), concurrency=2, result_buffer=3):
        await until(lambda: true(reporting >= 3))
        await asyncio.sleep(60)
        assert 3 <= reporting <= 5  # Those that are in slots beside.
        open_.set()
        for task in tasks:
            assert (await ended(queue, task.id)).status is C


@pytest.mark.parametrize(("takes_s", "held"), [(0.7, 2), (1.2, 1)])
@in_virtual_time
async def test_08d_one_more_waits_for_a_slot_while_tasks_take_less_than_a_second(
    takes_s: float, held: int
) -> None:
    async def work(input: Any) -> None:
        await asyncio.sleep(takes_s)

    queue = virtual_queue()
    await queue.submit_many([NewTask("work", n) for n in range(10)])
    async with working(queue, app_of(work), concurrency=1, inbox_capacity=1) as worker:
        await until(lambda: true(worker.stats.started == 4))
        await asyncio.sleep(takes_s / 2)
        assert worker.stats.held == held


class Narrow(MemoryStore):
    """Serves so many requests at a time, in the order in which they came, and takes its time for each."""

    def __init__(self, lanes: int, request_s: float) -> None:
        super().__init__(clock=virtual.wall_clock)
        self._lanes = asyncio.Semaphore(lanes)
        self._request_s = request_s

    async def put(self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False) -> Written:
        async with self._lanes:
            await asyncio.sleep(self._request_s)
        return await super().put(key, body, if_match=if_match, if_absent=if_absent)


@in_virtual_time
async def test_09_a_handler_that_floods_the_queue_does_not_starve_the_reports_of_others() -> None:
    queue = Queue(Narrow(32, 0.02), ambient=Ambient.seeded(1, virtual.monotonic))
    finished: dict[str, float] = {}
    flooded: list[float] = []

    async def flood(input: Any, ctx: Context) -> None:
        flooded.append(virtual.monotonic())
        await asyncio.gather(*(ctx.submit("child", n, Options(delay_s=NEVER_S)) for n in range(2500)))
        flooded.append(virtual.monotonic())

    async def work(input: Any, ctx: Context) -> None:
        await asyncio.sleep(0.1)
        finished[ctx.task_id] = virtual.monotonic()

    await queue.submit("flood", options=Options(timeout_s=600, priority=9))
    tasks = await queue.submit_many([NewTask("work", n) for n in range(30)])
    async with working(queue, app_of(flood, work), concurrency=4, inbox_capacity=1):
        for task in tasks:
            await ended(queue, task.id)
        assert len(flooded) == 1, "the flood still lasts"
        await until(lambda: true(len(flooded) == 2), within_s=600)
    for task in tasks:
        reported_at = ((await queue.get(task.id)).updated_at - virtual.STARTED_AT).total_seconds()
        assert reported_at - finished[task.id] < 0.5


RESTING = Pace(min_s=50.0, max_s=50.0)  # Between two looks.


@in_virtual_time
async def test_10a_a_resting_mailbox_is_stopped_paused_and_resumed_at_once() -> None:
    queue = virtual_queue()

    async def work(input: Any) -> None: ...

    worker = Worker(queue, app_of(work), config(pace=RESTING))
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(31)
    asked = virtual.monotonic()
    worker.pause()
    await worker.reached(State.PAUSED)
    assert virtual.monotonic() == asked
    task = await queue.submit("work")
    await asyncio.sleep(1)
    asked = virtual.monotonic()
    worker.resume()
    await ended(queue, task.id)
    assert virtual.monotonic() - asked < 0.1
    await asyncio.sleep(31)
    asked = virtual.monotonic()
    worker.stop()
    await running
    assert virtual.monotonic() - asked < 0.5


@in_virtual_time
async def test_10b_a_resting_mailbox_delays_no_report() -> None:
    queue, finished = virtual_queue(), 0.0

    async def work(input: Any) -> None:
        nonlocal finished
        await asyncio.sleep(7.3)
        finished = virtual.monotonic()

    task = await queue.submit("work")
    async with working(queue, app_of(work), pace=RESTING):
        done = await ended(queue, task.id)
    assert (done.updated_at - virtual.STARTED_AT).total_seconds() - finished < 0.001


@in_virtual_time
async def test_10c_a_resting_mailbox_stops_a_task_at_once() -> None:
    queue, begun = virtual_queue(), asyncio.Event()

    async def endless(input: Any) -> None:
        begun.set()
        await asyncio.sleep(NEVER_S)

    task = await queue.submit("endless")
    async with working(queue, app_of(endless), pace=RESTING) as worker:
        await begun.wait()
        asked = virtual.monotonic()
        assert worker.cancel(task.id)
        await ended(queue, task.id)
        assert virtual.monotonic() - asked < 0.1
        assert not worker.cancel(task.id), "it is not held any more"


# 11 to 13: timeouts, failures for good, and retries


@in_virtual_time
async def test_11a_a_timeout_cancels_counts_and_frees_the_slot() -> None:
    queue = virtual_queue()
    stopped: list[float] = []

    async def endless(input: Any) -> None:
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            stopped.append(virtual.monotonic())

    async def work(input: Any) -> None: ...

    bad = await queue.submit("endless", options=Options(timeout_s=2, max_retries=0))
    async with working(queue, app_of(endless, work), concurrency=1) as worker:
        failed = await ended(queue, bad.id)
        good = await ended(queue, (await queue.submit("work")).id)
    assert (failed.status, good.status) == (F, C)
    assert (failed.last_error or "").startswith("timed out after 2 s: ")
    assert stopped[0] == pytest.approx(2, abs=0.1)
    assert (worker.stats.timeouts, worker.stats.dead) == (1, 1)


@in_virtual_time
async def test_11b_every_attempt_that_times_out_is_counted() -> None:
    queue = virtual_queue()

    async def endless(input: Any) -> None:
        await asyncio.sleep(NEVER_S)

    task = await queue.submit("endless", options=Options(timeout_s=2, max_retries=2, retry_policy=AT_ONCE))
    async with working(queue, app_of(endless)) as worker:
        assert (await ended(queue, task.id)).attempt == 3
    assert worker.stats.timeouts == 3


@pytest.mark.parametrize("whose", ["the handler's", "the worker's"])
@in_virtual_time
async def test_11c_none_disables_the_timeout(whose: str) -> None:
    queue, app = virtual_queue(), App()
    asked: dict[str, Any] = {"timeout_s": None} if whose == "the handler's" else {}

    @app.task("slow", **asked)
    async def slow(input: Any) -> str:
        await asyncio.sleep(5000)
        return "done"

    service = ServiceOptions() if asked else ServiceOptions(timeout_s=None)
    task = await queue.submit("slow")
    async with working(queue, app, service=service, heartbeat_s=600, control_s=600, pace=Pace(60, 600)):
        done = await until(lambda: has_ended(queue, task.id), within_s=10_000, every_s=100)
    assert (done.output, done.attempt) == ("done", 1)


@in_virtual_time
async def test_11d_waiting_for_a_permit_is_not_counted() -> None:
    queue, app = virtual_queue(), App()

    @app.task("work", timeout_s=3, concurrency=1)
    async def work(input: Any) -> None:
        await asyncio.sleep(2)

    tasks = await queue.submit_many([NewTask("work", n) for n in range(6)])
    async with working(queue, app, concurrency=6) as worker:
        for task in tasks:
            assert (await ended(queue, task.id)).attempt >= 1
    assert (worker.stats.acked, worker.stats.timeouts) == (6, 0)


@in_virtual_time
async def test_12a_a_failure_for_good_is_final_at_once_and_keeps_its_error_and_traceback() -> None:
    queue = virtual_queue()

    async def rejects(input: Any) -> None:
        try:
            raise KeyError("no such account")
        except KeyError as error:
            raise Reject("malformed") from error

    task = await queue.submit("rejects", options=Options(max_retries=50))
    async with working(queue, app_of(rejects)):
        failed = await ended(queue, task.id)
    assert (failed.status, failed.attempt, failed.last_error) == (F, 1, "malformed")
    assert "in rejects" in (failed.traceback or "")
    assert "no such account" in (failed.traceback or ""), "what it came from"


@in_virtual_time
async def test_12b_the_error_of_the_last_attempt_stays_when_retries_are_used_up() -> None:
    queue = virtual_queue()

    async def fails(input: Any, ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    task = await queue.submit("fails", options=Options(max_retries=2, retry_policy=AT_ONCE))
    async with working(queue, app_of(fails)):
        failed = await ended(queue, task.id)
    assert (failed.status, failed.last_error) == (F, "ValueError: attempt 3")
    assert "in fails" in (failed.traceback or "")


SLOWLY = RetryPolicy(initial_interval_ms=100_000, max_interval_ms=100_000, multiplier=1.0, jitter_percent=0.25)


@in_virtual_time
async def test_13a_the_delay_of_a_retry_is_honoured_and_jittered() -> None:
    queue = virtual_queue()
    begun: dict[str, list[float]] = {}

    async def fails(input: Any, ctx: Context) -> None:
        begun.setdefault(ctx.task_id, []).append(virtual.monotonic())
        raise ValueError

    tasks = await queue.submit_many([NewTask("fails", n, Options(retry_policy=SLOWLY)) for n in range(20)])
    async with working(queue, app_of(fails), concurrency=20):
        await until(lambda: true(all(len(begun.get(task.id, [])) >= 2 for task in tasks)), within_s=200)
    rests_s = [second - first for first, second, *_ in begun.values()]
    assert min(rests_s) >= 75
    assert max(rests_s) <= 126
    assert max(rests_s) - min(rests_s) > 20, "spread out"


@in_virtual_time
async def test_13b_the_delay_of_a_retry_survives_restarts() -> None:
    queue = virtual_queue()
    begun: list[float] = []

    async def fails_once(input: Any, ctx: Context) -> str:
        begun.append(virtual.monotonic())
        if ctx.attempt == 1:
            raise Retry("later", delay_s=100)
        return "done"

    task = await queue.submit("fails_once")
    for _ in range(8):
        async with working(Queue(queue.store, ambient=queue.ambient), app_of(fails_once)):
            await asyncio.sleep(20)
    assert (await queue.get(task.id)).output == "done"
    assert 100 <= begun[1] - begun[0] < 101


# 15 to 17: leases


@in_virtual_time
async def test_15_two_workers_on_one_store_never_take_live_work_from_each_other() -> None:
    queue, over = virtual_queue(), asyncio.Event()
    ran: list[str] = []

    async def slow(input: Any, ctx: Context) -> None:
        ran.append(ctx.task_id)
        await asyncio.sleep(60)

    tasks = await queue.submit_many([NewTask("slow", n, Options(timeout_s=600)) for n in range(20)])
    monitor = asyncio.create_task(Monitor(queue, MonitorConfig(check_interval_s=1)).run(over))
    others = [Queue(queue.store, ambient=Ambient.seeded(n, virtual.monotonic)) for n in range(2)]
    async with (
        working(others[0], app_of(slow), worker_id="w0", concurrency=4, lease_s=3) as first,
        working(others[1], app_of(slow), worker_id="w1", concurrency=4, lease_s=3) as second,
    ):
        for task in tasks:
            done = await until(lambda task=task: has_ended(queue, task.id), within_s=1000, every_s=1)
            assert (done.status, done.attempt, done.retry_count) == (C, 1, 0)
    over.set()
    await monitor
    assert sorted(ran) == sorted(task.id for task in tasks)
    assert first.stats.acked + second.stats.acked == 20
    assert first.stats.acked > 0 < second.stats.acked


@pytest.mark.parametrize("obeys", [True, False])
@in_virtual_time
async def test_16a_a_lease_lost_in_mid_run_stops_the_handler_and_nothing_is_reported(obeys: bool) -> None:
    queue = virtual_queue()
    told: list[str] = []

    async def slow(input: Any, ctx: Context) -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            told.append(str(ctx.cancel.why))
            if obeys:
                raise
        return "too late"

    task = await queue.submit("slow", options=Options(timeout_s=NEVER_S))
    async with working(queue, app_of(slow), lease_s=3) as worker:
        await until(lambda: true(worker.stats.started == 1))
        # As after a lapse: somebody else owns the task now.
        robbed = replace(await queue.get(task.id), lease_id="another", attempt=2)
        await queue.store.put(queue.tasks.key(task.id), wire.encode(robbed))
        asked = virtual.monotonic()
        await until(lambda: true(worker.stats.lost == 1))
        assert virtual.monotonic() - asked <= 3
        await asyncio.sleep(30)
    assert told == ["the lease was lost"]
    assert (worker.stats.acked, worker.stats.failed, worker.stats.released) == (0, 0, 0)
    assert await queue.get(task.id) == robbed, "the other's task is as the other left it"


class Delaying(MemoryStore):
    """Answers to the first claim when it is too late."""

    delay_s = 100.0

    async def put(self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False) -> Written:
        written = await super().put(key, body, if_match=if_match, if_absent=if_absent)
        if key.startswith(keys.TASKS) and wire.decode_task(body, key).status is R:
            delay_s, self.delay_s = self.delay_s, 0.0
            await asyncio.sleep(delay_s)
        return written


@in_virtual_time
async def test_16b_a_claim_that_is_answered_after_its_lease_has_run_out_is_not_begun() -> None:
    """As after a long sleep of the process or the line: somebody else runs the task by then."""
    queue, over = (
        Queue(Delaying(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic)),
        asyncio.Event(),
    )
    begun: list[tuple[str, int]] = []

    async def slow(input: Any, ctx: Context) -> str:
        begun.append((ctx.worker_id, ctx.attempt))
        await asyncio.sleep(200)
        return ctx.worker_id

    task = await queue.submit("slow", options=Options(timeout_s=NEVER_S, retry_policy=AT_ONCE))
    monitor = asyncio.create_task(Monitor(queue, MonitorConfig(check_interval_s=1)).run(over))
    async with working(queue, app_of(slow), worker_id="late", lease_s=30) as late:
        await asyncio.sleep(1)
        async with working(Queue(queue.store, ambient=queue.ambient), app_of(slow), worker_id="next", lease_s=30):
            done = await until(lambda: has_ended(queue, task.id), within_s=1000, every_s=1)
    over.set()
    await monitor
    assert begun == [("next", 2)]
    assert (done.output, done.attempt) == ("next", 2)
    assert (late.stats.claimed, late.stats.lost) == (1, 1)


class SlowToClaim(MemoryStore):
    """Answers every write of a task only after a while."""

    async def put(self, key: str, body: bytes, **conditions: Any) -> Written:
        written = await super().put(key, body, **conditions)
        if key.startswith(keys.TASKS) and wire.decode_task(body, key).attempt:
            await asyncio.sleep(60)
        return written


@in_virtual_time
async def test_16c_a_worker_that_has_stopped_comes_to_hold_nothing_by_a_claim_that_is_answered_late() -> None:
    begun: list[int] = []

    async def work(input: int) -> None:
        begun.append(input)

    queue = Queue(SlowToClaim(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))
    await queue.submit("work", 1)
    async with working(queue, app_of(work), shutdown_grace_s=1.0, cancel_grace_s=1.0) as worker:
        await until(lambda: true(worker._mailbox.claiming))
        worker.stop()
        await worker.reached(State.STOPPED)
        assert (worker._mailbox.claiming, worker.stats.held) == (0, 0)
        await asyncio.sleep(120)
        assert (worker.stats.claimed, begun) == (0, [])


def seconds(instants: Iterable[datetime], since: float, until: float) -> list[float]:
    """Those within a part of the test, by its own clock."""
    return [s for at in instants if since <= (s := (at - virtual.STARTED_AT).total_seconds()) <= until]


@pytest.mark.parametrize("while_", ["paused", "draining"])
@in_virtual_time
async def test_17a_leases_are_renewed_while_paused_and_while_draining(while_: str) -> None:
    queue, over = virtual_queue(), asyncio.Event()

    async def slow(input: Any) -> None:
        await asyncio.sleep(60)

    tasks = await queue.submit_many([NewTask("slow", n, Options(timeout_s=600)) for n in range(3)])
    monitor = asyncio.create_task(Monitor(queue, MonitorConfig(check_interval_s=1)).run(over))
    async with working(queue, app_of(slow), lease_s=3, shutdown_grace_s=100) as worker:
        await until(lambda: true(worker.stats.started == 3))
        if while_ == "paused":
            worker.pause()
            await asyncio.sleep(70)
    over.set()
    await monitor
    assert (worker.stats.acked, worker.stats.lost) == (3, 0)
    for task in tasks:
        at = seconds(await renewals(queue, task.id), 0, 60)
        assert len(at) > 50
        assert all(after - before < 2 for before, after in pairwise(at))


@in_virtual_time
async def test_17b_leases_are_renewed_while_a_task_waits_in_an_inbox() -> None:
    queue = virtual_queue()
    begun: list[str] = []

    async def work(input: float, ctx: Context) -> None:
        begun.append(ctx.task_id)
        await asyncio.sleep(input)

    async with working(queue, app_of(work), concurrency=1, inbox_capacity=1, lease_s=0.9) as worker:
        for n in range(5):  # Quick ones, so that the worker claims ahead.
            await ended(queue, (await queue.submit("work", 0.01 * n)).id)
        slow = await queue.submit_many([NewTask("work", 1.7) for _ in range(2)])
        await until(lambda: true(worker.snapshot().waiting == 1))
        (waits,) = (task for task in slow if task.id != begun[-1])
        since = virtual.monotonic()
        await until(lambda: true(begun[-1] == waits.id))
        at = seconds(await renewals(queue, waits.id), since, virtual.monotonic())
        assert virtual.monotonic() - since > 1.5
        assert len(at) >= 4, "about every 0.3 s"
        assert (await ended(queue, waits.id)).attempt == 1


@in_virtual_time
async def test_17c_leases_are_renewed_while_a_report_is_under_way() -> None:
    store, queue = moody_queue()
    finished = 0.0

    async def work(input: Any) -> str:
        nonlocal finished
        await asyncio.sleep(1)
        finished = virtual.monotonic()
        return "done"

    def mood(verb: str, key: str, body: bytes) -> None:
        if verb != "put" or not key.startswith(keys.TASKS) or wire.decode_task(body, key).status is not C:
            return
        if virtual.monotonic() < finished + 5:
            raise Unavailable("503")

    task = await queue.submit("work")
    store.before = mood
    async with working(queue, app_of(work), lease_s=6) as worker:
        done = await ended(queue, task.id)
    assert (done.output, done.attempt, worker.stats.acked) == ("done", 1, 1)
    assert len(seconds(await renewals(queue, task.id), finished, finished + 5)) >= 2


# 20 to 22: shutdown, and tasks that nobody can run


@in_virtual_time
async def test_20_any_number_of_shutdowns_costs_a_task_no_attempt() -> None:
    queue, begun = virtual_queue(), 0

    async def slow(input: Any, ctx: Context) -> str:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0 if begun > 10 else NEVER_S)
        return "done"

    task = await queue.submit("slow", options=Options(max_retries=0, max_deliveries=1, max_reschedules=0))
    for n in range(10):
        async with working(queue, app_of(slow), shutdown_grace_s=0.5) as worker:
            await until(lambda n=n: true(begun == n + 1))
        assert worker.stats.released == 1
        given_back = await queue.get(task.id)
        assert (given_back.status, given_back.retry_count, given_back.last_error) == (P, 0, None)
    async with working(queue, app_of(slow)):
        assert (await ended(queue, task.id)).output == "done"


@in_virtual_time
async def test_22a_a_task_of_an_unknown_type_fails_where_that_was_asked_for() -> None:
    queue = virtual_queue()
    task = await queue.submit("nobody knows", options=Options(max_retries=10))
    async with working(queue, App(), unknown_types=UnknownTypes.FAIL) as worker:
        failed = await ended(queue, task.id)
    assert (failed.status, failed.attempt) == (F, 1)
    assert "no handler" in (failed.last_error or "")
    assert "'nobody knows'" in (failed.last_error or "")
    assert worker.stats.dead == 1


@in_virtual_time
async def test_22b_a_task_of_an_unknown_type_waits_where_another_worker_may_know_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = virtual_queue()

    async def known(input: Any) -> None: ...

    task = await queue.submit("nobody knows")
    async with working(queue, app_of(known)) as worker:
        await asyncio.sleep(60)
        assert worker.stats.claimed == 0
    assert "nobody knows" in caplog.text, "visible to who reads the log"
    assert await queue.list(status=P, task_type="nobody knows") == [task], "and to who looks at the queue"


class Order(BaseModel):
    amount: int


class Point(msgspec.Struct):
    x: int


@in_virtual_time
async def test_22c_an_input_that_does_not_fit_its_handler_fails_at_once() -> None:
    queue, app, ran = virtual_queue(), App(), 0

    @app.task("order")
    async def order(input: Order) -> None:
        nonlocal ran
        ran += 1

    @app.task("point")
    async def point(input: Point) -> None:
        nonlocal ran
        ran += 1

    misfits = [await queue.submit("order", {"amount": "much"}), await queue.submit("point", [1, 2])]
    async with working(queue, app):
        for misfit in misfits:
            failed = await ended(queue, misfit.id)
            assert (failed.status, failed.attempt) == (F, 1)
            assert "does not fit" in (failed.last_error or "")
    assert ran == 0


@pytest.mark.parametrize("how", ["garbage", "gone"])
@in_virtual_time
async def test_22d_a_payload_that_cannot_be_read_ends_its_task_after_its_retries(how: str) -> None:
    plain = virtual_queue()
    queue = Queue(plain.store, payload_threshold_bytes=10, ambient=plain.ambient)

    async def work(input: Any) -> None: ...

    options = Options(max_retries=2, retry_policy=AT_ONCE)
    task, good = await queue.submit("work", "x" * 100, options), await queue.submit("work", "y" * 100)
    assert task.input_ref is not None
    if how == "garbage":
        await queue.store.put(task.input_ref, b"\xff{ not json")
    else:
        await queue.store.delete(task.input_ref)
    async with working(queue, app_of(work), concurrency=1):
        failed = await ended(queue, task.id)
        assert (await ended(queue, good.id)).status is C
    assert (failed.status, failed.attempt) == (F, 3)
    assert task.input_ref in (failed.last_error or "")


# 25: the books


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.long] if n >= 8 else []) for n in range(20)])
@in_virtual_time
async def test_25_every_claim_has_one_outcome_and_every_moment_adds_up(seed: int, books: Books) -> None:
    ambient = Ambient.seeded(seed, virtual.monotonic)
    rng, inner = ambient.rng, MemoryStore(clock=virtual.wall_clock)
    plan = FaultPlan(refused=0.05, lost_reply=0.05, conflict=0.05, own_412=0.05, latency_s=(0.001, 0.2))
    queue = Queue(Faulty(inner, plan, ambient), ambient=ambient)
    plain = Queue(inner, ambient=ambient)

    async def work(input: int) -> None:
        await asyncio.sleep(rng.choice([0, 0.1, 1, 20]))
        match input % 6:
            case 0:
                raise ValueError
            case 1:
                raise Reject("no use")
            case 2 if rng.random() < 0.7:
                raise Reschedule(1)
            case _:
                return

    options = Options(timeout_s=10, max_retries=1, retry_policy=AT_ONCE)
    tasks = await plain.submit_many([NewTask("work", n, options) for n in range(60)])
    while {P, R} & {*await statuses(plain, tasks)}:
        worker = Worker(
            queue, app_of(work), config(concurrency=4, inbox_capacity=2, lease_s=3, shutdown_grace_s=1)
        )
        running = asyncio.create_task(worker.run())
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(rng.uniform(0, 10))
            rng.choice([worker.pause, worker.resume, partial(worker.cancel, rng.choice(tasks).id)])()
        worker.resume()
        await asyncio.sleep(rng.uniform(0, 20))
        rng.choice([worker.stop, worker.hurry])()
        with suppress(QoError):  # It could not even sign on.
            await running
        await Monitor(plain).check()
        assert worker.snapshot().counts["held"] == 0
    assert books.steps >= 2 * len(tasks)
