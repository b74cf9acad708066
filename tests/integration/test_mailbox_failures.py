"""A worker's mailbox while the store fails, is slow, or is flooded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.poll import Pace
from qo.core.task import Status, Task
from qo.errors import Unavailable
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.port import PutResult
from qo.testing import virtual
from qo.worker.api.context import Context
from qo.worker.api.signals import Reject, Reschedule
from qo.worker.loop.state import State
from qo.worker.worker import Worker
from support.stores.queues import AT_ONCE, app_of, claimed, config, drain, ended, until, virtual_queue, working
from support.worker.checked_worker import books, in_virtual_time, moody_queue

__all__ = ["books"]

pytestmark = pytest.mark.fast


P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


NEVER_S = 3600.0


async def has_ended(queue: Queue, task_id: str) -> Task | None:
    task = await queue.get(task_id)
    return task if task.ended else None


async def true(value: object) -> bool:
    return bool(value)


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
async def test_a_report_that_the_store_does_not_take_is_repeated(when: str, how: str) -> None:
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
async def test_a_child_that_could_not_be_written_is_not_taken_for_written(times: int, attempts: int) -> None:
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
async def test_a_claim_that_half_failed_loses_no_task(when: str, times: int) -> None:
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
async def test_a_claim_whose_hint_could_not_be_written_is_run_all_the_same() -> None:
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
async def test_a_task_whose_worker_died_as_it_claimed_is_run_by_one_that_saw_it_too_soon() -> None:
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
async def test_a_worker_that_was_stopped_while_it_claimed_gives_the_task_back() -> None:
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
async def test_a_slow_store_keeps_no_slot_empty(request_s: float) -> None:
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
async def test_a_handler_that_only_reports_leaves_its_slot_to_another() -> None:
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
    assert worker.stats.is_balanced


@in_virtual_time
async def test_no_more_may_report_at_a_time_than_the_buffer_takes() -> None:
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
async def test_one_more_waits_for_a_slot_while_tasks_take_less_than_a_second(takes_s: float, held: int) -> None:
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

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        async with self._lanes:
            await asyncio.sleep(self._request_s)
        return await super().put(key, body, if_match=if_match, if_absent=if_absent)


@in_virtual_time
async def test_a_handler_that_floods_the_queue_does_not_starve_the_reports_of_others() -> None:
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
async def test_a_resting_mailbox_is_stopped_paused_and_resumed_at_once() -> None:
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
async def test_a_resting_mailbox_delays_no_report() -> None:
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
async def test_a_resting_mailbox_stops_a_task_at_once() -> None:
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
