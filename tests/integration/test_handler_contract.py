"""What a handler may rely on: large values, a token of its own, a lease that is renewed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.core.poll import Pace
from qo.core.task import Status
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from support.stores.queues import (
    AT_ONCE,
    drain,
    ended,
    working,
)

P, C = Status.PENDING, Status.COMPLETED


def counting() -> tuple[App, list[Any]]:
    """An app for type ``t``, and the inputs it has been given."""
    app, seen = App(), list[Any]()

    @app.task("t")
    async def handle(input: Any) -> None:
        seen.append(input)

    return app, seen


async def test_large_inputs_and_outputs_work_from_end_to_end(queue: Queue) -> None:
    app, large = App(), "x" * 300_000

    @app.task("t")
    def handle(input: str) -> str:
        return input + "!"

    task = await queue.submit("t", large)
    await drain(queue, app)
    task = await queue.get(task.id)
    assert task.input_ref is not None
    assert task.output_ref is not None
    assert await queue.output(task) == large + "!"


async def test_handlers_get_a_token_that_no_two_attempts_share(queue: Queue) -> None:
    """Effects happen at least once; with task id and attempt a handler can fence its own."""
    app, tokens = App(), list[tuple[str, int]]()

    @app.task("t")
    async def handle(input: int, ctx: Context) -> None:
        tokens.append((ctx.task_id, ctx.attempt))
        if ctx.attempt <= input:
            raise RuntimeError("after the effect")

    tasks = await queue.submit_many([NewTask("t", n, Options(retry_policy=AT_ONCE)) for n in range(3)])
    async with working(queue, app):
        for task in tasks:
            await ended(queue, task.id)
    assert sorted(tokens) == sorted((task.id, n) for task in tasks for n in range(1, task.input + 2))


@pytest.mark.fast
def test_a_long_task_is_not_taken_away_while_its_worker_lives() -> None:
    async def main() -> None:
        queue = Queue(MemoryStore(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))
        app = App()

        @app.task("t")
        async def handle(input: Any) -> str:
            await asyncio.sleep(3500)
            return "done"

        task = await queue.submit("t", options=Options(timeout_s=3600))
        monitor = Monitor(queue)
        async with working(queue, app, pace=Pace()):
            for _ in range(60):
                await asyncio.sleep(60)
                assert (await monitor.check()).requeued == 0
            now = await queue.get(task.id)
        assert (now.output, now.attempt) == ("done", 1)
        renewals = [state for state in await queue.history(task.id) if state.status is Status.RUNNING]
        assert len(renewals) > 100, "its lease was renewed all along"

    virtual.run(main())


async def test_a_key_whose_task_is_gone_is_free_again(queue: Queue) -> None:
    """There is no record beside the task that could outlive it and block the key."""
    first = await queue.submit("t", 1, Options(key="k"))
    await queue.cancel(first.id)
    await queue.store.delete(queue.tasks.key(first.id))
    second = await queue.submit("t", 2, Options(key="k"))
    assert (second.id, second.status, second.input) == (first.id, P, 2)


async def test_worker_claims_unhandled_a_worker_leaves_alone_what_it_cannot_run(queue: Queue) -> None:
    app, seen = counting()
    strangers = await queue.submit_many([NewTask("unknown", n) for n in range(3)])
    await queue.submit("t", "mine")
    tally = await drain(queue, app)
    assert (tally.claimed, tally.failed, seen) == (1, 0, ["mine"])
    for task in strangers:
        assert await queue.history(task.id) == [task]
