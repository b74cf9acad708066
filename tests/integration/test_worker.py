"""Workers: what becomes of a task when its handler returns, raises, hangs, or the worker has to go."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core import wire
from qo.core.poll import Pace
from qo.core.pricing import Operation
from qo.core.task import Status, Task
from qo.errors import UsageError
from qo.queue import roster
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.testing import virtual
from qo.worker.app import App
from qo.worker.context import Context
from qo.worker.signals import Reject, Reschedule, Retry
from qo.worker.worker import Worker
from stores import AT_ONCE, another, config, drain, ended, hints, path_of, until, wanted_hints, working

P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


def app_of(*functions: Callable[..., Any]) -> App:
    """An app whose task types are the functions' names."""
    app = App()
    for function in functions:
        app.task(function.__name__)(function)
    return app


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


async def test_a_full_queue_is_drained_by_several_workers_each_task_once(queue: Queue) -> None:
    ran: list[str] = []

    async def work(input: int, ctx: Context) -> None:
        ran.append(ctx.task_id)

    tasks = await queue.submit_many([NewTask("work", n) for n in range(60)])
    workers = [drain(another(queue), app_of(work), worker_id=f"w{n}", ready_page_size=20) for n in range(3)]
    tallies = await asyncio.gather(*workers)
    assert sorted(ran) == sorted(task.id for task in tasks)
    assert sum(tally.completed for tally in tallies) == 60
    assert await queue.list(status=P) == []
    assert len(await queue.list(status=C, limit=200)) == 60


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
    assert task.last_error == "timed out after 0.3 s"


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


async def test_types_without_a_handler_are_left_alone(queue: Queue) -> None:
    def known(input: Any) -> None: ...

    strangers = await queue.submit_many([NewTask("unknown", n) for n in range(30)])
    mine = await queue.submit("known")
    tally = await drain(queue, app_of(known), ready_page_size=3)
    assert (tally.claimed, tally.completed) == (1, 1)
    assert (await queue.get(mine.id)).status is C
    for task in strangers[:5]:
        assert await queue.history(task.id) == [task], "not even touched"


async def test_a_worker_polls_only_its_shards(queue: Queue) -> None:
    def work(input: Any) -> None: ...

    tasks = await queue.submit_many([NewTask("work", n) for n in range(40)])
    mine = {task.id for task in tasks if task.shard in "0123"}
    await drain(queue, app_of(work), shards=("0", "1", "2", "3"))
    assert {task.id for task in await queue.list(status=C)} == mine
    assert mine


async def test_a_stopped_worker_finishes_what_it_holds_and_takes_no_more(queue: Queue) -> None:
    go = asyncio.Event()
    begun: list[str] = []

    async def slow(input: int, ctx: Context) -> str:
        begun.append(ctx.task_id)
        await go.wait()
        return "finished"

    await queue.submit_many([NewTask("slow", n) for n in range(6)])
    worker = Worker(queue, app_of(slow), config(concurrency=2))
    running = asyncio.create_task(worker.run())
    await until(lambda: _true(len(begun) == 2))
    worker.stop()
    go.set()
    tally = await running
    assert (tally.claimed, tally.completed, tally.released) == (2, 2, 0)
    assert {t.id for t in await queue.list(status=C)} == set(begun)
    assert len(await queue.list(status=P)) == 4


async def _true(value: bool) -> bool:
    return value


@pytest.mark.parametrize("how", ["grace over", "hurried"])
async def test_shutdown_gives_unfinished_tasks_back_at_no_cost(queue: Queue, how: str) -> None:
    begun: list[str] = []

    async def endless(input: int, ctx: Context) -> None:
        begun.append(ctx.task_id)
        await asyncio.sleep(3600)

    await queue.submit_many([NewTask("endless", n, Options(max_retries=0)) for n in range(3)])
    grace_s = 0.0 if how == "grace over" else 60.0
    worker = Worker(queue, app_of(endless), config(concurrency=3, shutdown_grace_s=grace_s))
    running = asyncio.create_task(worker.run())
    await until(lambda: _true(len(begun) == 3))
    worker.stop()
    if how == "hurried":
        worker.hurry()
    tally = await running
    assert tally.released == 3
    given_back = await queue.list(status=P)
    assert {task.id for task in given_back} == set(begun)
    assert all((task.retry_count, task.attempt) == (0, 1) for task in given_back)
    assert await hints(queue) == wanted_hints(*given_back)
    assert await roster.workers(queue.store) == [], "who leaves signs off"


