"""What becomes of a task when its handler returns, raises, hangs, or asks for something."""

from __future__ import annotations

import asyncio
import contextvars
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from qo.core.commands import Cancel
from qo.core.task import Status, Task
from qo.errors import UsageError
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.layers import ServiceOptions
from support.stores.queues import AT_ONCE, app_of, drain, ended, hints, path_of, virtual_queue, working

P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


async def outcome(queue: Queue, function: Callable[..., Any], input: Any = None, **options: Any) -> Task:
    """What a handler makes of one task, retries included."""
    task = await queue.submit(function.__name__, input, Options(**{"retry_policy": AT_ONCE, **options}))
    async with working(queue, app_of(function)):
        return await ended(queue, task.id)


async def test_handlers_of_both_kinds_get_the_input_and_give_the_output(queue: Queue) -> None:
    async def double(input: int) -> int:
        return input * 2

    def half(input: int, ctx: Context) -> dict[str, Any]:
        return {"half": input / 2, "attempt": ctx.attempt, "id": ctx.task_id, "worker": ctx.worker_id}

    tasks = await queue.submit_many([NewTask("double", 21), NewTask("half", 42)])
    tally = await drain(queue, app_of(double, half), worker_id="ada")
    assert (tally.claimed, tally.completed) == (2, 2)
    doubled, halved = [await queue.get(task.id) for task in tasks]
    assert (doubled.status, doubled.output) == (C, 42)
    assert halved.output == {"half": 21, "attempt": 1, "id": tasks[1].id, "worker": "ada"}
    assert await hints(queue) == set()


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), OSError("disk"), TimeoutError("slow"), KeyError("k"), RuntimeError("")],
    ids=lambda error: type(error).__name__,
)
async def test_any_exception_is_retried_and_kept_with_its_traceback(queue: Queue, error: Exception) -> None:
    def fails(input: Any) -> None:
        raise error

    task = await outcome(queue, fails, max_retries=1)
    assert (task.status, task.attempt, task.retry_count) == (F, 2, 1)
    assert (task.last_error or "").startswith(type(error).__name__)
    assert "in fails" in (task.traceback or "")


async def test_a_handler_that_raises_stop_iteration_fails_instead_of_hanging(queue: Queue) -> None:
    """A future cannot carry that exception, and a coroutine cannot raise it."""

    def fails(input: Any) -> None:
        next(iter(()))

    task = await outcome(queue, fails, max_retries=0)
    assert task.status is F
    assert "in fails" in (task.traceback or "")


async def test_a_task_that_succeeds_at_last_is_completed(queue: Queue) -> None:
    def third_time(input: Any, ctx: Context) -> str:
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return "lucky"

    task = await outcome(queue, third_time)
    assert (task.status, task.output, task.last_error) == (C, "lucky", None)
    assert await path_of(queue, task.id) == [(P, 0), (R, 1), (P, 1), (R, 2), (P, 2), (R, 3), (C, 3)]


async def test_reject_fails_at_once(queue: Queue) -> None:
    async def never(input: Any) -> None:
        raise Reject("malformed address")

    task = await outcome(queue, never)
    assert (task.status, task.attempt, task.last_error) == (F, 1, "malformed address")


async def test_retry_may_name_its_delay(queue: Queue) -> None:
    async def later(input: Any) -> None:
        raise Retry("busy", delay_s=3600)

    task = await queue.submit("later")
    await drain(queue, app_of(later))
    task = await queue.get(task.id)
    assert (task.status, task.retry_count, task.last_error) == (P, 1, "busy")
    assert 3590 < (task.available_at - task.updated_at).total_seconds() <= 3600


