"""Priority is a head start in the line: urgent tasks pass, and none waits for ever."""

from __future__ import annotations

import pytest

from qo.core.discovery import IndexMode
from qo.core.pricing import Operation
from qo.queue.feed import Feed
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.metered import Metered
from qo.worker.api.app import App
from support.stores.queues import StoreClock, another, claimed, drain


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
    """Its key stands where its priority puts it, and says when it is due: it is passed over without being read."""
    metered = Metered(clocked_queue.store)
    queue = another(clocked_queue, store=metered)
    task = await queue.submit("t", "later", Options(priority=9, delay_s=1800))
    metered.reset()
    for _ in range(29):
        assert await Feed(queue, mode=IndexMode.INDEX_ONLY).take(10) == []
        clock.advance(60)
    assert Operation.GET not in metered.counts
    clock.advance(60)
    (due,) = await Feed(queue).take(10)
    assert due.task_id == task.id


@pytest.mark.fast
@pytest.mark.parametrize("how", ["delayed", "retried"])
async def test_an_urgent_task_keeps_its_head_start_when_it_runs_later(
    clocked_queue: Queue, clock: StoreClock, how: str
) -> None:
    queue = clocked_queue
    if how == "delayed":
        await queue.submit("t", "urgent", Options(priority=9, delay_s=600))
    else:
        task = await queue.submit("t", "urgent", Options(priority=9))
        await queue.fail(await claimed(queue, task.id), "not yet", delay_s=600)
    clock.advance(60)
    await queue.submit_many([NewTask("t", f"plain {n}") for n in range(20)])
    clock.advance(600)
    assert (await order_of(queue))[0] == "urgent", "although it was due nine minutes after all others"


@pytest.mark.fast
async def test_a_crowd_of_urgent_tasks_for_later_costs_a_page_and_a_skip_for_each_shard(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    metered = Metered(clocked_queue.store)
    queue = another(clocked_queue, store=metered)
    await queue.submit_many([NewTask("t", n, Options(priority=9, delay_s=1800)) for n in range(3200)])
    await queue.submit("t", "plain")
    feed = Feed(queue, mode=IndexMode.INDEX_ONLY, ready_page_size=20)
    metered.reset()
    assert len(await feed.take(10)) == 1, "a crowd that waits hides nothing"
    assert metered.counts[Operation.LIST] <= 1 + 2 * 16