async def test_cancelling_a_running_task_stops_its_handler(queue: Queue) -> None:
    stopped: list[str] = []
    begun = asyncio.Event()

    async def endless(input: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            stopped.append("stopped")
            raise

    task = await queue.submit("endless")
    async with working(queue, app_of(endless), heartbeat_s=0.05):
        await begun.wait()
        await another(queue).cancel(task.id, reason="enough")
        task = await ended(queue, task.id)
    assert (task.status, task.cancel_reason, stopped) == (Status.CANCELLED, "enough", ["stopped"])


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
        await another(queue).cancel(task.id)
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


async def test_a_corrupt_task_does_not_stop_the_worker(queue: Queue) -> None:
    def work(input: Any) -> None: ...

    broken, good = await queue.submit("work"), await queue.submit("work")
    await queue.store.put(queue.tasks.key(broken.id), b"{ not json")
    tally = await drain(queue, app_of(work))
    assert (tally.claimed, tally.completed) == (1, 1)
    assert (await queue.get(good.id)).status is C


async def test_a_hint_without_a_task_is_removed_on_the_way(queue: Queue) -> None:
    task = await queue.submit("work")
    await queue.store.delete(queue.tasks.key(task.id))
    await drain(queue, App())
    assert await hints(queue) == set()


async def test_a_worker_says_what_it_is_doing(queue: Queue) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def slow(input: Any) -> None:
        begun.set()
        await go.wait()

    task = await queue.submit("slow")
    async with working(queue, app_of(slow), worker_id="ada", heartbeat_s=0.02, shards=(task.shard,)):
        await begun.wait()

        async def reported() -> bool:
            (info,) = await roster.workers(queue.store)
            return info.current_task == task.id

        await until(reported)
        (info,) = await roster.workers(queue.store)
        assert (info.worker_id, info.task_types, info.shards) == ("ada", ["slow"], [task.shard])
        go.set()
        await ended(queue, task.id)


async def test_a_lost_lease_stops_the_handler_and_counts_nothing_as_done(queue: Queue) -> None:
    stopped = asyncio.Event()

    async def endless(input: Any) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    task = await queue.submit("endless", options=Options(timeout_s=3600))
    async with working(queue, app_of(endless), heartbeat_s=0.05) as worker:
        await until(lambda: _true(worker.tally.claimed == 1))
        # As after a lapse: somebody else owns the task now.
        robbed = replace(await queue.get(task.id), lease_id="another")
        await queue.store.put(queue.tasks.key(task.id), wire.encode(robbed))
        await asyncio.wait_for(stopped.wait(), 10)
        await until(lambda: _true(worker.tally.lost == 1))
        assert (worker.tally.completed, worker.tally.failed) == (0, 0)


@pytest.mark.fast
def test_a_task_that_vanishes_does_not_cost_others_their_renewals() -> None:
    """Renewal goes on for all other tasks when one task object was deleted or damaged by hand."""

    async def main() -> None:
        queue = _virtual_queue()

        async def slow(input: Any) -> str:
            await asyncio.sleep(input)
            return "done"

        damaged = await queue.submit("slow", 200, Options(timeout_s=300))
        good = await queue.submit("slow", 200, Options(timeout_s=300))
        async with working(queue, app_of(slow)):
            await asyncio.sleep(1)
            await queue.store.put(queue.tasks.key(damaged.id), b"damaged")
            await asyncio.sleep(150)
            held = await queue.get(good.id)
            assert (await queue.store.now() - held.updated_at).total_seconds() < 30, "renewed a moment ago"
            await asyncio.sleep(100)
            assert (await queue.get(good.id)).output == "done"

    virtual.run(main())


@pytest.mark.fast
def test_a_task_that_is_still_listed_while_it_runs_is_neither_forgotten_nor_run_twice() -> None:
    async def main() -> None:
        queue, begun = _virtual_queue(), 0

        async def slow(input: Any) -> str:
            nonlocal begun
            begun += 1
            await asyncio.sleep(100)
            return "done"

        task = await queue.submit("slow", options=Options(timeout_s=300))
        (ready,) = wanted_hints(task)
        async with working(queue, app_of(slow)):
            await asyncio.sleep(1)
            await queue.store.put(ready, b"")  # As if its removal had failed.
            await asyncio.sleep(80)
            held = await queue.get(task.id)
            assert (await queue.store.now() - held.updated_at).total_seconds() < 20, "still being renewed"
            await asyncio.sleep(20)
        assert (begun, (await queue.get(task.id)).output) == (1, "done")

    virtual.run(main())


@pytest.mark.fast
def test_a_handler_that_asks_for_more_time_gets_it() -> None:
    async def main() -> None:
        queue = _virtual_queue()

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
        assert (await queue.get(too_long.id)).last_error == "timed out after 39 s"

    virtual.run(main())


@pytest.mark.fast
def test_renewing_by_routine_never_cuts_short_what_a_handler_asked_for() -> None:
    async def main() -> None:
        queue = _virtual_queue()

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
@pytest.mark.parametrize("seed", range(20))
def test_a_worker_that_leaves_in_the_middle_of_a_claim_leaves_nothing_running(seed: int) -> None:
    async def main() -> None:
        ambient = Ambient.seeded(seed, virtual.monotonic)
        inner = MemoryStore(clock=virtual.wall_clock)
        slow = Queue(Faulty(inner, FaultPlan(latency_s=(0.01, 0.2)), ambient), ambient=ambient)
        queue = Queue(inner, ambient=ambient)

        async def work(input: Any) -> None:
            await asyncio.sleep(input)

        tasks = await queue.submit_many([NewTask("work", n % 2 * 1000) for n in range(20)])
        worker = Worker(slow, app_of(work), config(concurrency=4, shutdown_grace_s=0))
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(ambient.unit() * 3)
        worker.stop()
        asked = virtual.monotonic()
        tally = await running
        assert virtual.monotonic() - asked < 5, "it does not begin anything any more"
        for task in [await queue.get(task.id) for task in tasks]:
            assert task.status in (P, C)
            assert task.retry_count == 0
        assert tally.claimed == tally.completed + tally.released

    virtual.run(main())


@pytest.mark.fast
def test_an_idle_worker_survives_an_outage_and_works_on_after_it() -> None:
    async def main() -> None:
        ambient = Ambient.seeded(1, virtual.monotonic)
        inner = MemoryStore(clock=virtual.wall_clock)
        faulty = Faulty(inner, FaultPlan(outages_s=((5, 65),)), ambient)
        queue = Queue(faulty, ambient=ambient)

        async def work(input: Any) -> None: ...

        async with working(queue, app_of(work)):
            await asyncio.sleep(70)
            task = await queue.submit("work")
            assert (await ended(queue, task.id)).status is C

    virtual.run(main())


@pytest.mark.fast
def test_a_finished_task_is_reported_even_if_the_store_is_away_for_a_moment() -> None:
    async def main() -> None:
        ambient = Ambient.seeded(1, virtual.monotonic)
        inner = MemoryStore(clock=virtual.wall_clock)
        faulty = Faulty(inner, FaultPlan(outages_s=((5, 12),)), ambient)
        queue = Queue(faulty, ambient=ambient)

        async def work(input: Any) -> str:
            await asyncio.sleep(6)
            return "worth keeping"

        task = await queue.submit("work")
        async with working(queue, app_of(work)):
            await asyncio.sleep(60)
        done = await queue.get(task.id)
        assert (done.output, done.attempt) == ("worth keeping", 1)

    virtual.run(main())


@pytest.mark.fast
def test_a_worker_with_nothing_to_do_asks_less_and_less_often() -> None:
    async def main() -> int:
        meter = Metered(MemoryStore(clock=virtual.wall_clock))
        queue = Queue(meter, ambient=Ambient.seeded(1, virtual.monotonic))
        worker = Worker(queue, App(), config(pace=Pace(), heartbeat_s=3600))
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(600)
        worker.stop()
        await running
        return meter.counts[Operation.LIST]

    lists = virtual.run(main())
    assert 100 < lists < 160, "one LIST about every five seconds, and one page of tasks a minute"


def _virtual_queue() -> Queue:
    return Queue(MemoryStore(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))


@pytest.mark.fast
async def test_the_same_type_cannot_have_two_handlers() -> None:
    app = app_of(drain)
    with pytest.raises(UsageError, match="two handlers"):
        app.task("drain")(drain)
