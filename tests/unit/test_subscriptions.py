"""What a worker tells its subscribers: all that they can take, and never at its own cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import qo
from qo.errors import UsageError
from qo.queue.options import NewTask
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.observe.stats import StatsSnapshot
from qo.worker.observe.subscriptions import Subscription, TerminalFailure
from qo.worker.worker import Worker
from support.stores.queues import app_of, config, virtual_queue

pytestmark = pytest.mark.fast


def failing(count: int, buffer: int = 1_000, read: bool = True) -> tuple[list[Any], Subscription]:
    """What is told about so many tasks that fail, and the subscription, read beside the worker or only afterwards."""

    async def work(input: int) -> None:
        await asyncio.sleep(1)
        raise qo.Reject(f"number {input}")

    async def main() -> tuple[list[Any], Subscription]:
        queue = virtual_queue()
        await queue.submit_many([NewTask("work", n) for n in range(count)])
        worker = Worker(queue, app_of(work), config(stop_when_empty=True, concurrency=2))
        subscription = worker.subscribe(every_s=0.5, buffer=buffer)

        async def follow() -> list[Any]:
            return [event async for event in subscription]

        if read:
            events, _ = await asyncio.gather(follow(), worker.run())
        else:
            await worker.run()
            events = await follow()
        return events, subscription

    return virtual.run(main())


def test_every_final_failure_is_told_once_and_counters_come_regularly() -> None:
    events, subscription = failing(6)
    failures = [event for event in events if isinstance(event, TerminalFailure)]
    assert sorted(failure.error for failure in failures) == [f"number {n}" for n in range(6)]
    assert {(failure.worker_id, failure.task_type, failure.attempt) for failure in failures} == {("w", "work", 1)}
    snapshots = [event for event in events if isinstance(event, StatsSnapshot)]
    assert len(snapshots) >= 6, "three seconds, two of them a second"
    assert snapshots[-1].state == "stopped"
    assert (snapshots[-1].terminal_failures, snapshots[-1].counts["dead"]) == (6, 6)
    assert subscription.dropped == 0


def test_who_does_not_read_loses_the_oldest_and_holds_nobody_up() -> None:
    events, subscription = failing(6, buffer=2, read=False)
    *failures, last = events
    assert len(failures) == 2
    assert subscription.dropped == 4
    assert isinstance(last, StatsSnapshot), "of the snapshots, only the latest"
    assert last.terminal_failures == 6


def test_a_closed_subscription_ends_and_the_worker_goes_on() -> None:
    async def work(input: Any) -> None:
        await asyncio.sleep(10)

    async def main() -> tuple[int, int]:
        queue = virtual_queue()
        await queue.submit("work")
        worker = Worker(queue, app_of(work), config(stop_when_empty=True))
        subscription = worker.subscribe(every_s=1)
        running, seen = asyncio.create_task(worker.run()), 0
        async for _ in subscription:
            seen += 1
            if seen == 3:
                subscription.close()
        return seen, (await running).completed

    assert virtual.run(main()) == (3, 1)


async def test_a_period_that_makes_no_sense_is_refused() -> None:
    worker = Worker(Queue(MemoryStore()), app_of(), config())
    with pytest.raises(UsageError, match="every_s"):
        worker.subscribe(every_s=0)
    with pytest.raises(UsageError, match="buffer"):
        worker.subscribe(buffer=0)
