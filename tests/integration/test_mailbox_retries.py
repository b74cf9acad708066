"""A worker's mailbox: timeouts, failures for good, and retries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.core.poll import Pace
from qo.core.task import RetryPolicy, Status, Task
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.api.signals import Reject, Retry
from qo.worker.layers import ServiceOptions
from support.stores.queues import AT_ONCE, app_of, ended, until, virtual_queue, working
from support.worker.checked_worker import books, in_virtual_time

__all__ = ["books"]

pytestmark = pytest.mark.fast


P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


NEVER_S = 3600.0


async def has_ended(queue: Queue, task_id: str) -> Task | None:
    task = await queue.get(task_id)
    return task if task.ended else None


async def true(value: object) -> bool:
    return bool(value)


@in_virtual_time
async def test_a_timeout_cancels_counts_and_frees_the_slot() -> None:
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
async def test_every_attempt_that_times_out_is_counted() -> None:
    queue = virtual_queue()

    async def endless(input: Any) -> None:
        await asyncio.sleep(NEVER_S)

    task = await queue.submit("endless", options=Options(timeout_s=2, max_retries=2, retry_policy=AT_ONCE))
    async with working(queue, app_of(endless)) as worker:
        assert (await ended(queue, task.id)).attempt == 3
    assert worker.stats.timeouts == 3


@pytest.mark.parametrize("whose", ["the handler's", "the worker's"])
@in_virtual_time
async def test_none_disables_the_timeout(whose: str) -> None:
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
async def test_waiting_for_a_permit_is_not_counted() -> None:
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
async def test_a_failure_for_good_is_final_at_once_and_keeps_its_error_and_traceback() -> None:
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
async def test_the_error_of_the_last_attempt_stays_when_retries_are_used_up() -> None:
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
async def test_the_delay_of_a_retry_is_honoured_and_jittered() -> None:
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
async def test_the_delay_of_a_retry_survives_restarts() -> None:
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