async def test_reschedule_costs_no_retry(queue: Queue) -> None:
    async def limited(input: Any, ctx: Context) -> str:
        if ctx.attempt < 3:
            raise Reschedule(0)
        return "through"

    task = await outcome(queue, limited, max_retries=0)
    assert (task.status, task.output, task.retry_count, task.reschedule_count) == (C, "through", 0, 2)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handler_that_exits_does_not_end_the_worker(queue: Queue, kind: str) -> None:
    def exits(input: Any) -> None:
        sys.exit(3)

    async def exits_too(input: Any) -> None:
        sys.exit(3)

    def fine(input: Any) -> str:
        return "fine"

    bad = exits if kind == "sync" else exits_too
    first = await queue.submit(bad.__name__, options=Options(max_retries=0))
    second = await queue.submit("fine")
    async with working(queue, app_of(bad, fine), concurrency=1):
        assert (await ended(queue, first.id)).last_error == "SystemExit: 3"
        assert (await ended(queue, second.id)).output == "fine"


async def test_a_handler_whose_own_subtask_was_cancelled_has_failed(queue: Queue) -> None:
    """It is not the worker that gave the attempt up, so the attempt is settled and not left to its lease."""

    async def cancels_itself(input: Any) -> None:
        subtask = asyncio.create_task(asyncio.sleep(60))
        subtask.cancel()
        await subtask

    task = await outcome(queue, cancels_itself, max_retries=1)
    assert (task.status, task.attempt) == (F, 2)
    assert (task.last_error or "").startswith("CancelledError")


async def test_a_type_error_inside_a_handler_is_not_mistaken_for_a_missing_parameter(queue: Queue) -> None:
    calls: list[tuple[Any, ...]] = []

    def confused(*arguments: Any) -> None: ...

    def raises(input: Any) -> None:
        calls.append((input,))
        raise TypeError("raises() takes 1 positional argument but 2 were given, got 2")

    with pytest.raises(UsageError, match="must take the input"):
        App().task("confused")(confused)
    task = await outcome(queue, raises, 7, max_retries=0)
    assert task.status is F
    assert calls == [(7,)]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("by", "remedy"),
    [("task", r"qo submit --timeout"), ("handler", r"@app\.task\(\.\.\., timeout_s"), ("worker", r"QO_TIMEOUT_S")],
)
def test_an_attempt_that_timed_out_says_which_setting_gave_it_so_little(by: str, remedy: str) -> None:
    async def story() -> None:
        queue, app = virtual_queue(), App()

        async def hangs(input: Any) -> None:
            await asyncio.sleep(3600)

        app.task("hangs", **({"timeout_s": 7.0} if by == "handler" else {}))(hangs)
        options = Options(max_retries=0, timeout_s=7.0 if by == "task" else None)
        task = await queue.submit("hangs", None, options)
        service = ServiceOptions(timeout_s=7.0) if by == "worker" else ServiceOptions()
        await drain(queue, app, service=service)
        error = (await queue.get(task.id)).last_error or ""
        assert re.match(f"timed out after 7 s: .*{remedy}", error)

    virtual.run(story())


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handler_is_stopped_at_its_timeout(queue: Queue, kind: str) -> None:
    released = threading.Event()

    async def hangs_async(input: Any) -> None:
        await asyncio.sleep(60)

    def hangs_sync(input: Any) -> None:
        released.wait(60)

    try:
        task = await outcome(queue, hangs_async if kind == "async" else hangs_sync, timeout_s=0.3, max_retries=0)
    finally:
        released.set()
    assert task.status is F
    assert task.last_error is not None
    assert task.last_error.startswith("timed out after 0.3 s: it was submitted with this limit")


async def test_a_timeout_of_the_handlers_own_is_reported_as_such(queue: Queue) -> None:
    async def impatient(input: Any) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    task = await outcome(queue, impatient, max_retries=0)
    assert task.last_error == "TimeoutError"
    assert "in impatient" in (task.traceback or "")


REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="none")


async def test_context_variables_reach_sync_handlers(queue: Queue) -> None:
    def reads(input: Any) -> str:
        return REQUEST.get()

    REQUEST.set("set where the worker was started")
    assert (await outcome(queue, reads)).output == "set where the worker was started"


