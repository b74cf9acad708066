"""The worker: what it takes, how it holds it, and how it lets go."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qo.ambient import Ambient
from qo.config.origins import load
from qo.core import keys, wire
from qo.core.poll import Pace
from qo.core.pricing import Operation
from qo.core.task import Status
from qo.errors import Unavailable
from qo.queue import roster
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.service import run_worker
from qo.worker.worker import Worker
from support.stores.queues import (
    AT_ONCE,
    StoreClock,
    another,
    app_of,
    claimed,
    config,
    drain,
    ended,
    hints,
    until,
    virtual_queue,
    wanted_hints,
    working,
)

P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


async def test_a_full_queue_is_drained_by_several_workers_each_task_once(queue: Queue) -> None:
    ran: list[str] = []

    async def work(input: int, ctx: Context) -> None:
        ran.append(ctx.task_id)

    tasks = await queue.submit_many([NewTask("work", n) for n in range(60)])
    workers = [drain(another(queue), app_of(work), worker_id=f"w{n}", ready_page_size=20) for n in range(3)]
    tallies = await asyncio.gather(*workers)
    assert sorted(ran) == sorted(task.id for task in tasks)
    assert sum(tally.completed for tally in tallies) == 60
    assert await queue.list(status=P) == []
    assert len(await queue.list(status=C, limit=200)) == 60


async def test_types_without_a_handler_are_left_alone(queue: Queue) -> None:
    def known(input: Any) -> None: ...

    strangers = await queue.submit_many([NewTask("unknown", n) for n in range(30)])
    mine = await queue.submit("known")
    tally = await drain(queue, app_of(known), ready_page_size=3)
    assert (tally.claimed, tally.completed) == (1, 1)
    assert (await queue.get(mine.id)).status is C
    for task in strangers[:5]:
        assert await queue.history(task.id) == [task], "not even touched"


async def test_a_worker_polls_only_its_shards(queue: Queue) -> None:
    def work(input: Any) -> None: ...

    tasks = await queue.submit_many([NewTask("work", n) for n in range(40)])
    mine = {task.id for task in tasks if task.shard in "0123"}
    await drain(queue, app_of(work), shards=("0", "1", "2", "3"))
    assert {task.id for task in await queue.list(status=C)} == mine
    assert mine


async def test_a_stopped_worker_finishes_what_it_holds_and_takes_no_more(queue: Queue) -> None:
    go = asyncio.Event()
    begun: list[str] = []

    async def slow(input: int, ctx: Context) -> str:
        begun.append(ctx.task_id)
        await go.wait()
        return "finished"

    await queue.submit_many([NewTask("slow", n) for n in range(6)])
    worker = Worker(queue, app_of(slow), config(concurrency=2))
    running = asyncio.create_task(worker.run())
    await until(lambda: _true(len(begun) == 2))
    worker.stop()
    go.set()
    tally = await running
    assert (tally.claimed, tally.completed, tally.released) == (2, 2, 0)
    assert {t.id for t in await queue.list(status=C)} == set(begun)
    assert len(await queue.list(status=P)) == 4


@pytest.mark.parametrize("how", ["grace over", "hurried"])
async def test_shutdown_gives_unfinished_tasks_back_at_no_cost(queue: Queue, how: str) -> None:
    begun: list[str] = []

    async def endless(input: int, ctx: Context) -> None:
        begun.append(ctx.task_id)
        await asyncio.sleep(3600)

    await queue.submit_many([NewTask("endless", n, Options(max_retries=0)) for n in range(3)])
    grace_s = 0.0 if how == "grace over" else 60.0
    worker = Worker(queue, app_of(endless), config(concurrency=3, shutdown_grace_s=grace_s))
    running = asyncio.create_task(worker.run())
    await until(lambda: _true(len(begun) == 3))
    worker.stop()
    if how == "hurried":
        worker.hurry()
    tally = await running
    assert tally.released == 3
    given_back = await queue.list(status=P)
    assert {task.id for task in given_back} == set(begun)
    assert all((task.retry_count, task.attempt) == (0, 1) for task in given_back)
    assert await hints(queue) == wanted_hints(*given_back)
    assert await roster.workers(queue.store) == [], "who leaves signs off"


async def test_cancelling_a_running_task_stops_its_handler(queue: Queue) -> None:
    stopped: list[str] = []
    begun = asyncio.Event()

    async def endless(input: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            stopped.append("stopped")
            raise

    task = await queue.submit("endless")
    async with working(queue, app_of(endless), control_s=0.05):
        await begun.wait()
        await another(queue).cancel(task.id, reason="enough")
        task = await ended(queue, task.id)
    assert (task.status, task.cancel_reason, stopped) == (Status.CANCELLED, "enough", ["stopped"])


async def test_a_corrupt_task_does_not_stop_the_worker(queue: Queue) -> None:
    def work(input: Any) -> None: ...

    broken, good = await queue.submit("work"), await queue.submit("work")
    await queue.store.put(queue.tasks.key(broken.id), b"{ not json")
    tally = await drain(queue, app_of(work))
    assert (tally.claimed, tally.completed) == (1, 1)
    assert (await queue.get(good.id)).status is C


async def test_a_hint_without_a_task_is_removed_on_the_way(queue: Queue) -> None:
    task = await queue.submit("work")
    await queue.store.delete(queue.tasks.key(task.id))
    await drain(queue, App())
    assert await hints(queue) == set()


async def test_a_worker_says_what_it_is_doing(queue: Queue) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def slow(input: Any) -> None:
        begun.set()
        await go.wait()

    task = await queue.submit("slow")
    async with working(queue, app_of(slow), worker_id="ada", heartbeat_s=0.02, shards=(task.shard,)):
        await begun.wait()

        async def reported() -> bool:
            (info,) = await roster.workers(queue.store)
            return info.current_task == task.id

        await until(reported)
        (info,) = await roster.workers(queue.store)
        assert (info.worker_id, info.task_types, info.shards) == ("ada", ["slow"], [task.shard])
        go.set()
        await ended(queue, task.id)


async def test_a_lost_lease_stops_the_handler_and_counts_nothing_as_done(queue: Queue) -> None:
    stopped = asyncio.Event()

    async def endless(input: Any) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    task = await queue.submit("endless", options=Options(timeout_s=3600))
    async with working(queue, app_of(endless), lease_s=0.3) as worker:
        await until(lambda: _true(worker.stats.claimed == 1))
        # As after a lapse: somebody else owns the task now.
        robbed = replace(await queue.get(task.id), lease_id="another")
        await queue.store.put(queue.tasks.key(task.id), wire.encode(robbed))
        await asyncio.wait_for(stopped.wait(), 10)
        await until(lambda: _true(worker.stats.lost == 1))
        assert (worker.stats.completed, worker.stats.failed) == (0, 0)


@pytest.mark.fast
def test_a_task_that_vanishes_does_not_cost_others_their_renewals() -> None:
    """Renewal goes on for all other tasks when one task object was deleted or damaged by hand."""

    async def main() -> None:
        queue = virtual_queue()

        async def slow(input: Any) -> str:
            await asyncio.sleep(input)
            return "done"

        damaged = await queue.submit("slow", 200, Options(timeout_s=300))
        good = await queue.submit("slow", 200, Options(timeout_s=300))
        async with working(queue, app_of(slow)):
            await asyncio.sleep(1)
            await queue.store.put(queue.tasks.key(damaged.id), b"damaged")
            await asyncio.sleep(150)
            held = await queue.get(good.id)
            assert (await queue.store.now() - held.updated_at).total_seconds() < 30, "renewed a moment ago"
            await asyncio.sleep(100)
            assert (await queue.get(good.id)).output == "done"

    virtual.run(main())


@pytest.mark.fast
def test_a_task_that_is_still_listed_while_it_runs_is_neither_forgotten_nor_run_twice() -> None:
    async def main() -> None:
        queue, begun = virtual_queue(), 0

        async def slow(input: Any) -> str:
            nonlocal begun
            begun += 1
            await asyncio.sleep(100)
            return "done"

        task = await queue.submit("slow", options=Options(timeout_s=300))
        (ready,) = wanted_hints(task)
        async with working(queue, app_of(slow)):
            await asyncio.sleep(1)
            await queue.store.put(ready, b"")  # As if its removal had failed.
            await asyncio.sleep(80)
            held = await queue.get(task.id)
            assert (await queue.store.now() - held.updated_at).total_seconds() < 20, "still being renewed"
            await asyncio.sleep(20)
        assert (begun, (await queue.get(task.id)).output) == (1, "done")

    virtual.run(main())


@pytest.mark.fast
@pytest.mark.parametrize("seed", range(20))
def test_a_worker_that_leaves_in_the_middle_of_a_claim_leaves_nothing_running(seed: int) -> None:
    async def main() -> None:
        ambient = Ambient.seeded(seed, virtual.monotonic)
        inner = MemoryStore(clock=virtual.wall_clock)
        slow = Queue(Faulty(inner, FaultPlan(latency_s=(0.01, 0.2)), ambient), ambient=ambient)
        queue = Queue(inner, ambient=ambient)

        async def work(input: Any) -> None:
            await asyncio.sleep(input)

        tasks = await queue.submit_many([NewTask("work", n % 2 * 1000) for n in range(20)])
        worker = Worker(slow, app_of(work), config(concurrency=4, shutdown_grace_s=0))
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(ambient.unit() * 3)
        worker.stop()
        asked = virtual.monotonic()
        tally = await running
        assert virtual.monotonic() - asked < 5, "it does not begin anything any more"
        for task in [await queue.get(task.id) for task in tasks]:
            assert task.status in (P, C)
            assert task.retry_count == 0
        assert tally.claimed == tally.completed + tally.released

    virtual.run(main())


@pytest.mark.fast
def test_an_idle_worker_survives_an_outage_and_works_on_after_it() -> None:
    async def main() -> None:
        ambient = Ambient.seeded(1, virtual.monotonic)
        inner = MemoryStore(clock=virtual.wall_clock)
        faulty = Faulty(inner, FaultPlan(outages_s=((5, 65),)), ambient)
        queue = Queue(faulty, ambient=ambient)

        async def work(input: Any) -> None: ...

        async with working(queue, app_of(work)):
            await asyncio.sleep(70)
            task = await queue.submit("work")
            assert (await ended(queue, task.id)).status is C

    virtual.run(main())


@pytest.mark.fast
def test_a_finished_task_is_reported_even_if_the_store_is_away_for_a_moment() -> None:
    async def main() -> None:
        ambient = Ambient.seeded(1, virtual.monotonic)
        inner = MemoryStore(clock=virtual.wall_clock)
        faulty = Faulty(inner, FaultPlan(outages_s=((5, 12),)), ambient)
        queue = Queue(faulty, ambient=ambient)

        async def work(input: Any) -> str:
            await asyncio.sleep(6)
            return "worth keeping"

        task = await queue.submit("work")
        async with working(queue, app_of(work)):
            await asyncio.sleep(60)
        done = await queue.get(task.id)
        assert (done.output, done.attempt) == ("worth keeping", 1)

    virtual.run(main())


@pytest.mark.fast
async def test_a_draining_worker_does_not_take_a_failed_look_for_an_empty_queue(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(memory_store)
    await queue.submit_many([NewTask("work", n) for n in range(5)])
    look, looks = memory_store.list, 0

    async def fails_twice(prefix: str, **options: Any) -> Any:
        nonlocal looks
        looks += prefix.startswith(keys.READY)
        if prefix.startswith(keys.READY) and looks <= 2:
            raise Unavailable("503 Slow Down")
        return await look(prefix, **options)

    async def work(input: Any) -> None: ...

    monkeypatch.setattr(memory_store, "list", fails_twice)
    assert (await drain(queue, app_of(work))).completed == 5


@pytest.mark.fast
async def test_a_stale_hint_is_removed_only_once_a_true_one_leads_to_the_task(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    """A worker that died between claiming a task and writing its lease hint leaves only the old hint."""
    queue = clocked_queue
    submitted = await queue.submit("work", options=Options(timeout_s=30, retry_policy=AT_ONCE))
    running = (await claimed(queue, submitted.id)).task
    assert await hints(queue) == wanted_hints(running)
    for key in wanted_hints(running):
        await queue.store.delete(key)
    for key in wanted_hints(submitted):
        await queue.store.put(key, b"")
    clock.advance(60)

    async def work(input: Any) -> None: ...

    await drain(another(queue), app_of(work))
    assert await hints(queue) == wanted_hints(running)
    clock.advance(60)
    assert (await Monitor(queue).check()).requeued == 1


@pytest.mark.fast
async def test_a_monitor_survives_whatever_a_check_raises(
    memory_store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checks = 0

    async def fails(self: Monitor, **options: object) -> None:
        nonlocal checks
        checks += 1
        raise ZeroDivisionError

    monkeypatch.setattr(Monitor, "check", fails)
    settings = load({"monitor.check_interval_s": "0.1"}, environ={}, cwd=tmp_path)
    running = asyncio.create_task(run_worker(Queue(memory_store), App(), settings))
    await until(lambda: _true(checks >= 3))
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await running).claimed == 0
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.fast
def test_a_worker_with_nothing_to_do_asks_less_and_less_often() -> None:
    async def main() -> int:
        meter = Metered(MemoryStore(clock=virtual.wall_clock))
        queue = Queue(meter, ambient=Ambient.seeded(1, virtual.monotonic))
        worker = Worker(queue, App(), config(pace=Pace(), heartbeat_s=3600))
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(600)
        worker.stop()
        await running
        return meter.counts[Operation.LIST]

    lists = virtual.run(main())
    assert 60 < lists < 90, "as the lookout one LIST every ten seconds, and one page of tasks a minute"


async def _true(value: bool) -> bool:
    return value
