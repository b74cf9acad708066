"""Handlers in the event loop and on threads, and which executors a worker makes."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import child_functions
import pytest

from qo.errors import UsageError
from qo.worker.api.app import App
from qo.worker.api.context import BlockingContext, Context
from qo.worker.api.handler import Kind
from qo.worker.config import WorkerConfig
from qo.worker.executors import executors_for
from qo.worker.executors.event_loop import LoopExecutor
from qo.worker.executors.processes import ProcessExecutor
from qo.worker.executors.threads import ThreadExecutor
from qo.worker.loop.cancel import Why
from qo.worker.loop.outcome import outcome_of
from support.stores.queues import until
from support.worker.attempts import Attempts

pytestmark = pytest.mark.fast


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


class Threads(ThreadExecutor):
    """Counts what came back."""

    def __init__(self) -> None:
        self.returned = 0
        super().__init__(self._count)

    def _count(self) -> None:
        self.returned += 1


@pytest.fixture
async def threads() -> AsyncIterator[Threads]:
    threads = Threads()
    yield threads
    threads.close()


async def on_thread(attempts: Attempts, threads: Threads, function: Callable[..., Any], input: Any = None) -> Any:
    return await threads.call(await attempts.request(function, input, kind="thread"))


# In the loop


async def test_an_async_function_is_awaited_with_what_it_wants(attempts: Attempts) -> None:
    async def plain(input: int) -> int:
        return input + 1

    async def curious(input: int, ctx: Context) -> Any:
        return input, ctx

    executor = LoopExecutor()
    assert await executor.call(await attempts.request(plain, 1, kind="async")) == 2
    request = await attempts.request(curious, 1, kind="async")
    assert await executor.call(request) == (1, request.context)
    executor.close()


async def test_an_async_function_that_is_cancelled_is_never_left_behind(attempts: Attempts) -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def waits(input: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    executor = LoopExecutor()
    request = await attempts.request(waits, kind="async")
    call = asyncio.create_task(executor.call(request))
    await begun.wait()
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    assert (cleaned.is_set(), executor.is_running(request.task.id)) == (True, False)


# On threads


async def test_a_plain_function_gets_the_input_and_a_context_that_blocks(
    attempts: Attempts, threads: Threads
) -> None:
    def curious(input: int, ctx: BlockingContext) -> Any:
        return input, ctx.task_id, ctx.submit("child", input).id

    request = await attempts.request(curious, 7, kind="thread")
    given, task_id, child_id = await threads.call(request)
    assert (given, task_id) == (7, request.task.id)
    assert (await attempts.queue.get(child_id)).input == 7


REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="none")


async def test_context_variables_are_carried_over_and_not_back(attempts: Attempts, threads: Threads) -> None:
    def reads(input: Any) -> str:
        seen = REQUEST.get()
        REQUEST.set("changed")
        return seen

    REQUEST.set("here")
    assert await on_thread(attempts, threads, reads) == "here"
    assert REQUEST.get() == "here"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (StopIteration("empty"), "StopIteration: empty"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),
        (GeneratorExit(), "GeneratorExit"),
    ],
    ids=lambda case: type(case).__name__,
)
async def test_whatever_a_function_raises_is_raised_by_the_call(
    attempts: Attempts, threads: Threads, error: BaseException, told: str
) -> None:
    def raises(input: Any) -> None:
        raise error

    request = await attempts.request(raises, kind="thread")
    caught: BaseException | None = None
    try:
        await threads.call(request)
    except BaseException as raised:
        caught = raised
    assert caught is not None
    outcome: Any = outcome_of(caught)
    assert outcome.error == told
    assert "in raises" in outcome.traceback


async def test_a_handler_that_exits_ends_no_thread_but_its_call(attempts: Attempts, threads: Threads) -> None:
    def exits(input: Any) -> None:
        sys.exit(3)

    def which(input: Any) -> int:
        return threading.get_ident()

    first = await on_thread(attempts, threads, which)
    with pytest.raises(SystemExit):
        await on_thread(attempts, threads, exits)
    assert await on_thread(attempts, threads, which) == first


async def test_functions_run_side_by_side(attempts: Attempts, threads: Threads) -> None:
    together = threading.Barrier(8)

    def meets(input: Any) -> int:
        return together.wait(10)

    calls = [on_thread(attempts, threads, meets) for _ in range(8)]
    assert set(await asyncio.gather(*calls)) == set(range(8))


async def test_a_hung_function_is_told_and_left_behind_until_it_returns(
    attempts: Attempts, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    begun, gate = threading.Event(), threading.Event()
    said: list[Any] = []

    def hangs(input: Any, ctx: BlockingContext) -> None:
        begun.set()
        gate.wait(60)
        said.append(ctx.cancel.why)
        ctx.cancel.check()

    request = await attempts.request(hangs, kind="thread")
    call = asyncio.create_task(threads.call(request))
    try:
        await until(lambda: _true(begun.is_set()))
        request.cancel.request(Why.TIMEOUT)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        assert (threads.is_running(request.task.id), threads.returned) == (True, 0)
        await until(lambda: _true("takes up a slot" in caplog.text))
    finally:
        gate.set()
    await until(lambda: _true(threads.returned))
    assert not threads.is_running(request.task.id)
    assert said == [Why.TIMEOUT]


async def test_a_function_that_checks_its_token_ends_soon_after_it_was_left(
    attempts: Attempts, threads: Threads
) -> None:
    begun = threading.Event()

    def polite(input: Any, ctx: BlockingContext) -> None:
        begun.set()
        ctx.cancel.wait(60)
        ctx.cancel.check()

    call = asyncio.create_task(on_thread(attempts, threads, polite))
    await until(lambda: _true(begun.is_set()))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: _true(threads.returned))


async def test_closing_ends_threads_as_they_become_free(attempts: Attempts) -> None:
    threads, gate, begun = Threads(), threading.Event(), threading.Event()
    mine: list[threading.Thread] = []

    def waits(input: Any) -> None:
        mine.append(threading.current_thread())
        begun.set()
        gate.wait(60)

    def quick(input: Any) -> None:
        mine.append(threading.current_thread())

    call = asyncio.create_task(on_thread(attempts, threads, waits))
    await until(lambda: _true(begun.is_set()))
    await on_thread(attempts, threads, quick)
    threads.close()
    gate.set()
    await call
    await until(lambda: _true(not any(thread.is_alive() for thread in mine)))
    assert len(set(mine)) == 2


# Which are made


async def test_only_what_the_handlers_need_is_made() -> None:
    app = App()

    @app.task("loop")
    async def loop(input: Any) -> None: ...

    app.task("process", kind="process")(child_functions.double)
    config = WorkerConfig(worker_id="w", processes=1)
    made = executors_for(app, config, lambda: None)
    assert {kind: type(executor) for kind, executor in made.items()} == {
        Kind.ASYNC: LoopExecutor,
        Kind.PROCESS: ProcessExecutor,
    }, "and no threads"


async def test_an_executor_that_is_given_comes_before_our_own() -> None:
    app = App()
    app.task("spark", kind="spark")(child_functions.double)
    app.task("process", kind="process")(lambda input: input)
    given = LoopExecutor()
    made = executors_for(app, WorkerConfig(worker_id="w"), lambda: None, {"spark": given, "process": given})
    assert made[Kind.SPARK] is made[Kind.PROCESS] is given
    with pytest.raises(UsageError, match="'gpu' is not a valid Kind: executors are for async"):
        executors_for(app, WorkerConfig(worker_id="w"), lambda: None, {"gpu": given})


async def test_a_handler_that_children_could_not_find_keeps_the_worker_from_starting() -> None:
    app = App()

    @app.task("local", kind="process")
    def local(input: Any) -> None: ...

    with pytest.raises(UsageError, match="the handler of 'local' runs in a child process, which cannot find it"):
        executors_for(app, WorkerConfig(worker_id="w"), lambda: None)


async def _true(value: Any) -> Any:
    return value