async def test_sync_handlers_run_side_by_side(queue: Queue) -> None:
    together = threading.Barrier(4)

    def meets(input: int) -> int:
        return together.wait(10)

    tasks = await queue.submit_many([NewTask("meets", n) for n in range(4)])
    await drain(queue, app_of(meets), concurrency=4)
    assert {(await queue.get(task.id)).output for task in tasks} == {0, 1, 2, 3}


async def test_an_output_that_no_json_can_hold_fails_the_task_at_once(queue: Queue) -> None:
    async def odd(input: Any) -> Any:
        return {1, 2}

    task = await outcome(queue, odd)
    assert (task.status, task.attempt) == (F, 1)
    assert "the output" in (task.last_error or "")


async def test_a_handler_sees_the_request_to_cancel_when_it_renews(queue: Queue) -> None:
    begun, asked = asyncio.Event(), asyncio.Event()

    async def polite(input: Any, ctx: Context) -> str:
        begun.set()
        await asked.wait()
        await ctx.renew(progress={"percent": 50})
        return "stopped early" if ctx.cancel_requested else "did not notice"

    task = await queue.submit("polite")
    async with working(queue, app_of(polite)):
        await begun.wait()
        # Not through Queue.cancel, which also tells the worker: it could stop the attempt before it renews.
        snapshot = await queue.tasks.load(task.id)
        assert snapshot is not None
        await queue.tasks.apply(snapshot, Cancel(queue.ambient.token()))
        asked.set()
        task = await ended(queue, task.id)
    assert (task.status, task.output, task.progress) == (Status.CANCELLED, "stopped early", {"percent": 50})


async def test_a_handler_can_submit_another_task(queue: Queue) -> None:
    async def parent(input: int, ctx: Context) -> str:
        return (await ctx.submit("child", input + 1)).id

    async def child(input: int) -> int:
        return input

    task = await queue.submit("parent", 1)
    async with working(queue, app_of(parent, child)):
        parent_done = await ended(queue, task.id)
        assert (await ended(queue, parent_done.output)).output == 2


@pytest.mark.fast
def test_a_handler_that_asks_for_more_time_gets_it() -> None:
    async def main() -> None:
        queue = virtual_queue()

        async def asks(input: Any, ctx: Context) -> str:
            await asyncio.sleep(9)
            await ctx.renew(30)
            await asyncio.sleep(input)
            return "done"

        enough = await queue.submit("asks", 25, Options(timeout_s=10, max_retries=0))
        too_long = await queue.submit("asks", 35, Options(timeout_s=10, max_retries=0))
        monitor = Monitor(queue)
        async with working(queue, app_of(asks)):
            for _ in range(60):
                await asyncio.sleep(1)
                await monitor.check()
        assert (await queue.get(enough.id)).output == "done"
        last_error = (await queue.get(too_long.id)).last_error or ""
        assert last_error.startswith("timed out after 39 s: ")

    virtual.run(main())


@pytest.mark.fast
def test_renewing_by_routine_never_cuts_short_what_a_handler_asked_for() -> None:
    async def main() -> None:
        queue = virtual_queue()

        async def long(input: Any, ctx: Context) -> str:
            await ctx.renew(600)
            await asyncio.sleep(300)
            return "done"

        task = await queue.submit("long", options=Options(timeout_s=5, max_retries=0))
        monitor = Monitor(queue)
        async with working(queue, app_of(long)):
            for _ in range(310):
                await asyncio.sleep(1)
                await monitor.check()
        assert (await queue.get(task.id)).output == "done"

    virtual.run(main())


@pytest.mark.fast
async def test_the_same_type_cannot_have_two_handlers() -> None:
    app = app_of(drain)
    with pytest.raises(UsageError, match="two handlers"):
        app.task("drain")(drain)
