"""The monitor takes back what dead workers held: once, whoever else is looking, and nothing else."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.pricing import Operation
from qo.core.task import Status
from qo.errors import LeaseLost, Unavailable
from qo.queue import roster
from qo.queue.monitor import CheckReport, Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import Fault, FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.testing import virtual
from support.stores.queues import (
    AT_ONCE,
    StoreClock,
    another,
    claimed,
    hints,
    keys_under,
    path_of,
    until,
    wanted_hints,
)

P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


async def after_lapse(queue: Queue) -> CheckReport:
    """The first check that finds a lapsed lease."""
    monitor = Monitor(queue)

    async def acted() -> CheckReport | None:
        report = await monitor.check()
        return report if report.requeued + report.failed + report.cancelled else None

    return await until(acted)


async def test_a_task_whose_worker_died_is_given_to_another(queue: Queue) -> None:
    task = await queue.submit("t", options=Options(retry_policy=AT_ONCE))
    await claimed(queue, task.id, worker_id="dead", lease_s=0.1)
    await queue.hints.flush()
    report = await after_lapse(another(queue))
    assert (report.requeued, report.failed) == (1, 0)
    task = await queue.get(task.id)
    assert (task.status, task.retry_count, task.worker_id, task.lease_id) == (P, 1, None, None)
    assert task.last_error == "lease expired: worker dead did not finish attempt 1 in time"
    assert await hints(queue) == wanted_hints(task)
    await queue.complete(await claimed(queue, task.id))
    assert await path_of(queue, task.id) == [(P, 0), (R, 1), (P, 1), (R, 2), (C, 2)]


async def test_a_task_that_kills_its_workers_fails_in_the_end(queue: Queue) -> None:
    task = await queue.submit("t", options=Options(max_retries=0))
    await claimed(queue, task.id, worker_id="dead", lease_s=0.1)
    report = await after_lapse(queue)
    assert (report.requeued, report.failed) == (0, 1)
    task = await queue.get(task.id)
    assert (task.status, task.worker_id, task.lease_id, task.lease_expires_at) == (F, None, None, None)
    assert await hints(queue) == set()


async def test_a_task_that_was_to_be_cancelled_is_not_run_again(queue: Queue) -> None:
    task = await queue.submit("t")
    await claimed(queue, task.id, lease_s=0.1)
    await queue.cancel(task.id)
    assert (await after_lapse(queue)).cancelled == 1
    assert (await queue.get(task.id)).status is Status.CANCELLED


async def test_several_monitors_at_once_requeue_each_task_once(queue: Queue) -> None:
    tasks = await queue.submit_many([NewTask("t", n, Options(retry_policy=AT_ONCE)) for n in range(6)])
    for task in tasks:
        await claimed(queue, task.id, lease_s=0.1)
    await queue.hints.flush()
    monitors = [Monitor(another(queue)) for _ in range(4)]
    requeued = 0

    async def all_back() -> bool:
        nonlocal requeued
        reports = await asyncio.gather(*(monitor.check() for monitor in monitors))
        requeued += sum(report.requeued for report in reports)
        return requeued >= len(tasks)

    await until(all_back)
    await all_back()
    assert requeued == len(tasks)
    back = [await queue.get(task.id) for task in tasks]
    assert {(task.status, task.retry_count) for task in back} == {(P, 1)}
    assert await hints(queue) == wanted_hints(*back)


async def test_a_lease_that_still_holds_is_left_alone(queue: Queue) -> None:
    task = await queue.submit("t")
    claim = await claimed(queue, task.id, lease_s=3600)
    report = await Monitor(another(queue)).check()
    assert report == CheckReport()
    assert await queue.get(task.id) == claim.task


@pytest.mark.fast
async def test_only_leases_whose_minute_has_come_are_read(clock: StoreClock) -> None:
    meter = Metered(MemoryStore(clock=clock.now))
    queue = Queue(meter)
    tasks = await queue.submit_many([NewTask("t", n) for n in range(300)])
    for n, task in enumerate(tasks):
        await claimed(queue, task.id, lease_s=30 if n < 3 else 3600)
    await queue.flush()
    clock.advance(40)
    meter.reset()
    monitoring = another(queue)
    report = await Monitor(monitoring).check()
    assert (report.examined, report.requeued) == (3, 3)
    await monitoring.flush()
    assert 3 < meter.counts[Operation.GET] <= 5, "the tasks, and the board"
    assert meter.counts[Operation.LIST] <= 5, (
        "leases twice (the second finds nothing new), waiting, inboxes, workers"
    )


@pytest.mark.fast
async def test_more_leases_than_fit_a_page_are_all_taken_back(clock: StoreClock) -> None:
    queue = Queue(MemoryStore(clock=clock.now))
    tasks = await queue.submit_many([NewTask("t", n) for n in range(1_500)])
    for task in tasks:
        await claimed(queue, task.id, lease_s=30)
    clock.advance(60)
    assert (await Monitor(another(queue)).check()).requeued == 1_500


@pytest.mark.fast
async def test_a_renewed_lease_is_judged_by_its_new_end(clocked_queue: Queue, clock: StoreClock) -> None:
    queue = clocked_queue
    task = await queue.submit("t")
    claim = await claimed(queue, task.id, lease_s=60)
    clock.advance(50)
    await queue.renew(claim, 60)
    clock.advance(50)
    assert (await Monitor(another(queue)).check()).requeued == 0
    clock.advance(10)
    assert (await Monitor(another(queue)).check()).requeued == 1
    with pytest.raises(LeaseLost):
        await queue.renew(claim)


async def test_the_hint_of_a_claim_that_lost_is_cleared_away(queue: Queue) -> None:
    task = await queue.submit("t")
    claim = await claimed(queue, task.id, lease_s=3600)
    stray = keys.index(keys.LEASES, task.shard, keys.minute_of(await queue.store.now()), task.id)
    await queue.store.put(stray, b"of a claim that came second")
    report = await Monitor(another(queue)).check()
    assert (report.examined, report.requeued) == (1, 0)
    assert await hints(queue) == wanted_hints(claim.task)


async def test_the_lease_key_of_a_claim_that_is_on_its_way_is_left_alone(queue: Queue) -> None:
    task = await queue.submit("t")
    ahead = keys.index(keys.LEASES, task.shard, keys.minute_of(await queue.store.now()), task.id)
    await queue.store.put(ahead, b"of a claim whose other half the store has not answered yet")
    assert (await Monitor(another(queue)).check()).examined == 1
    assert ahead in await hints(queue)


async def test_a_mover_that_died_before_writing_the_new_hint_is_made_good(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qo.queue.monitor.CLAIMED_WITHIN", timedelta(seconds=-60))  # As if that were long ago.
    task = await queue.submit("t")
    claim = await claimed(queue, task.id, lease_s=0.001)
    leases = wanted_hints(claim.task)
    task = await queue.release(claim)
    assert await hints(queue) == wanted_hints(task)
    (ready,) = wanted_hints(task)
    await queue.store.delete(ready)
    await queue.store.put(next(iter(leases)), b"")
    assert (await Monitor(another(queue)).check()).repaired == 2
    assert await hints(queue) == {ready}


async def test_a_corrupt_task_does_not_hold_up_the_others(queue: Queue) -> None:
    tasks = await queue.submit_many([NewTask("t", n, Options(max_retries=0)) for n in range(4)])
    for task in tasks:
        await claimed(queue, task.id, lease_s=0.001)
    await queue.store.put(queue.tasks.key(tasks[0].id), b"\xff not a task")
    monitor, failed = Monitor(another(queue)), 0

    async def all_failed() -> bool:
        nonlocal failed
        failed += (await monitor.check()).failed
        return failed == 3

    await until(all_failed)


@pytest.mark.fast
async def test_workers_that_fell_silent_are_reported(clocked_queue: Queue, clock: StoreClock) -> None:
    queue = clocked_queue
    for worker_id in ("silent", "alive"):
        now = clock.now()
        await roster.report(
            queue.store, roster.WorkerInfo(worker_id=worker_id, started_at=now, last_heartbeat=now)
        )
        clock.advance(50)
    assert (await Monitor(queue).check()).stale_workers == ["silent"]
    assert (await Monitor(queue, MonitorConfig(worker_health_threshold_s=3600)).check()).stale_workers == []


@pytest.mark.fast
async def test_a_worker_that_reports_seldom_is_not_taken_for_silent(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    queue, now = clocked_queue, clock.now()
    seldom = roster.WorkerInfo(worker_id="seldom", started_at=now, last_heartbeat=now, heartbeat_s=120)
    await roster.report(queue.store, seldom)
    clock.advance(400)
    assert (await Monitor(queue).check()).stale_workers == []
    clock.advance(100)
    assert (await Monitor(queue).check()).stale_workers == ["seldom"]


@pytest.mark.fast
async def test_a_corrupt_worker_record_hides_no_other_worker(clocked_queue: Queue, clock: StoreClock) -> None:
    queue, now = clocked_queue, clock.now()
    await queue.store.put(keys.worker("broken"), b"{}")
    alive = roster.WorkerInfo(worker_id="alive", started_at=now, last_heartbeat=now)
    await roster.report(queue.store, alive)
    assert await roster.workers(queue.store) == [alive]
    assert (await Monitor(queue).check()).stale_workers == []


@pytest.mark.fast
def test_a_running_monitor_checks_and_sweeps_and_outlasts_an_outage() -> None:
    async def main() -> None:
        ambient = Ambient.seeded(1, virtual.monotonic)
        inner = MemoryStore(clock=virtual.wall_clock)
        queue = Queue(inner, ambient=ambient)
        watched = Queue(Faulty(inner, FaultPlan(outages_s=((5, 200),)), ambient), ambient=ambient)
        stop = asyncio.Event()
        monitor = Monitor(watched, MonitorConfig(check_interval_s=30, sweep_interval_s=60))
        running = asyncio.create_task(monitor.run(stop))
        await asyncio.sleep(10)
        dead = await queue.submit("t", options=Options(retry_policy=AT_ONCE))
        await claimed(queue, dead.id, lease_s=20)
        hidden = await queue.submit("t")
        for key in wanted_hints(hidden):
            await inner.delete(key)
        await asyncio.sleep(300)
        assert (await queue.get(dead.id)).status is P
        assert await keys_under(inner, keys.READY) == sorted(
            wanted_hints(await queue.get(dead.id), await queue.get(hidden.id))
        )
        stop.set()
        await running

    virtual.run(main())


@pytest.mark.fast
def test_hints_are_repaired_while_the_records_of_silent_workers_cannot_be_read() -> None:
    async def main() -> None:
        inner = MemoryStore(clock=virtual.wall_clock)
        faulty = Faulty(inner, ambient=Ambient.seeded(1, virtual.monotonic))
        queue = Queue(faulty, ambient=Ambient.seeded(1, virtual.monotonic))
        now = virtual.wall_clock()
        await roster.report(inner, roster.WorkerInfo(worker_id="silent", started_at=now, last_heartbeat=now))
        await asyncio.sleep(1000)
        faulty.inject(Fault.REFUSED, on="get", under=keys.WORKERS, times=1_000_000)
        hidden = await queue.submit("t")
        for key in wanted_hints(hidden):
            await inner.delete(key)
        stop = asyncio.Event()
        running = asyncio.create_task(Monitor(queue, MonitorConfig(sweep_interval_s=60)).run(stop))
        await asyncio.sleep(300)
        stop.set()
        await running
        assert await keys_under(inner, keys.READY) == sorted(wanted_hints(hidden))

    virtual.run(main())


@pytest.mark.fast
async def test_a_record_that_cannot_be_read_does_not_have_the_others_read_again(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    names, now = [f"silent-{n}" for n in range(5)], clock.now()
    for name in names:
        info = roster.WorkerInfo(worker_id=name, started_at=now, last_heartbeat=now)
        await roster.report(clocked_queue.store, info)
    clock.advance(100)
    meter = Metered(clocked_queue.store)
    faulty = Faulty(meter)
    monitor = Monitor(Queue(faulty))
    faulty.inject(Fault.REFUSED, on="get", under=keys.worker(names[-1]))
    with pytest.raises(Unavailable):
        await monitor.check()
    before = meter.counts[Operation.GET]
    assert (await monitor.check()).stale_workers == names
    assert meter.counts[Operation.GET] - before == 1
