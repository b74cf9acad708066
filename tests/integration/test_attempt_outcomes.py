"""What becomes of an attempt, what is counted, and what is logged."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from qo.core.discovery import IndexMode
from qo.core.task import Status, Task
from qo.errors import UsageError
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import BlockingContext, Context
from qo.worker.api.handler import Rate
from qo.worker.api.request import Request
from qo.worker.api.signals import Reject
from qo.worker.layers.stack import Service
from qo.worker.loop.cancel import CancelToken
from qo.worker.loop.outcome import Outcome
from qo.worker.worker import Worker
from support.stores.queues import AT_ONCE, app_of, config, drain, ended, hasty, until, virtual_queue, working
from support.worker.checked_worker import Books, books, in_virtual_time

__all__ = ["books"]  # Applies to every test here.


pytestmark = pytest.mark.fast


P, C, F, X = Status.PENDING, Status.COMPLETED, Status.FAILED, Status.CANCELLED


NEVER_S = 10_000.0


@pytest.fixture
def queue() -> Queue:
    """In real time, for handlers on threads."""
    return Queue(MemoryStore(), ambient=hasty())


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging handlers wait for; opened at the end, so that no thread outlives its test."""
    gate = threading.Event()
    yield gate
    gate.set()


async def true(holds: object) -> bool:
    return bool(holds)


