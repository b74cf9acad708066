"""Traps that another bucket queue fell into and wrote down, kept shut here. Each test names its entry there."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from qo.ambient import SYSTEM, Ambient
from qo.core import keys, wire
from qo.core.discovery import IndexMode
from qo.core.poll import Pace
from qo.core.pricing import Operation
from qo.core.task import Status
from qo.errors import Unproven
from qo.queue.feed import Feed
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options, build
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper
from qo.store import manifest
from qo.store.manifest import Proof
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import ObjectStore, Written
from qo.store.proof import prove
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from support.stores.queues import (
    AT_ONCE,
    StoreClock,
    claimed,
    config,
    drain,
    ended,
    hasty,
    hints,
    keys_under,
    wanted_hints,
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


async def test_001_history_longer_than_one_page_is_read_to_its_end(queue: Queue) -> None:
    task = await queue.submit("t")
    key = queue.tasks.key(task.id)
    for n in range(1_001):  # One page of versions is a thousand.
        await queue.store.put(key, wire.encode(replace(task, progress=n)))
    assert [state.progress for state in await queue.history(task.id)] == [None, *range(1_001)]


@pytest.mark.fast
def test_002_a_lost_hint_is_restored_by_a_monitor_as_it_comes() -> None:
    """Without any setting, and for missing keys, not only for stale ones."""

    async def main() -> None:
        queue = Queue(MemoryStore(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))
        waiting = await queue.submit("t")
        held = (await claimed(queue, (await queue.submit("t")).id, lease_s=86_400)).task
        await hints(queue)
        for key in wanted_hints(waiting, held):
            await queue.store.delete(key)
        stop = asyncio.Event()
        monitor = asyncio.create_task(Monitor(queue, MonitorConfig()).run(stop))
        await asyncio.sleep(400)
        stop.set()
        await monitor
        assert await hints(queue) == wanted_hints(waiting, held)

    virtual.run(main())


@pytest.mark.fast
async def test_003_no_shard_waits_behind_one_that_is_never_empty(clock: StoreClock) -> None:
    queue = Queue(MemoryStore(clock=clock.now))
    feed = Feed(queue, mode=IndexMode.INDEX_ONLY, ready_page_size=5)
    await queue.submit_many([NewTask("t", n) for n in range(400)])
    first = (await feed.take(5))[0].task_id[0]
    keyed = (NewTask("t", n, Options(key=f"{n}")) for n in range(10_000))
    more = (new for new in keyed if build(new, now=clock.now(), prefix_len=1, ambient=SYSTEM).shard == first)
    seen = {first}
    for _ in range(16):
        await queue.submit_many([next(more) for _ in range(5)])
        seen |= {due.task_id[0] for due in await feed.take(5)}
    assert len(seen) == 16


@pytest.mark.fast
async def test_004_monitor_and_sweeper_do_not_read_everything_every_time(clock: StoreClock) -> None:
    meter = Metered(MemoryStore(clock=clock.now))
    queue = Queue(meter)
    for task in await queue.submit_many([NewTask("t", n) for n in range(500)]):
        await claimed(queue, task.id, lease_s=3600)
    await hints(queue)
    meter.reset()
    await Monitor(queue).check()
    assert meter.counts[Operation.GET] == 0, "no lease is due"
    meter.reset()
    report = await Sweeper(queue, page_size=50).sweep()
    assert (report.checked, report.wrapped) == (50, False)
    assert meter.counts[Operation.GET] == 50 + 1, "a page, and the cursor"


@pytest.mark.parametrize("year", [1999, 2077])
@pytest.mark.fast
async def test_005_only_the_stores_clock_counts(year: int) -> None:
    now = datetime(year, 6, 1, tzinfo=UTC)
    queue = Queue(MemoryStore(clock=lambda: now), ambient=hasty())
    app, seen = counting()
    later = await queue.submit("t", "later", Options(delay_s=60))
    expiring = await queue.submit("u", options=Options(expires_in_s=60))
    held = await queue.submit("u", options=Options(retry_policy=AT_ONCE))
    claim = await claimed(queue, held.id, lease_s=60)
    assert claim.task.lease_expires_at == now + timedelta(seconds=60)
    await drain(queue, app)
    assert (await Monitor(queue).check()).requeued == 0
    assert seen == []
    now += timedelta(seconds=60)
    await drain(queue, app)
    assert seen == ["later"]
    assert (await queue.get(later.id)).completed_at == now
    assert (await Monitor(queue).check()).requeued == 1
    await Sweeper(queue).sweep()
    assert (await queue.get(expiring.id)).status is Status.EXPIRED


@pytest.mark.fast
async def test_006_a_bucket_without_versions_is_refused_unless_allowed(memory_store: MemoryStore) -> None:
    now = await memory_store.now()
    proof = Proof(proven_at=now, server="s", checks=(), conditional_delete=True, versioned=False)
    await manifest.record_proof(memory_store, proof)
    with pytest.raises(Unproven, match="QO_ALLOW_NO_VERSIONING"):
        await manifest.require(memory_store, prefix_len=None, needs_proof=True)
    await manifest.require(memory_store, prefix_len=None, needs_proof=True, allow_no_versioning=True)


async def test_007_large_inputs_and_outputs_work_from_end_to_end(queue: Queue) -> None:
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


@pytest.mark.fast
def test_008_no_test_is_left_out_by_default(request: pytest.FixtureRequest) -> None:
    options = request.config.getini("addopts")
    assert not any(option.startswith(("-m", "-k", "--ignore", "--deselect")) for option in options)


async def test_009_handlers_get_a_token_that_no_two_attempts_share(queue: Queue) -> None:
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
async def test_010_and_016_nothing_is_offered_before_its_minute(clock: StoreClock) -> None:
    queue = Queue(MemoryStore(clock=clock.now), ambient=hasty())
    for delay_s in (40, 100, 3600):  # It is half past a minute.
        await queue.submit("t", delay_s, Options(delay_s=delay_s))
    feed = Feed(queue, mode=IndexMode.INDEX_ONLY)
    offered: list[int] = []
    for wait_s in (0, 30, 60, 1800, 1800):
        clock.advance(wait_s)
        offered.append(len(await Feed(queue, mode=IndexMode.INDEX_ONLY).take(10)))
    assert offered == [0, 1, 2, 2, 3]
    assert len(await feed.take(10)) == 3


@pytest.mark.fast
def test_011_a_long_task_is_not_taken_away_while_its_worker_lives() -> None:
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


async def test_013_a_key_whose_task_is_gone_is_free_again(queue: Queue) -> None:
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


@pytest.mark.fast
async def test_issue_002_polling_costs_one_list_whatever_the_number_of_shards(clock: StoreClock) -> None:
    meter = Metered(MemoryStore(clock=clock.now))
    feed = Feed(Queue(meter, prefix_len=2), mode=IndexMode.INDEX_ONLY)
    for _ in range(10):
        assert await feed.take(16) == []
    assert meter.counts == {Operation.LIST: 10}


class Careless(MemoryStore):
    """As some servers are that call themselves compatible: conditions are not looked at."""

    async def put(self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False) -> Written:
        return await super().put(key, body)


@pytest.mark.fast
async def test_issue_003_a_store_that_ignores_conditions_is_found_out_and_refused() -> None:
    store: ObjectStore = Careless()
    assert not (await prove(store)).ok
    with pytest.raises(Unproven, match="qo doctor"):
        await manifest.require(store, prefix_len=None, needs_proof=True)


async def test_issue_004_finished_tasks_leave_no_leases_behind_not_even_old_versions(queue: Queue) -> None:
    tasks = [await queue.submit("t", n) for n in range(3)]
    leases: list[str] = []
    for task in tasks:
        claim = await claimed(queue, task.id)
        leases += wanted_hints(claim.task)
        await queue.complete(claim)
    assert await hints(queue) == set()
    assert [await queue.store.versions(key) for key in leases] == [[], [], []]


@pytest.mark.fast
async def test_issue_005_requests_per_task_are_counted_and_few() -> None:
    meter = Metered(MemoryStore())
    queue = Queue(meter)
    app, seen = counting()
    count = 500
    await queue.submit_many([NewTask("t", n) for n in range(count)])
    await drain(queue, app, **{"pace": config().pace})
    assert len(seen) == count
    await queue.hints.flush()
    assert meter.counts.total() / count <= 8
    assert meter.counts[Operation.LIST] / count < 0.2
    assert await keys_under(queue.store, keys.READY) == []


# 012, 014 and 015 are about cron schedules: see test_schedule_traps.py. 017 asked for tests of 012 to 014: these.
# ISSUE-001 says what 009 says.
