"""A process that is told to stop stops, although the store fails at that moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from qo.core import keys
from qo.errors import Unavailable
from qo.queue.concurrency import gather_cancellable
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.queue import Queue
from qo.queue.schedule_runner import Scheduler
from qo.queue.schedules import Schedules
from support.stores.queues import claimed
from support.worker.checked_worker import Moody, in_virtual_time, moody_queue

pytestmark = pytest.mark.fast


def fail_and_stop(store: Moody, prefix: str, running: list[asyncio.Task[None]]) -> None:
    """From now on whoever reads below the prefix is cancelled while it gets no answer."""

    def before(verb: str, key: str, body: bytes) -> None:
        if verb == "get" and key.startswith(prefix):
            running[0].cancel()
            raise Unavailable("not now")

    store.before = before


async def ended(running: asyncio.Task[None]) -> bool:
    with suppress(asyncio.CancelledError, TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.wait({running})
    return running.cancelled()


async def monitored(queue: Queue) -> None:
    await Monitor(queue, MonitorConfig(check_interval_s=1.0)).run(asyncio.Event())


@in_virtual_time
async def test_a_monitor_ends_though_the_store_fails_as_it_is_cancelled() -> None:
    store, queue = moody_queue()
    for n in range(2):
        await claimed(queue, (await queue.submit("t", n)).id, lease_s=1.0)
    await asyncio.sleep(120)
    running: list[asyncio.Task[None]] = []
    fail_and_stop(store, keys.TASKS, running)
    running.append(asyncio.create_task(monitored(queue)))
    assert await ended(running[0])


@in_virtual_time
async def test_a_scheduler_ends_though_the_store_fails_as_it_is_cancelled() -> None:
    store, queue = moody_queue()
    for name in ("a", "b"):
        await Schedules(queue).create(name, task_type="t", cron="* * * * *")
    running: list[asyncio.Task[None]] = []
    fail_and_stop(store, keys.SCHEDULES, running)
    running.append(asyncio.create_task(Scheduler(queue).run(asyncio.Event(), interval_s=1.0)))
    assert await ended(running[0])


@in_virtual_time
async def test_a_failure_by_itself_is_told() -> None:
    async def fails() -> None:
        raise Unavailable("not now")

    with pytest.raises(Unavailable):
        await gather_cancellable([fails(), asyncio.sleep(1)])
    assert await gather_cancellable([asyncio.sleep(2, "a"), asyncio.sleep(1, "b")]) == ["a", "b"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await gather_cancellable([asyncio.sleep(2)])