async def test_a_limit_of_one_holds_while_a_call_that_timed_out_still_runs(
    queue: Queue, gate: threading.Event
) -> None:
    app, running, most = App(), 0, 0

    @app.task("one-by-one", concurrency=1)
    def one_by_one(input: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        gate.wait(60)
        running -= 1

    async with working(queue, app, concurrency=4) as worker:
        hangs = await queue.submit("one-by-one", options=Options(timeout_s=0.1, max_retries=0))
        assert (await ended(queue, hangs.id)).status is F
        waits = await queue.submit("one-by-one", options=Options(timeout_s=60))
        looks = worker.stats.looks
        await until(lambda: true(worker.stats.looks >= looks + 3))  # Enough of them to have found it.
        assert (await queue.get(waits.id)).status is P
        gate.set()
        assert (await ended(queue, waits.id)).status is C
    assert most == 1


async def test_a_retry_of_a_call_that_timed_out_runs_here_once_the_old_one_has_returned(
    queue: Queue, gate: threading.Event
) -> None:
    def hangs(input: Any, ctx: BlockingContext) -> int:
        gate.wait(60)
        return ctx.attempt

    task = await queue.submit("hangs", options=Options(timeout_s=0.5, retry_policy=AT_ONCE))
    mode = IndexMode.INDEX_ONLY  # A scan would find it in any case, a minute later.
    async with working(queue, app_of(hangs), concurrency=2, index_mode=mode) as worker:
        await until(lambda: true(worker.stats.retried))
        deferred = worker._feed._deferred  # By task and hint: the retry was found too, and put off.
        await until(lambda: true([task_id for task_id, _ in deferred].count(task.id) == 2))
        assert (await queue.get(task.id)).status is P
        gate.set()

        async def done() -> Task | None:
            now = await queue.get(task.id)
            return now if now.ended else None

        again = await until(done, within_s=6)  # Two seconds, at the pace of this queue, are much less than that.
    assert (again.status, again.output) == (C, 2)


async def test_a_function_that_ends_within_its_grace_after_a_hurry_has_not_worked_in_vain(queue: Queue) -> None:
    begun = threading.Event()

    def saves(input: Any, ctx: BlockingContext) -> str:
        begun.set()
        assert ctx.cancel.wait(30)
        return "saved"

    task = await queue.submit("saves", options=Options(timeout_s=60))
    async with working(queue, app_of(saves), cancel_grace_s=20) as worker:
        await until(lambda: true(begun.is_set()))
        worker.hurry()
    done = await queue.get(task.id)
    assert (done.status, done.output, done.attempt) == (C, "saved", 1)
    assert (worker.stats.acked, worker.stats.released) == (1, 0)


def test_waiting_for_a_wish_to_stop_leaves_nothing_behind() -> None:
    def made() -> int:
        return sum(isinstance(each, threading.Event) for each in gc.get_objects())

    token = CancelToken()
    before = made()
    for _ in range(10_000):
        assert not token.wait(0)
    assert made() - before < 10


@in_virtual_time
async def test_a_handler_that_cancels_its_own_asyncio_task_has_failed() -> None:
    queue, calls = virtual_queue(), 0

    async def gives_up(input: Any) -> None:
        nonlocal calls
        calls += 1
        attempt = asyncio.current_task()
        assert attempt is not None
        if calls < 100:  # For ever, if nobody counts.
            attempt.cancel()
        await asyncio.sleep(0)

    task = await queue.submit("gives_up", options=Options(max_retries=2, retry_policy=AT_ONCE))
    async with working(queue, app_of(gives_up)) as worker:
        failed = await ended(queue, task.id)
    assert (failed.status, failed.retry_count, calls) == (F, 2, 3)
    assert "cancelled its own asyncio task" in (failed.last_error or "")
    assert (worker.stats.retried, worker.stats.dead, worker.stats.released) == (2, 1, 0)


@in_virtual_time
async def test_a_task_that_was_cancelled_here_ends_and_counts_as_cancelled() -> None:
    queue = virtual_queue()

    async def endless(input: Any) -> None:
        await asyncio.sleep(NEVER_S)

    task = await queue.submit("endless", options=Options(timeout_s=NEVER_S))
    async with working(queue, app_of(endless)) as worker:
        await until(lambda: true(worker.stats.started))
        assert worker.cancel(task.id)
        stopped = await ended(queue, task.id)
    assert stopped.status is X
    stats = worker.stats
    assert (stats.cancelled, stats.failed, stats.terminal_failures, stats.dead) == (1, 0, 0, 1)


@in_virtual_time
async def test_a_layer_that_returns_nothing_fails_the_attempt_and_says_so(books: Books) -> None:
    def forgetful(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            await inner(request)
            return None  # type: ignore[return-value]

        return run

    app, queue = App(layers=[forgetful]), virtual_queue()

    @app.task("work")
    async def work(input: Any) -> None: ...

    task = await queue.submit("work", options=Options(max_retries=1, retry_policy=AT_ONCE))
    async with working(queue, app, concurrency=1) as worker:
        failed = await ended(queue, task.id)
    assert (failed.status, failed.retry_count) == (F, 1)
    assert "a layer gave None" in (failed.last_error or "")
    assert (worker.stats.claimed, worker.stats.retried, worker.stats.dead) == (2, 1, 1)
    assert books.steps > 0


async def test_a_layer_factory_that_returns_nothing_is_refused_at_the_start(queue: Queue) -> None:
    app = App(layers=[lambda inner: None])  # type: ignore[arg-type, return-value]

    @app.task("work")
    async def work(input: Any) -> None: ...

    with pytest.raises(UsageError, match="gave None instead of a service"):
        Worker(queue, app, config())


@in_virtual_time
async def test_a_rate_limit_lets_no_more_begin_in_any_window_than_it_says() -> None:
    app, queue, begun = App(), virtual_queue(), list[float]()

    @app.task("limited", rate=Rate(3, per_s=10))
    async def limited(input: Any) -> None:
        begun.append(virtual.monotonic())

    await queue.submit_many([NewTask("limited", options=Options(retry_policy=AT_ONCE)) for _ in range(12)])
    stats = await drain(queue, app)
    assert (stats.acked, stats.failed, len(begun)) == (12, 0, 12)
    for since in begun:
        assert sum(since <= at < since + 10 - 1e-6 for at in begun) <= 3


@in_virtual_time
async def test_the_last_word_on_its_progress_is_on_the_completed_task() -> None:
    queue = virtual_queue()

    async def counts(input: Any, ctx: Context) -> None:
        for n in range(1, 8):
            ctx.progress({"done": n})
            await asyncio.sleep(1)

    task = await queue.submit("counts")
    await drain(queue, app_of(counts))
    done = await queue.get(task.id)
    assert (done.status, done.progress) == (C, {"done": 7})


async def rejects(input: Any) -> None:
    raise Reject("no such account")


@dataclass
class Order:
    amount: int


async def misfit(input: Order) -> None: ...


async def unwritable(input: Any) -> object:
    return object()


@pytest.mark.parametrize("handler", [rejects, misfit, unwritable])
@in_virtual_time
async def test_a_failure_for_good_is_warned_of(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    queue = virtual_queue()
    task = await queue.submit(handler.__name__, "text", Options(max_retries=5))
    stats = await drain(queue, app_of(handler))
    failed = await queue.get(task.id)
    assert (failed.status, stats.dead, stats.terminal_failures) == (F, 1, 1)
    assert failed.last_error is not None
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [failed.last_error in line for line in warned if task.id in line] == [True]


@in_virtual_time
async def test_a_percent_sign_in_a_task_type_stays_in_the_lines_of_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, queue = App(), virtual_queue()
    caplog.set_level(logging.INFO, logger="qo.task")

    @app.task("50%s off")
    async def reduce(input: Any, ctx: Context) -> None:
        ctx.log.info("%d of %d", 1, 2)
        ctx.log.info("all of 100%")

    task = await queue.submit("50%s off")
    stats = await drain(queue, app)
    lines = [record.getMessage() for record in caplog.records if record.name == "qo.task"]
    assert lines == [f"50%s off {task.id}#1: {line}" for line in ("1 of 2", "all of 100%")]
    assert {record.funcName for record in caplog.records if record.name == "qo.task"} == {"reduce"}
    assert stats.acked == 1
