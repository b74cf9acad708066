"""How workers find tasks: by the index, by reading tasks, or both."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from qo.ambient import SYSTEM
from qo.core.discovery import IndexMode
from qo.core.pricing import Operation
from qo.core.task import Status
from qo.queue.feed import Feed
from qo.queue.options import NewTask, Options, build
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.worker.api.app import App
from support.stores.queues import StoreClock, drain, ended, hasty, wanted_hints, working

C, P = Status.COMPLETED, Status.PENDING
MODES = list(IndexMode)


def app() -> App:
    made = App()

    @made.task("t")
    async def handle(input: int) -> int:
        return input

    return made


@pytest.mark.parametrize("mode", MODES)
async def test_every_mode_finds_what_is_due_and_nothing_else(queue: Queue, mode: IndexMode) -> None:
    due = await queue.submit_many([NewTask("t", n) for n in range(25)])
    later = await queue.submit("t", 0, Options(delay_s=3600))
    async with working(queue, app(), index_mode=mode, log_scan_page_size=10, ready_page_size=10):
        for task in due:
            assert (await ended(queue, task.id)).output == task.input
    assert (await queue.get(later.id)).status is P


@pytest.mark.parametrize("mode", [IndexMode.HYBRID, IndexMode.LOG_SCAN])
async def test_a_task_without_its_hint_is_found_by_reading_tasks(queue: Queue, mode: IndexMode) -> None:
    task = await queue.submit("t", 1)
    for key in wanted_hints(task):
        await queue.store.delete(key)
    async with working(queue, app(), index_mode=mode):
        assert (await ended(queue, task.id)).status is C


async def test_index_only_finds_a_task_without_its_hint_once_the_sweeper_has_been(queue: Queue) -> None:
    task = await queue.submit("t", 1)
    for key in wanted_hints(task):
        await queue.store.delete(key)
    assert (await drain(queue, app(), index_mode=IndexMode.INDEX_ONLY)).claimed == 0
    assert (await queue.get(task.id)).status is P
    await Sweeper(queue).sweep()
    assert (await drain(queue, app(), index_mode=IndexMode.INDEX_ONLY)).completed == 1


@pytest.mark.fast
async def test_an_idle_poll_is_one_list_however_many_shards_there_are(clock: StoreClock) -> None:
    for prefix_len in (1, 2, 3, 4):
        meter = Metered(MemoryStore(clock=clock.now))
        queue = Queue(meter, prefix_len=prefix_len)
        await queue.submit_many([NewTask("t", n, Options(delay_s=86_400)) for n in range(50)])
        feed = Feed(queue, mode=IndexMode.INDEX_ONLY)
        meter.reset()
        assert await feed.take(10) == []
        assert meter.counts == {Operation.LIST: 1}


@pytest.mark.fast
async def test_a_backlog_for_tomorrow_is_not_read_today(clock: StoreClock) -> None:
    meter = Metered(MemoryStore(clock=clock.now))
    queue = Queue(meter)
    await queue.submit_many([NewTask("t", n, Options(delay_s=86_400)) for n in range(5_000)])
    due = await queue.submit("t", 1)
    await queue.flush()
    feed = Feed(queue, mode=IndexMode.INDEX_ONLY)
    meter.reset()
    assert [found.task_id for found in await feed.take(10)] == [due.id]
    assert meter.counts[Operation.GET] == 0
    assert meter.counts[Operation.LIST] <= 1 + 2 * 16, "the whole, then each shard's head and a jump over the rest"


async def test_unhandled_types_at_the_head_of_a_shard_do_not_starve_what_is_behind(queue: Queue) -> None:
    # Their priority puts them before everything else of their shard.
    strangers = [NewTask("unknown", n, Options(key=f"{n}", priority=9)) for n in range(200)]
    await queue.submit_many([new for new in strangers if _shard_of(new) == "3"])
    count = len(await queue.list(status=P, shard="3"))
    assert count > 4, "more than fit a page"
    mine = (NewTask("t", 7, Options(key=f"mine {n}")) for n in range(10_000))
    (behind,) = await queue.submit_many([next(new for new in mine if _shard_of(new) == "3")])
    async with working(queue, app(), ready_page_size=2, index_mode=IndexMode.INDEX_ONLY):
        assert (await ended(queue, behind.id)).output == 7
    assert len(await queue.list(status=P, shard="3")) == count


def _shard_of(new: NewTask) -> str:
    return build(new, now=datetime(1970, 1, 1, tzinfo=UTC), prefix_len=1, ambient=SYSTEM).shard


@pytest.mark.fast
async def test_the_shards_take_turns(clock: StoreClock) -> None:
    """A crowded shard does not keep workers from the others."""
    queue = Queue(MemoryStore(clock=clock.now), ambient=hasty())
    await queue.submit_many([NewTask("t", n) for n in range(1_000)])
    feed, shards = Feed(queue, mode=IndexMode.INDEX_ONLY, ready_page_size=10), set[str]()
    for _ in range(16):
        shards |= {due.task_id[0] for due in await feed.take(10)}
    assert len(shards) == 16


@pytest.mark.fast
@pytest.mark.parametrize("backlog", [20, 400])
async def test_a_worker_whose_home_is_never_empty_still_looks_elsewhere(clock: StoreClock, backlog: int) -> None:
    """Whoever is at home there may be busy, or run other types."""
    queue = Queue(MemoryStore(clock=clock.now))
    feed = Feed(queue, mode=IndexMode.INDEX_ONLY)
    feed.prefer(0, 2)
    keyed = [NewTask("t", n, Options(key=f"{n}")) for n in range(30_000)]
    at_home = iter([new for new in keyed if _shard_of(new) < "8"])
    await queue.submit_many([next(at_home) for _ in range(backlog)])
    (elsewhere,) = await queue.submit_many([next(new for new in keyed if _shard_of(new) == "d")])

    async def next_offered() -> set[str]:
        await queue.submit_many([next(at_home) for _ in range(5)])
        return {due.task_id for due in await feed.take(1000)}

    for _ in range(2_000):
        if elsewhere.id in await next_offered():
            return
    pytest.fail("it was never offered")


@pytest.mark.fast
async def test_a_scan_does_not_read_ended_tasks_twice(clock: StoreClock) -> None:
    meter = Metered(MemoryStore(clock=clock.now))
    queue = Queue(meter)
    await queue.submit_many([NewTask("t", n) for n in range(40)])
    await drain(queue, app())
    feed = Feed(queue, mode=IndexMode.LOG_SCAN, log_scan_page_size=100)
    for reads in (40, 0):
        meter.reset()
        assert await feed.take(10) == []
        assert meter.counts[Operation.GET] == reads
