"""Handlers that take many tasks in one call: each task keeps its own claim, lease, timeout and outcome."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import child_functions as functions
import pytest

import qo
from qo.core.task import Status
from qo.errors import UsageError
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.api.handler import make_handler
from qo.worker.api.request import Request
from qo.worker.executors import Executor
from qo.worker.executors.batches import Batches
from qo.worker.loop.cancel import Why
from qo.worker.worker import Worker
from support.stores.queues import AT_ONCE, config, drain, ended, hasty, until, virtual_queue, working
from support.worker.layer_requests import attempt

ONCE = Options(max_retries=0)


@dataclass
class Row:
    n: int


async def outcomes(queue: Queue, ids: list[str]) -> list[Status]:
    return [(await queue.get(task_id)).status for task_id in ids]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_many_tasks_are_one_call_and_each_has_its_own_end(queue: Queue, kind: str) -> None:
    calls: list[list[int]] = []
    app = App()

    def index(items: list[tuple[Row, Any]]) -> list[Any]:
        calls.append([row.n for row, _ in items])
        assert len({ctx.task_id for _, ctx in items}) == len(items)
        return [ValueError("odd") if row.n % 2 else row.n * 10 for row, _ in items]

    async def index_async(items: list[tuple[Row, Context]]) -> list[Any]:
        return index(items)

    app.task("index", batch=8, batch_wait_s=0.05)(index if kind == "thread" else index_async)
    tasks = await queue.submit_many([NewTask("index", {"n": n}, ONCE) for n in range(24)])
    stats = await drain(queue, app, concurrency=2)  # Fewer slots than a batch has tasks.
    assert sorted(n for call in calls for n in call) == list(range(24))
    assert max(map(len, calls)) <= 8
    assert len(calls) < 24
    assert (stats.acked, stats.dead) == (12, 12)
    for n, task in enumerate(tasks):
        done = await queue.get(task.id)
        assert (done.output, done.last_error) == ((None, "ValueError: odd") if n % 2 else (n * 10, None))


@pytest.mark.fast
def test_a_full_batch_begins_at_once_and_a_part_of_one_after_the_wait() -> None:
    times: list[tuple[float, int]] = []
    app = App()

    @app.task("index", batch=4, batch_wait_s=1.5)
    async def index(items: list[Any]) -> None:
        times.append((asyncio.get_running_loop().time() - start[0], len(items)))

    start = [0.0]

    async def main() -> None:
        queue = virtual_queue()
        start[0] = asyncio.get_running_loop().time()
        await queue.submit_many([NewTask("index", n) for n in range(6)])
        await drain(queue, app)

    virtual.run(main())
    (first, four), (second, two) = times
    assert (four, two) == (4, 2)
    assert first < 0.5
    assert 1.5 <= second < 2.5


@pytest.mark.fast
def test_waiting_for_company_does_not_count_towards_the_timeout() -> None:
    app = App()

    @app.task("index", batch=10, batch_wait_s=30, timeout_s=2)
    async def index(items: list[Any]) -> None:
        await asyncio.sleep(1)

    async def main() -> int:
        queue = virtual_queue()
        await queue.submit("index", options=ONCE)
        return (await drain(queue, app)).completed

    assert virtual.run(main()) == 1


@pytest.mark.fast
def test_an_exception_concerns_all_and_the_last_attempt_is_alone() -> None:
    sizes: list[int] = []
    app = App()

    @app.task("index", batch=10)
    async def index(items: list[Any]) -> None:
        sizes.append(len(items))
        for input, _ in items:
            if input == "poison":
                raise ValueError("kaput")

    async def main() -> list[Status]:
        queue = virtual_queue()
        options = Options(max_retries=2, retry_policy=AT_ONCE)
        tasks = [await queue.submit("index", input, options) for input in ("a", "poison", "b")]
        await drain(queue, app)
        return await outcomes(queue, [task.id for task in tasks])

    assert virtual.run(main()) == [Status.COMPLETED, Status.FAILED, Status.COMPLETED]
    assert sizes[:2] == [3, 3]
    assert sizes[2:] == [1, 1, 1]


async def test_a_task_that_is_cancelled_leaves_and_the_others_go_on(queue: Queue) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    asked: list[Why | None] = []
    app = App()

    @app.task("index", batch=3, batch_wait_s=5)
    async def index(items: list[tuple[Any, Context]]) -> list[Any]:
        begun.set()
        await go.wait()
        asked.extend(ctx.cancel.why for _, ctx in items)
        return [input for input, _ in items]

    tasks = await queue.submit_many([NewTask("index", n) for n in range(3)])
    async with working(queue, app) as worker:
        await begun.wait()
        assert worker.cancel(tasks[1].id)
        cancelled = await ended(queue, tasks[1].id)
        go.set()
        others = [await ended(queue, tasks[n].id) for n in (0, 2)]
    assert (cancelled.status, cancelled.output) == (Status.CANCELLED, None)
    assert [(task.status, task.output) for task in others] == [(Status.COMPLETED, 0), (Status.COMPLETED, 2)]
    assert sorted(map(str, asked)) == ["None", "None", str(Why.CANCELLED)]


async def test_when_nobody_is_left_the_call_is_stopped(queue: Queue) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()
    app = App()

    @app.task("index", batch=2, batch_wait_s=5)
    async def index(items: list[Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    tasks = await queue.submit_many([NewTask("index", n) for n in range(2)])
    async with working(queue, app) as worker:
        await begun.wait()
        for task in tasks:
            worker.cancel(task.id)
        assert [(await ended(queue, task.id)).status for task in tasks] == [Status.CANCELLED] * 2
        assert stopped.is_set(), "before the last of them was reported"


@pytest.mark.fast
def test_a_task_that_times_out_stops_the_call_and_the_others_are_given_back_unharmed() -> None:
    calls: list[tuple[float, list[str]]] = []
    app = App()

    @app.task("index", batch=3, batch_wait_s=0.1)
    async def index(items: list[tuple[str, Context]]) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(20 if any(input == "slow" for input, _ in items) else 1)
        finally:
            calls.append((asyncio.get_running_loop().time() - began, sorted(input for input, _ in items)))

    async def main() -> tuple[list[Status], list[int]]:
        queue = virtual_queue()
        tasks = [
            await queue.submit("index", "slow", Options(timeout_s=3, max_retries=0)),
            await queue.submit("index", "a", Options(timeout_s=60)),
            await queue.submit("index", "b", Options(timeout_s=60)),
        ]
        await drain(queue, app)
        ends = [await queue.get(task.id) for task in tasks]
        assert "timed out after 3 s" in (ends[0].last_error or "")
        return [task.status for task in ends], [task.retry_count for task in ends]

    assert virtual.run(main()) == ([Status.FAILED, Status.COMPLETED, Status.COMPLETED], [0, 0, 0])
    assert [seconds for seconds, _ in calls] == pytest.approx([3.0, 1.0])
    assert calls[1][1] == ["a", "b"]


async def test_at_shutdown_a_batch_is_given_back_when_its_function_has_stopped(queue: Queue) -> None:
    begun, cleaned = asyncio.Event(), []
    app = App()

    @app.task("index", batch=2, batch_wait_s=5)
    async def index(items: list[tuple[Any, Context]]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            cleaned.append([(await queue.get(ctx.task_id)).status for _, ctx in items])

    tasks = await queue.submit_many([NewTask("index", n) for n in range(2)])
    worker = Worker(queue, app, config(shutdown_grace_s=0.1, cancel_grace_s=5))
    running = asyncio.create_task(worker.run())
    await begun.wait()
    worker.stop()
    stats = await running
    assert cleaned == [[Status.RUNNING, Status.RUNNING]], "nothing was given back while it ran"
    assert stats.released == 2
    assert await outcomes(queue, [task.id for task in tasks]) == [Status.PENDING] * 2
    assert [(await queue.get(task.id)).retry_count for task in tasks] == [0, 0]


async def test_a_thread_that_cannot_be_stopped_keeps_its_tasks_out_of_the_next_batch(queue: Queue) -> None:
    go, calls = threading.Event(), []
    app = App()

    @app.task("index", batch=2, batch_wait_s=20, timeout_s=0.1)
    def index(items: list[Any]) -> None:
        calls.append(len(items))
        if len(calls) == 1:
            go.wait(20)

    first = await queue.submit_many([NewTask("index", n, ONCE) for n in range(2)])
    async with working(queue, app):
        for task in first:
            timed_out = await ended(queue, task.id)
            assert "timed out after 0.1 s" in (timed_out.last_error or "")
        second = await queue.submit_many([NewTask("index", n, ONCE) for n in range(2)])
        await asyncio.sleep(0.3)
        assert len(calls) == 1, "one call at a time, and the first has not returned"
        go.set()
        for task in second:
            assert (await ended(queue, task.id)).status is Status.COMPLETED
    assert calls == [2, 2]


async def test_one_that_stops_itself_gives_the_others_back(queue: Queue) -> None:
    begun = threading.Event()
    app, calls = App(), []

    @app.task("index", batch=2, batch_wait_s=1)
    def index(items: list[tuple[Any, Any]]) -> None:
        calls.append(len(items))
        if len(calls) > 1:
            return
        begun.set()
        while True:
            for _, ctx in items:
                ctx.cancel.wait(0.01)
                ctx.cancel.check()

    tasks = await queue.submit_many([NewTask("index", n, ONCE) for n in range(2)])
    async with working(queue, app) as worker:

        async def running() -> bool:
            return begun.is_set()

        await until(running)
        worker.cancel(tasks[0].id)
        assert (await ended(queue, tasks[0].id)).status is Status.CANCELLED
        assert (await ended(queue, tasks[1].id)).status is Status.COMPLETED, "no retry was used up"


@pytest.mark.parametrize("answer", [[1], "text", {"a": 1}])
async def test_an_answer_that_does_not_fit_is_an_error_that_says_what_to_return(answer: Any) -> None:
    app = App()

    @app.task("index", batch=2)
    async def index(items: list[Any]) -> Any:
        return answer

    queue = Queue(MemoryStore())
    tasks = await queue.submit_many([NewTask("index", n, ONCE) for n in range(2)])
    await drain(queue, app)
    error = (await queue.get(tasks[0].id)).last_error or ""
    assert "must return None, or a list with one entry for each of its 2 tasks" in error


@pytest.mark.fast
def test_a_batch_handler_that_cannot_work_is_refused_when_it_is_registered() -> None:
    app = App()
    with pytest.raises(UsageError, match="one parameter"):
        app.task("a", batch=2)(lambda input, ctx: None)
    with pytest.raises(UsageError, match="cannot take batches"):
        app.task("b", batch=2, kind="spark")(lambda items: None)
    with pytest.raises(UsageError, match="batch of 'c'"):
        app.task("c", batch=0)(lambda items: None)


@pytest.mark.fast
async def test_a_child_process_takes_batches_with_a_context_for_each_task(memory_store: MemoryStore) -> None:
    queue = Queue(memory_store, ambient=hasty())
    app = App()
    app.task("index", batch=4, batch_wait_s=5, kind="process")(functions.index_batch)
    tasks = await queue.submit_many([NewTask("index", {"n": n}, ONCE) for n in range(4)])
    stats = await drain(queue, app, processes=1)
    assert (stats.acked, stats.dead) == (2, 2)
    ends = [await queue.get(task.id) for task in tasks]
    assert [each.output for each in ends] == [[4, tasks[0].id], None, [4, tasks[2].id], None]
    assert ends[1].last_error == "Unsendable: odd and 1"
    assert ends[3].last_error == "never"
    assert [each.progress for each in ends] == [0, 1, 2, 3]


@pytest.mark.fast
async def test_in_a_child_process_a_cancelled_task_leaves_and_the_others_end(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    queue = Queue(memory_store, ambient=hasty())
    app, notes = App(), tmp_path / "notes"
    app.task("index", batch=2, batch_wait_s=5, kind="process")(functions.await_cancel)
    one, two = await queue.submit_many([NewTask("index", str(notes), ONCE) for _ in range(2)])
    async with working(queue, app, processes=1) as worker:
        await until(lambda: _exists(notes))
        assert worker.cancel(one.id)
        await ended(queue, one.id)
        done = await ended(queue, two.id)
    assert (await queue.get(one.id)).status is Status.CANCELLED
    assert (done.status, done.output) == (Status.COMPLETED, [one.id])


@pytest.mark.fast
async def test_a_child_process_is_stopped_when_a_task_of_its_batch_times_out(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    queue = Queue(memory_store, ambient=hasty())
    app, notes = App(), tmp_path / "notes"
    app.task("index", batch=2, batch_wait_s=1, kind="process")(functions.hang_once)
    brief, patient = Options(timeout_s=0.3, max_retries=0), Options(max_retries=0)
    one = NewTask("index", str(notes), brief)
    tasks = await queue.submit_many([one, NewTask("index", str(notes), patient)])
    stats = await drain(queue, app, processes=1, cancel_grace_s=0.5)
    assert (stats.dead, stats.released, stats.acked) == (1, 1, 1)
    assert await outcomes(queue, [task.id for task in tasks]) == [Status.FAILED, Status.COMPLETED]


@pytest.mark.fast
async def test_a_child_process_that_dies_costs_each_task_of_its_batch_one_attempt(
    memory_store: MemoryStore,
) -> None:
    queue = Queue(memory_store, ambient=hasty())
    app = App()
    app.task("index", batch=3, batch_wait_s=5, kind="process")(functions.die_in_company)
    again = Options(max_retries=1, retry_policy=AT_ONCE)
    tasks = await queue.submit_many([NewTask("index", n, again) for n in range(3)])
    stats = await drain(queue, app, processes=1)
    assert (stats.retried, stats.acked) == (3, 3), "the last attempt of each is alone"
    assert [(await queue.get(task.id)).attempt for task in tasks] == [2, 2, 2]


async def _exists(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


async def test_an_input_that_does_not_fit_its_type_fails_alone(queue: Queue) -> None:
    app = App()

    @app.task("index", batch=2, batch_wait_s=0.01)
    async def index(items: list[tuple[Row, Context]]) -> list[Any]:
        return [row.n for row, _ in items]

    good = await queue.submit("index", {"n": 1})
    bad = await queue.submit("index", {"m": 1})
    await drain(queue, app)
    assert (await queue.get(good.id)).output == 1
    assert "does not fit Row" in ((await queue.get(bad.id)).last_error or "")
    assert qo.Status.FAILED is (await queue.get(bad.id)).status


@pytest.mark.fast
async def test_a_task_that_is_cancelled_in_the_moment_its_batch_begins_takes_no_part() -> None:
    calls: list[int] = []

    async def index(items: list[Any]) -> None:
        calls.append(len(items))

    class Direct:
        async def call(self, request: Request) -> Any:
            return await index(request.input)

        def is_running(self, task_id: str) -> bool:
            return False

    handler = make_handler("work", index, batch=2, batch_wait_s=60)
    batches = Batches(handler, cast("Executor", Direct()), lambda: None)
    leaver = asyncio.create_task(batches.call(attempt("leaver", handler=handler)))
    await asyncio.sleep(0)
    second = asyncio.create_task(batches.call(attempt("second", handler=handler)))
    leaver.cancel()  # It leaves after the second has come.
    third = asyncio.create_task(batches.call(attempt("third", handler=handler)))
    async with asyncio.timeout(5):
        await asyncio.gather(second, third)
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert calls == [2]
