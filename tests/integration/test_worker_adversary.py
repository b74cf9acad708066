"""Handlers, layers and stores that behave as badly as they can harm no other task."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import child_functions
import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.discovery import Due, IndexMode
from qo.core.pricing import Operation
from qo.core.task import Status
from qo.errors import ConfigError, Unavailable
from qo.queue import roster
from qo.queue.deferred_tasks import DeferredTasks
from qo.queue.feed import Feed
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import LIST_LIMIT_MAX, Page, Stored
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.handler import Rate
from qo.worker.api.request import Request
from qo.worker.executors.processes import ProcessExecutor
from qo.worker.layers import concurrency_limit
from qo.worker.layers.stack import Service
from qo.worker.loop.outcome import Outcome
from qo.worker.loop.state import State
from qo.worker.observe.status import find_problems
from qo.worker.worker import Worker
from support.stores.queues import app_of, config, drain, ended, until, virtual_queue, working
from support.worker.attempts import Attempts
from support.worker.checked_worker import in_virtual_time, moody_queue

fast = pytest.mark.fast


def virtually(test: Callable[..., Any]) -> Callable[..., None]:
    return fast(in_virtual_time(test))


NEVER_S = 10_000.0


AT = datetime(2026, 3, 1, tzinfo=UTC)


ONCE = Options(max_retries=0)


def distant_queue() -> tuple[Metered, Queue]:
    """In virtual time, with a store that takes a while to answer and counts what it is asked."""
    ambient = Ambient.seeded(1, virtual.monotonic)
    slow = FaultPlan(latency_s=(0.01, 0.02))
    store = Metered(Faulty(MemoryStore(clock=virtual.wall_clock), slow, ambient))
    return store, Queue(store, ambient=ambient, meter=store)


async def work(input: Any) -> None: ...


async def endless(input: Any) -> None:
    await asyncio.sleep(NEVER_S)


async def waits_of_others(queue: Queue, app: App, count: int, every_s: float) -> list[float]:
    """How long tasks of another type had to wait, submitted one by one to the worker of this app."""
    waits: list[float] = []

    @app.task("other")
    async def other(submitted: float) -> None:
        waits.append(virtual.monotonic() - submitted)

    async with working(queue, app) as worker:
        await asyncio.sleep(10)  # Each task that is there is read once.
        for _ in range(count):
            await asyncio.sleep(every_s)
            await queue.submit("other", virtual.monotonic())
        await asyncio.sleep(20)
        worker.hurry()
    return waits


def holds(condition: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def ask() -> Any:
        return condition()

    return ask


@pytest.fixture
async def pool() -> AsyncIterator[ProcessExecutor]:
    """Of one child, so that the next task is run by the same."""
    pool = ProcessExecutor(1, on_late_return=lambda: None, tasks_max=0, memory_max_mb=0, kill_after_s=1.0)
    yield pool
    pool.close()
    await asyncio.sleep(0)  # The loop closes its ends.


async def test_a_fork_that_returns_from_its_handler_does_not_answer_for_the_next_task(
    pool: ProcessExecutor,
) -> None:
    attempts = Attempts()
    assert await pool.call(await attempts.request(child_functions.forks)) == "its own"
    for number in range(2):
        assert await pool.call(await attempts.request(child_functions.double, [number])) == [number, number]


async def test_a_thread_left_behind_cannot_speak_for_the_next_task(pool: ProcessExecutor, tmp_path: Path) -> None:
    attempts, files = Attempts(), [str(tmp_path / "begun"), str(tmp_path / "answer")]
    assert await pool.call(await attempts.request(child_functions.speaks_later, files)) == "done"
    victim = await attempts.request(child_functions.waits_for, files)
    assert await pool.call(victim) == "done"
    assert (tmp_path / "answer").read_text() == "Refused"
    assert [task.progress for task in await attempts.queue.history(victim.task.id)] == [None, None]


@virtually
async def test_an_async_handler_that_makes_another_error_of_its_cancellation_is_not_charged_for_a_shutdown() -> (
    None
):
    queue, app = virtual_queue(), App()

    @app.task("work", timeout_s=None)
    async def interrupted(input: Any) -> None:
        try:
            await endless(input)
        except asyncio.CancelledError:
            raise ConnectionError("interrupted") from None

    task = await queue.submit("work", None, ONCE)
    async with working(queue, app) as worker:
        await asyncio.sleep(5)
        worker.hurry()
    assert (await queue.get(task.id)).status is Status.PENDING
    assert (worker.stats.released, worker.stats.dead) == (1, 0)


@fast
async def test_a_thread_that_makes_another_error_of_its_cancellation_is_not_charged_for_a_shutdown() -> None:
    queue, app, begun = Queue(MemoryStore()), App(), threading.Event()

    @app.task("work", timeout_s=None)
    def work(input: Any, ctx: Any) -> None:
        begun.set()
        ctx.cancel.wait()
        raise ConnectionError("interrupted")

    task = await queue.submit("work", None, ONCE)
    async with working(queue, app, cancel_grace_s=30.0) as worker:
        await until(holds(begun.is_set))
        worker.hurry()
    assert (await queue.get(task.id)).status is Status.PENDING
    assert (worker.stats.released, worker.stats.dead) == (1, 0)


@virtually
async def test_what_waits_for_a_permit_is_given_back_when_the_worker_hurries() -> None:
    queue, app = virtual_queue(), App()

    app.task("work", layers=[concurrency_limit(2)], timeout_s=None)(endless)
    await queue.submit_many([NewTask("work", n, ONCE) for n in range(8)])
    async with working(queue, app) as worker:
        await asyncio.sleep(10)
        worker.hurry()
    assert (worker.stats.claimed, worker.stats.released) == (8, 8)
    assert {(task.status, task.last_error) for task in await queue.list()} == {(Status.PENDING, None)}


@fast
async def test_a_worker_that_never_signed_on_leaves_the_record_of_its_namesake_alone() -> None:
    store = MemoryStore()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with working(Queue(store), App()) as first:
            await first.reached(State.RUNNING)
            with pytest.raises(ConfigError):
                await Worker(Queue(store), App(), config(http=address)).run()
            assert await roster.find(store, "w") is not None
    assert await roster.find(store, "w") is None


@virtually
async def test_a_lease_is_kept_while_its_attempt_waits_for_a_permit() -> None:
    """Its clock stands still meanwhile: it waits for much longer than it may run."""
    queue, app, runs = virtual_queue(), App(), Counter[int]()

    @app.task("work", layers=[concurrency_limit(1)], timeout_s=30)
    async def work(input: int) -> None:
        runs[input] += 1
        await asyncio.sleep(25)

    await queue.submit_many([NewTask("work", n, ONCE) for n in range(16)])
    async with working(queue, app) as worker:
        await asyncio.sleep(600)
    assert runs == dict.fromkeys(range(16), 1)
    assert (worker.stats.claimed, worker.stats.acked) == (16, 16)


@virtually
async def test_a_backlog_behind_a_limit_costs_few_listings_and_starves_no_other_type() -> None:
    (store, queue), app = distant_queue(), App()

    @app.task("limited", concurrency=2)
    async def limited(input: Any) -> None:
        await asyncio.sleep(1)

    await queue.submit_many([NewTask("limited") for _ in range(2_000)])
    before = store.snapshot()
    waits = await waits_of_others(queue, app, 60, every_s=0.5)
    assert (len(waits), max(waits) < 20) == (60, True), waits
    assert (store.snapshot() - before).counts[Operation.LIST] < 60 * 40  # In a minute.
    assert len(await queue.list(status=Status.COMPLETED, limit=5_000)) > 60 + 80  # Two at a time, a second each.


@virtually
async def test_a_layer_that_calls_twice_does_not_open_the_gate_of_its_type() -> None:
    (_, queue), app = distant_queue(), App()

    def twice(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            await inner(request)
            return await inner(request)

        return run

    app.task("limited", rate=Rate(1, 10.0), layers=[twice], timeout_s=None)(work)
    await queue.submit_many([NewTask("limited") for _ in range(300)])
    waits = await waits_of_others(queue, app, 60, every_s=5)
    assert (len(waits), max(waits) < 20) == (60, True), waits


class FailsOnce(MemoryStore):
    """Lists slowly; the first who reads a task is refused, in the middle of the next look."""

    def __init__(self) -> None:
        super().__init__(clock=virtual.wall_clock)
        self.failed = False

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        if key.startswith(keys.TASKS) and not self.failed:
            self.failed = True
            await asyncio.sleep(0.5)
            raise Unavailable("not now")
        return await super().get(key, version=version)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        await asyncio.sleep(1)
        return await super().list(prefix, start_after=start_after, limit=limit)


@virtually
async def test_a_queue_is_not_empty_while_a_failed_claim_puts_off_what_is_ready() -> None:
    store = FailsOnce()
    queue = Queue(store, ambient=Ambient.seeded(1, virtual.monotonic))
    task = await queue.submit("work")
    await drain(queue, app_of(work), index_mode=IndexMode.INDEX_ONLY)
    assert (await queue.get(task.id)).status is Status.COMPLETED


@virtually
async def test_one_task_that_cannot_be_read_does_not_hide_the_page_it_is_on() -> None:
    store, queue = moody_queue()
    tasks = await queue.submit_many([NewTask("work") for _ in range(10)])
    unreadable = keys.task(tasks[3].id[: queue.prefix_len], tasks[3].id)

    def refuse(verb: str, key: str, body: bytes) -> None:
        if verb == "get" and key == unreadable:
            raise Unavailable("not this one")

    store.before, feed = refuse, Feed(queue, mode=IndexMode.LOG_SCAN)
    assert {due.task_id for due in await feed.take(100)} == {task.id for task in tasks} - {tasks[3].id}
    assert not feed.is_exhausted


class Exits:
    def model_dump(self, mode: str) -> Any:
        raise SystemExit(3)


@virtually
async def test_an_output_that_exits_when_it_is_dumped_fails_its_own_task_only() -> None:
    queue, app = virtual_queue(), app_of(work)

    @app.task("exits")
    async def exits(input: Any) -> Any:
        return Exits()

    task = await queue.submit("exits", None, ONCE)
    async with working(queue, app) as worker:
        assert (await ended(queue, task.id)).status is Status.FAILED
        assert (await ended(queue, (await queue.submit("work")).id)).status is Status.COMPLETED
        assert worker.state is State.RUNNING


@virtually
async def test_a_handler_that_cancels_itself_and_returns_is_acknowledged() -> None:
    (_, queue), app = distant_queue(), App()

    @app.task("work")
    async def cancels_itself(input: Any) -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return "done"

    task = await queue.submit("work", None, ONCE)
    async with working(queue, app) as worker:
        assert (await ended(queue, task.id)).output == "done"
    assert (worker.stats.claimed, worker.stats.acked) == (1, 1)


@fast
async def test_a_worker_whose_every_slot_is_stuck_is_not_well() -> None:
    queue, app, release = Queue(MemoryStore()), App(), threading.Event()

    @app.task("hang", timeout_s=0.2)
    def hang(input: Any) -> None:
        release.wait(30)

    async with working(queue, app, concurrency=2, cancel_grace_s=0.2) as worker:
        await queue.submit("hang", None, ONCE)
        await until(holds(lambda: worker.snapshot().stuck == 1))
        assert find_problems(worker.health()) == []
        await queue.submit("hang", None, ONCE)
        assert "stuck" in (await until(holds(lambda: find_problems(worker.health()))))[0]
        release.set()
        await until(holds(lambda: find_problems(worker.health()) == []))


def due(task_id: str) -> Due:
    return Due(task_id, f"ready/{task_id}", "etag", 0, AT, AT, 0)


def taken(shelf: DeferredTasks, wanted: int = 100) -> list[str]:
    return [each.task_id for each in shelf.take(wanted)]
