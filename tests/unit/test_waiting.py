"""A task that nobody can run does not wait in silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.queue.queue import Queue
from qo.queue.waiting import SOON, why_unclaimed
from qo.testing import virtual
from qo.worker.loop.type_filter import UNHANDLED_WARNED_EVERY_S
from support.stores.queues import app_of, virtual_queue, working

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


def test_that_tasks_wait_for_a_handler_is_told_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        queue = virtual_queue()
        await queue.submit("nobodys")
        async with working(queue, app_of(known)):
            await asyncio.sleep(2.5 * UNHANDLED_WARNED_EVERY_S)

    virtual.run(story())
    told = [each for each in caplog.messages if "no handler for them" in each]
    assert len(told) == 3
