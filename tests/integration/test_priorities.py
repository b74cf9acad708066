"""Priority is a head start in the line: urgent tasks pass, and none waits for ever."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core import keys
from qo.queue.feed import Feed
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.worker.api.app import App
from support.stores.queues import StoreClock, drain


async def order_of(queue: Queue, **changes: object) -> list[str]:
    """The inputs of all due tasks in the order in which one worker, one task at a time, runs them."""
    app, ran = App(), []

    @app.task("t")
    async def record(input: str) -> None:
        ran.append(input)

    await drain(queue, app, **{"concurrency": 1, "inbox_capacity": 0, **changes})
    return ran


async def test_an_urgent_task_passes_a_backlog(queue: Queue) -> None:
    backlog = [NewTask("t", f"plain {n}") for n in range(30)]
    await queue.submit_many(backlog)
    await queue.submit("t", "somewhat urgent", Options(priority=1))
    await queue.submit("t", "urgent", Options(priority=9))
    ran = await order_of(queue)
    assert ran[:2] == ["urgent", "somewhat urgent"]
    assert sorted(ran[2:]) == sorted(new.input for new in backlog)


@pytest.mark.fast
async def test_an_urgent_task_passes_a_backlog_of_many_pages(clocked_queue: Queue) -> None:
    await clocked_queue.submit_many([NewTask("t", f"plain {n}") for n in range(800)])
    await clocked_queue.submit("t", "urgent", Options(priority=5))
    place = (await order_of(clocked_queue, ready_page_size=10)).index("urgent")
    assert place < 16 * 10, "at the head of its shard, and every shard has had its turn by then"


@pytest.mark.fast
async def test_an_old_plain_task_is_not_starved_by_urgent_ones(clocked_queue: Queue, clock: StoreClock) -> None:
    await clocked_queue.submit("t", "plain")
    for n in range(20):
        clock.advance(600)
        await clocked_queue.submit("t", f"urgent {n}", Options(priority=9))
    ran = await order_of(clocked_queue)
    # The ninth urgent one joins in the very minute in which the plain one stands: between them chance decides.
    assert ran.index("plain") in (8, 9), "after ninety minutes nothing that comes later passes it"


@pytest.mark.fast
async def test_among_equals_the_oldest_goes_first(clocked_queue: Queue, clock: StoreClock) -> None:
    for n in range(5):
        await clocked_queue.submit("t", f"{n}", Options(priority=3))
        clock.advance(60)
    assert await order_of(clocked_queue) == ["0", "1", "2", "3", "4"]


@pytest.mark.fast
async def test_an_urgent_task_for_later_is_not_offered_early(clocked_queue: Queue, clock: StoreClock) -> None:
    """Its key stands at its due minute: a head start would only have it read again and again before."""
    task = await clocked_queue.submit("t", "later", Options(priority=9, delay_s=1800))
    (entry,) = (await clocked_queue.store.list(keys.READY)).entries
    parsed = keys.parse_index(entry.key)
    assert parsed is not None
    assert parsed.minute == keys.minute_of(clock.now() + timedelta(seconds=1800))
    assert await Feed(clocked_queue).take(10) == []
    clock.advance(1800)
    (due,) = await Feed(clocked_queue).take(10)
    assert due.task_id == task.id
