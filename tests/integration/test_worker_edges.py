"""A worker that stops, keeps leases or looks for tasks at an unlucky moment."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import qo
from qo.ambient import Ambient
from qo.config.origins import load
from qo.core import keys
from qo.core.discovery import IndexMode
from qo.core.poll import Pace
from qo.core.task import Status
from qo.errors import Unavailable
from qo.queue import roster
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.store.port import LIST_LIMIT_MAX, Page, PutResult, Stored
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.api.handler import make_handler
from qo.worker.config import LeaseTimes
from qo.worker.layers import ServiceOptions
from qo.worker.loop.cancel import Why
from qo.worker.loop.clock import Clock, lease_time, now
from qo.worker.loop.hold import Hold, Holds, Phase
from qo.worker.loop.keeper import Keeper
from qo.worker.loop.state import State
from qo.worker.observe.stats import Stats
from qo.worker.observe.status import find_problems
from qo.worker.service import run_worker
from qo.worker.worker import Worker
from support.stores.queues import StoreClock, app_of, claimed, config, drain, ended, until, virtual_queue, working
from support.worker.checked_worker import in_virtual_time, moody_queue

pytestmark = pytest.mark.fast


P, R, C = Status.PENDING, Status.RUNNING, Status.COMPLETED


NEVER_S = 10_000.0


RESTING = Pace(min_s=50.0, max_s=50.0)  # Between two looks.


class Slow(MemoryStore):
    """Answers when ``delay`` has returned, with what it saw before; called with the verb and the key."""

    async def delay(self, verb: str, key: str) -> None:
        return

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        stored = await super().get(key, version=version)
        await self.delay("get", key)
        return stored

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        written = await super().put(key, body, if_match=if_match, if_absent=if_absent)
        await self.delay("put", key)
        return written

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        page = await super().list(prefix, start_after=start_after, limit=limit)
        await self.delay("list", prefix)
        return page


def slow_queue() -> tuple[Slow, Queue]:
    store = Slow(clock=virtual.wall_clock)
    return store, Queue(store, ambient=Ambient.seeded(1, virtual.monotonic))


class Delay:
    """Of one request: the first of this kind, under these keys."""

    def __init__(self, verb: str, prefix: str, wait: Callable[[], Awaitable[object]]) -> None:
        self._wanted = (verb, prefix)
        self._wait = wait
        self.begun = asyncio.Event()

    async def __call__(self, verb: str, key: str) -> None:
        wanted, prefix = self._wanted
        if verb == wanted and key.startswith(prefix) and not self.begun.is_set():
            self.begun.set()
            await self._wait()


async def never() -> Any:
    await asyncio.sleep(NEVER_S)


async def true(holds: object) -> bool:
    return bool(holds)


def said(caplog: pytest.LogCaptureFixture, text: str, level: int = logging.WARNING) -> int:
    return sum(text in record.getMessage() for record in caplog.records if record.levelno == level)


async def work(input: Any) -> None: ...


async def endless(input: Any) -> None:
    await asyncio.sleep(NEVER_S)


@in_virtual_time
async def test_a_worker_that_stops_during_a_claim_that_comes_to_nothing_is_done_at_once() -> None:
    store, queue = slow_queue()
    task = await queue.submit("work")
    store.delay = reading = Delay("get", keys.TASKS, lambda: asyncio.sleep(2))
    worker = Worker(queue, app_of(work), config(shutdown_grace_s=1000))
    running = asyncio.create_task(worker.run())
    await reading.begun.wait()
    worker.stop()
    stats = await running
    assert virtual.monotonic() < 10
    assert (stats.claimed, (await queue.get(task.id)).status) == (0, P)


@in_virtual_time
async def test_a_claim_that_hangs_keeps_no_running_task_from_being_given_back() -> None:
    store, queue = slow_queue()
    task = await queue.submit("endless", options=Options(timeout_s=NEVER_S))
    worker = Worker(queue, app_of(endless, work), config(shutdown_grace_s=1, cancel_grace_s=1))
    running = asyncio.create_task(worker.run())
    await until(lambda: true(worker.stats.started))
    store.delay = reading = Delay("get", keys.TASKS, never)
    await queue.submit("work")
    await reading.begun.wait()
    worker.stop()
    stats = await running
    assert (stats.released, stats.lost) == (1, 0)
    assert (await queue.get(task.id)).status is P


async def test_a_process_ends_although_its_monitor_is_in_the_middle_of_a_check(tmp_path: Path) -> None:
    store, answer = Slow(), asyncio.Event()
    store.delay = checking = Delay("list", keys.LEASES, answer.wait)
    settings = load({"store": "memory:"}, environ={}, cwd=tmp_path)
    async with asyncio.timeout(20):
        running = asyncio.create_task(run_worker(Queue(store), app_of(work), settings))
        await checking.begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await running


@pytest.mark.parametrize("why", [Why.LOST, Why.SHUTDOWN])
@in_virtual_time
async def test_a_task_between_its_inbox_and_its_handler_can_be_stopped(why: Why) -> None:
    queue, gate, begun = virtual_queue(), asyncio.Event(), list[tuple[str, int]]()

    async def gated(input: Any, ctx: Context) -> None:
        begun.append((ctx.task_id, ctx.attempt))
        await gate.wait()
        # This comes when the slot has been given to the next task, and before that has taken its first step.
        asyncio.get_running_loop().call_soon(stop_the_next)

    def stop_the_next() -> None:
        hold = worker._holds.get(second.id)
        if hold is not None and hold.phase is Phase.WAITING:
            worker._stop_attempt(hold, why)

    await queue.submit("work")
    async with working(queue, app_of(gated, work), concurrency=1, inbox_capacity=1) as worker:
        await until(lambda: true(worker.stats.acked))  # Quickly: so the next are claimed ahead of the slot.
        first = await queue.submit("gated")
        await until(lambda: true(len(worker._holds) == 1))
        second = await queue.submit("gated")
        await until(lambda: true(len(worker._holds) == 2))
        gate.set()
        stats = worker.stats
        await until(lambda: true(stats.acked + stats.lost + stats.released >= 3))
    assert begun[0] == (first.id, 1)
    assert (second.id, 1) not in begun
    assert (stats.lost, stats.released) == ((1, 0) if why is Why.LOST else (0, 1))


@pytest.mark.parametrize("store", ["memory:", "local:.qo"])
async def test_a_worker_keeps_the_leases_of_tasks_that_are_longer_than_a_lease_and_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    settings = load({"store": store, "worker.lease_s": "1", "worker.no_monitor": True}, environ={}, cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    async def long(input: Any) -> str:
        os.chdir(elsewhere)
        await asyncio.sleep(1.5)
        return "done"

    async with qo.connect(settings) as queue:
        task = await queue.submit("long")
        stats = await run_worker(queue, app_of(long), settings, stop_when_empty=True)
        done = await queue.get(task.id)
    assert (done.status, done.attempt, stats.lost) == (C, 1, 0)
    assert stats.renewals > 0
    assert not list(elsewhere.iterdir())


@in_virtual_time
async def test_a_keeper_that_cannot_connect_still_tells_that_a_lease_is_lost() -> None:
    queue, holds, told = virtual_queue(), Holds(), list[Why]()
    claim = await claimed(queue, (await queue.submit("work")).id, lease_s=60)
    holds.add(Hold(claim, make_handler("work", work), Clock(None), now=now(), leased_until=lease_time() + 60))
    keeper = Keeper(holds, Stats(), LeaseTimes(60, 20, 5), stop_attempt=lambda hold, why: told.append(why))
    keeping = asyncio.create_task(keeper.run(never))
    await asyncio.sleep(60)
    assert told == [Why.LOST]
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


@in_virtual_time
async def test_a_lost_lease_is_told_once_though_the_handler_will_not_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, enough = virtual_queue(), asyncio.Event()

    async def stubborn(input: Any) -> None:
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                continue

    task = await queue.submit("stubborn", options=Options(timeout_s=5))
    async with working(queue, app_of(stubborn), lease_s=60):
        await asyncio.sleep(1000)
        enough.set()
    assert said(caplog, f"task {task.id}: its lease was lost") == 1


@in_virtual_time
async def test_a_worker_that_drains_the_queue_leaves_nothing_behind_after_a_claim_that_failed() -> None:
    store, queue = moody_queue()
    task, failures = await queue.submit("work"), 1

    def fail_once(verb: str, key: str, body: bytes) -> None:
        nonlocal failures
        if verb == "get" and key.startswith(keys.TASKS) and failures:
            failures -= 1
            raise Unavailable("503")

    store.before = fail_once
    stats = await drain(queue, app_of(work))
    assert (failures, stats.acked, (await queue.get(task.id)).status) == (0, 1, C)


@in_virtual_time
async def test_a_worker_that_drains_by_scanning_leaves_nothing_behind_after_a_page_that_failed() -> None:
    store, queue = moody_queue()
    tasks = await queue.submit_many([NewTask("work") for _ in range(2)])
    first, last = sorted(tasks, key=lambda task: task.id)
    await queue.complete(await claimed(queue, last.id))
    failures = 1

    def fail_once(verb: str, key: str, body: bytes) -> None:
        nonlocal failures
        if verb == "get" and first.id in key and failures:
            failures -= 1
            raise Unavailable("503")

    store.before = fail_once
    stats = await drain(queue, app_of(work), index_mode=IndexMode.LOG_SCAN, log_scan_page_size=1)
    assert (failures, stats.acked, (await queue.get(first.id)).status) == (0, 1, C)


@in_virtual_time
async def test_a_wake_up_during_a_look_is_not_lost() -> None:
    store, queue = slow_queue()
    store.delay = looking = Delay("list", keys.READY, lambda: asyncio.sleep(5))
    async with working(queue, app_of(work), pace=RESTING) as worker:
        await looking.begun.wait()
        worker.pause()
        task = await queue.submit("work")
        worker.resume()
        await ended(queue, task.id)
        assert virtual.monotonic() < 10


@in_virtual_time
async def test_tasks_that_wait_for_slow_slots_are_given_back_once_and_not_claimed_again() -> None:
    queue = virtual_queue()
    await queue.submit("work")
    async with working(queue, app_of(work, endless), concurrency=1, inbox_capacity=1) as worker:
        await until(lambda: true(worker.stats.acked))  # Quickly: so the next are claimed ahead of the slot.
        options = Options(timeout_s=NEVER_S)
        await queue.submit_many([NewTask("endless", options=options) for _ in range(4)])
        await until(lambda: true(len(worker._holds) == 2))
        for _ in range(20):
            await asyncio.sleep(10)
            worker.resume()  # Or anything else that makes it look again.
        assert (worker.stats.released, worker.stats.claimed) == (1, 3)


@in_virtual_time
async def test_types_that_share_a_limit_claim_together_no_more_than_it_allows() -> None:
    queue, most = virtual_queue(), 0

    async def some(input: Any) -> None:
        await asyncio.sleep(1)

    app = App()
    for number in range(8):
        app.task(f"type-{number}")(some)
    tasks = await queue.submit_many([NewTask(f"type-{number}") for number in range(8)])
    worker = Worker(
        queue, app, config(concurrency=16, stop_when_empty=True, service=ServiceOptions(concurrency_limit=2))
    )

    def look() -> None:
        nonlocal most
        most = max(most, worker.stats.held)

    worker.stats.on_change = look
    stats = await worker.run()
    assert (stats.acked, stats.claimed, most) == (len(tasks), len(tasks), 2)


@in_virtual_time
async def test_a_worker_is_well_while_it_starts_slowly() -> None:
    store, queue = slow_queue()
    store.delay = starting = Delay("put", keys.WORKERS, lambda: asyncio.sleep(120))
    async with working(queue, app_of(work)) as worker:
        await starting.begun.wait()
        for _ in range(100):
            assert worker.state is State.STARTING
            assert find_problems(worker.health()) == []
            await asyncio.sleep(1)
        await worker.reached(State.RUNNING)
        assert find_problems(worker.health()) == []


async def test_a_worker_that_fell_silent_is_warned_of_once_each_time(
    clocked_queue: Queue, clock: StoreClock, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = Monitor(clocked_queue)
    for times in (1, 2):
        at = clock.now()
        info = roster.WorkerInfo(worker_id="silent", started_at=at, last_heartbeat=at)
        await roster.report(clocked_queue.store, info)
        assert (await monitor.check()).stale_workers == []
        clock.advance(100)
        for _ in range(3):
            assert (await monitor.check()).stale_workers == ["silent"]
        assert said(caplog, "worker silent was last heard of") == times


@in_virtual_time
async def test_a_second_worker_of_the_same_id_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    queue = virtual_queue()
    async with working(queue, app_of(work), worker_id="twin") as first:
        await first.reached(State.RUNNING)
        assert said(caplog, "twin") == 0
        async with working(queue, app_of(work), worker_id="twin") as second:
            await second.reached(State.RUNNING)
    assert said(caplog, "a worker twin has reported a moment ago") == 1
    caplog.clear()
    async with working(queue, app_of(work), worker_id="twin") as third:  # The others have signed off.
        await third.reached(State.RUNNING)
    assert said(caplog, "twin") == 0
