"""A task that nobody can run does not wait in silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.queue.queue import Queue
from qo.queue.waiting import SOON, find_orphans, why_unclaimed
from qo.testing import virtual
from qo.worker.loop.type_filter import UNHANDLED_WARNED_EVERY_S
from qo.worker.observe.orphan_types import LOOK_EVERY_S
from support.stores.queues import all_tasks, app_of, virtual_queue, working

pytestmark = pytest.mark.fast


async def known(input: Any) -> None: ...


async def reason(queue: Queue, task_id: str) -> str:
    return await why_unclaimed(queue, await queue.get(task_id)) or ""


def test_a_task_says_that_no_worker_runs_or_that_none_has_a_handler_for_it() -> None:
    async def story() -> None:
        queue = virtual_queue()
        task = await queue.submit("nobodys")
        assert await reason(queue, task.id) == "", "it has only just come"
        await asyncio.sleep(SOON.total_seconds() + 1)
        assert "no worker is running" in await reason(queue, task.id)
        async with working(queue, app_of(known)) as worker:
            await asyncio.sleep(20)
            assert "no worker has a handler for the type 'nobodys' (1 worker" in await reason(queue, task.id)
            assert worker.stats.unhandled_types == 1
            later = await queue.submit("known")
            await asyncio.sleep(10)
            assert await reason(queue, later.id) == "", "it has ended"

    virtual.run(story())


def test_types_that_nobody_handles_are_told_apart_from_those_that_another_worker_has() -> None:
    async def other(input: Any) -> None:
        await asyncio.sleep(100_000)

    async def story() -> None:
        queue = virtual_queue()
        tasks = [await queue.submit(name) for name in ("nobodys", "other", "other")]
        async with working(queue, app_of(known), worker_id="w1") as worker:
            async with working(queue, app_of(other), worker_id="w2", concurrency=1, cancel_grace_s=0.1):
                await asyncio.sleep(LOOK_EVERY_S + 10)
                assert (worker.stats.unhandled_types, worker.stats.orphan_types) == (2, 1)
                listed = [await queue.get(task.id) for task in tasks]
                assert await find_orphans(queue, listed) == ["nobodys"]
            await asyncio.sleep(2 * UNHANDLED_WARNED_EVERY_S)
            assert worker.stats.orphan_types == 2, "the one that had a handler has left"
            for task in await all_tasks(queue.store):
                if task.task_type == "nobodys":
                    await queue.cancel(task.id)
            await asyncio.sleep(3 * UNHANDLED_WARNED_EVERY_S)
            assert worker.stats.orphan_types == 1

    virtual.run(story())


def test_that_tasks_wait_for_a_handler_is_told_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        queue = virtual_queue()
        await queue.submit("nobodys")
        async with working(queue, app_of(known)):
            await asyncio.sleep(2.5 * UNHANDLED_WARNED_EVERY_S)

    virtual.run(story())
    told = [each for each in caplog.messages if "no handler for them" in each]
    assert len(told) == 3
