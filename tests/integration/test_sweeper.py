"""The sweeper makes hints agree with tasks, page by page, whoever else is sweeping."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from qo.core import keys
from qo.core.pricing import Operation
from qo.core.task import Status, Task
from qo.errors import Unavailable
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper, SweepReport
from qo.store.faulty import Fault, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from support.stores.queues import StoreClock, another, claimed, hints, wanted_hints

P, R, C = Status.PENDING, Status.RUNNING, Status.COMPLETED


async def sweep_round(queue: Queue, page_size: int = 1000) -> SweepReport:
    """All pages of one round, added up."""
    total = SweepReport()
    sweeper = Sweeper(queue, page_size)
    while not total.wrapped:
        report = await sweeper.sweep()
        assert not report.skipped
        for name in ("checked", "restored", "removed", "expired", "lapsed", "corrupt"):
            setattr(total, name, getattr(total, name) + getattr(report, name))
        total.wrapped = report.wrapped
    return total


async def lose(queue: Queue, tasks: Sequence[Task]) -> None:
    for key in wanted_hints(*tasks):
        await queue.store.delete(key)


async def test_missing_hints_are_restored(queue: Queue) -> None:
    tasks = await queue.submit_many([NewTask("t", n) for n in range(5)])
    running = (await claimed(queue, tasks[0].id, lease_s=3600)).task
    await hints(queue)
    active = [running, *tasks[1:]]
    await lose(queue, active)
    assert await hints(queue) == set()
    report = await sweep_round(another(queue))
    assert (report.checked, report.restored, report.removed) == (5, 5, 0)
    assert await hints(queue) == wanted_hints(*active)
    again = await sweep_round(another(queue))
    assert (again.restored, again.removed) == (0, 0), "nothing is left to do"


async def test_stale_hints_are_removed(queue: Queue) -> None:
    pending, running, done = await queue.submit_many([NewTask("t", n) for n in range(3)])
    running = (await claimed(queue, running.id, lease_s=3600)).task
    await queue.complete(await claimed(queue, done.id))
    gone = "00000000-0000-4000-8000-000000000042"
    await hints(queue)
    for task_id in (pending.id, running.id, done.id, gone):
        await queue.store.put(keys.index(keys.READY, task_id[:1], 1, task_id), b"stale")
        await queue.store.put(keys.index(keys.LEASES, task_id[:1], 2, task_id), b"stale")
    report = await sweep_round(another(queue))
    assert (report.restored, report.removed) == (0, 8)
    assert await hints(queue) == wanted_hints(pending, running)


async def test_what_lies_in_the_index_and_is_no_hint_is_left_alone(queue: Queue) -> None:
    await queue.store.put("ready/note.txt", b"by hand")
    await queue.submit("t")
    assert (await sweep_round(another(queue))).removed == 0
    assert "ready/note.txt" in await hints(queue)


@pytest.mark.fast
async def test_tasks_whose_time_is_up_are_ended_on_the_way(clocked_queue: Queue, clock: StoreClock) -> None:
    queue = clocked_queue
    expiring = await queue.submit("t", options=Options(expires_in_s=60))
    held = await queue.submit("t", options=Options(max_retries=0))
    await claimed(queue, held.id, lease_s=60)
    await hints(queue)
    await lose(queue, [await queue.get(held.id)])  # So that no monitor is led to it.
    clock.advance(61)
    report = await sweep_round(another(queue))
    assert (report.expired, report.lapsed) == (1, 1)
    assert (await queue.get(expiring.id)).status is Status.EXPIRED
    assert (await queue.get(held.id)).status is Status.FAILED


async def test_the_round_goes_on_where_the_last_sweeper_stopped(queue: Queue) -> None:
    tasks = await queue.submit_many([NewTask("t", n) for n in range(10)])
    await lose(queue, tasks)
    restored: list[int] = []
    for _ in range(4):
        report = await Sweeper(another(queue), page_size=3).sweep()  # As after a restart.
        restored.append(report.restored)
    assert restored == [3, 3, 3, 1]
    assert report.wrapped
    assert await hints(queue) == wanted_hints(*tasks)


async def test_an_unreadable_cursor_starts_the_round_over(queue: Queue) -> None:
    task = await queue.submit("t")
    await lose(queue, [task])
    await queue.store.put(keys.SWEEP, b"what is this")
    assert (await Sweeper(queue).sweep()).restored == 1


async def test_sweepers_at_once_share_the_pages_and_repair_each_hint_once(
    queue: Queue, request: pytest.FixtureRequest
) -> None:
    many = 10 if request.node.callspec.params["any_store"] == "s3" else 60
    tasks = await queue.submit_many([NewTask("t", n) for n in range(many)])
    await lose(queue, tasks)
    sweepers = [Sweeper(another(queue), page_size=4) for _ in range(3)]
    reports: list[SweepReport] = []
    while not any(report.wrapped for report in reports):
        together = await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers))
        assert any(not report.skipped for report in together), "one of them always gets on"
        reports += together
    assert sum(report.restored for report in reports) == many
    assert await hints(queue) == wanted_hints(*tasks)


async def test_a_page_that_was_swept_a_moment_ago_is_not_swept_again(queue: Queue) -> None:
    assert not (await Sweeper(queue).sweep(unless_within_s=60)).skipped
    assert (await Sweeper(another(queue)).sweep(unless_within_s=60)).skipped


async def test_a_corrupt_task_is_counted_and_the_others_are_repaired(queue: Queue) -> None:
    broken, *good = await queue.submit_many([NewTask("t", n) for n in range(4)])
    await lose(queue, good)
    await queue.store.put(queue.tasks.key(broken.id), b'{"id": 7}')
    report = await sweep_round(another(queue))
    assert (report.corrupt, report.restored) == (1, 3)
    assert await hints(queue) == wanted_hints(broken, *good), "whoever mends it still needs its hint"


@pytest.mark.fast
async def test_a_hint_written_anew_since_it_was_listed_is_kept() -> None:
    class Rewriting(MemoryStore):
        """Where the task comes back, and its hint with it, while the sweeper is reading."""

        late = False

        async def get(self, key: str, *, version: str | None = None):  # type: ignore[no-untyped-def]
            stored = await super().get(key, version=version)
            if self.late and key.startswith(keys.TASKS):
                await self.put(stale, b"a newer token")
            return stored

    store = Rewriting()
    queue = Queue(store)
    task = await queue.submit("t")
    await queue.complete(await claimed(queue, task.id))
    await hints(queue)
    stale = keys.index(keys.READY, task.shard, 5, task.id)
    await store.put(stale, b"an old token")
    store.late = True
    assert (await Sweeper(queue).sweep()).removed == 0
    assert await hints(queue) == {stale}


@pytest.mark.fast
async def test_a_sweep_reads_no_more_than_its_page_and_ended_tasks_once() -> None:
    meter = Metered(MemoryStore())
    queue = Queue(meter)
    tasks = await queue.submit_many([NewTask("t", n) for n in range(50)])
    for task in tasks[:40]:
        await queue.complete(await claimed(queue, task.id))
    await hints(queue)
    sweeper = Sweeper(queue, page_size=25)
    costs: list[int] = []
    for _ in range(4):
        meter.reset()
        await sweeper.sweep()
        costs.append(meter.counts[Operation.GET])
    assert sum(costs[:2]) == 50 + 2, "every task, and the cursor"
    assert sum(costs[2:]) == 10 + 2, "in the second round only those that have not ended"


@pytest.mark.fast
async def test_ended_tasks_are_read_once_and_then_only_listed(clocked_queue: Queue, clock: StoreClock) -> None:
    meter = Metered(clocked_queue.store)
    queue = another(clocked_queue, store=meter)
    for n in range(12):
        await queue.complete(await claimed(queue, (await queue.submit("t", n)).id))
    waiting = await queue.submit("t")
    await hints(queue)
    clock.advance(600)
    await sweep_round(queue, page_size=4)
    clock.advance(600)
    late = await queue.submit("t")
    meter.reset()
    report = await sweep_round(another(queue), page_size=4)  # As after a restart: it remembers nothing.
    assert report.checked == 2, "what has hints, and what is new"
    clock.advance(600)
    await lose(queue, [waiting, late])
    assert (await sweep_round(another(queue), page_size=4)).restored == 1, (
        "the new one changed after the last round"
    )
    full = Sweeper(another(queue), page_size=100)
    assert (await full.sweep(full=True)).restored == 1


@pytest.mark.fast
async def test_after_a_month_everything_is_read_again(clocked_queue: Queue, clock: StoreClock) -> None:
    waiting = await clocked_queue.submit("t", options=Options(delay_s=90 * 86_400))
    clock.advance(600)
    await sweep_round(another(clocked_queue))
    await lose(clocked_queue, [waiting])
    for day in range(30):
        clock.advance(86_400)
        restored = (await sweep_round(another(clocked_queue))).restored
        assert restored == (day == 29)


@pytest.mark.fast
async def test_a_large_queue_is_swept_several_pages_at_a_time(clocked_queue: Queue, clock: StoreClock) -> None:
    for n in range(60):
        await clocked_queue.complete(await claimed(clocked_queue, (await clocked_queue.submit("t", n)).id))
    await hints(clocked_queue)
    clock.advance(600)
    await sweep_round(clocked_queue, page_size=2)
    meter = Metered(clocked_queue.store)
    queue = another(clocked_queue, store=meter)
    sweeps = 0
    while True:
        clock.advance(8640)
        sweeps += 1
        if (await Sweeper(queue, page_size=2).sweep(unless_within_s=8640)).wrapped:
            break
    assert sweeps <= 10, "thirty pages in a day"
    assert Operation.HEAD not in meter.counts
    assert meter.counts[Operation.GET] == sweeps, "the cursor, and no task"


@pytest.mark.fast
async def test_the_cursor_is_written_once_for_a_page_and_before_the_work_only_if_it_stood_still(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    meter = Metered(clocked_queue.store)
    queue = another(clocked_queue, store=meter)
    for rest_s, writes in ((0, 2), (300, 1), (300, 1), (900, 2), (300, 1)):
        clock.advance(rest_s)
        meter.reset()
        assert not (await Sweeper(queue, page_size=3).sweep(unless_within_s=270)).skipped
        assert meter.counts[Operation.PUT] == writes


@pytest.mark.fast
async def test_a_round_in_which_a_sweeper_died_settles_nothing(memory_store: MemoryStore) -> None:
    queue = Queue(memory_store)
    tasks = [await queue.complete(await claimed(queue, (await queue.submit("t", n)).id)) for n in range(6)]
    await hints(queue)
    faulty = Faulty(memory_store)
    faulty.inject(Fault.REFUSED, on="get", under=keys.TASKS, times=99)
    with pytest.raises(Unavailable):
        await Sweeper(Queue(faulty), page_size=3).sweep()
    await Sweeper(another(queue), page_size=3).sweep()
    assert (await sweep_round(another(queue), page_size=3)).checked == len(tasks)
