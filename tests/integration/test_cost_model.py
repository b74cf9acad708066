"""The request model of `qo cost` against what the queue really sends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from qo.ambient import Ambient
from qo.core.cost_extras import requests_per_wait
from qo.core.cost_model import CostEstimate, estimate, requests_per_task
from qo.core.discovery import IndexMode
from qo.core.limit_pricing import keyed_limits_per_day, limit_per_day
from qo.core.limit_shares import Limit
from qo.core.load import Delivery, Load
from qo.core.ownership import LeasingConfig
from qo.core.pricing import DAY_S, MONTH_D, Operation, Requests, dollars, multiply
from qo.core.retention import Keep, Policy
from qo.core.rhythm import MARKERS_EVERY_S, Rhythm
from qo.core.watching_pricing import markers_per_day, monitor_per_day, purge_per_day
from qo.queue import roster
from qo.queue.feed import Feed
from qo.queue.hint_markers import HintMarkers
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask
from qo.queue.purger import Purger
from qo.queue.pusher import PushConfig
from qo.queue.queue import Claim, Queue
from qo.queue_api.watcher import Watcher
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import Deletion
from qo.testing import virtual
from support.stores.queues import StoreClock
from support.worker.metered_fleet import Bill, run_fleet

pytestmark = pytest.mark.fast


def nonzero(requests: Requests) -> dict[Operation, float]:
    return {operation: count for operation, count in requests.items() if count}


async def test_a_task_takes_the_requests_that_the_model_says() -> None:
    meter = Metered(MemoryStore())
    queue = Queue(meter)
    tasks = await queue.submit_many([NewTask("add", n) for n in range(100)])
    await queue.board.flush()
    entries = {entry.key.rsplit("/", 1)[1]: entry for entry in (await meter.store.list("ready/")).entries}
    notices = meter.counts[Operation.PUT] - 200
    meter.reset()
    for task in tasks:
        hint = Deletion(entries[task.id].key, etag=entries[task.id].etag)
        claim = await queue.claim(task.id, worker_id="w", hint=hint)
        assert isinstance(claim, Claim)
        await queue.complete(claim)
    await queue.hints.flush()
    per_task = requests_per_task(Load(1, 10**9))
    expected = {operation: 100 * n for operation, n in nonzero(per_task).items()}
    expected[Operation.PUT] -= 200  # Those of the submit were counted before.
    assert meter.counts == expected
    assert notices <= 2, "one for the first task, one for all others"


async def test_a_quiet_worker_removes_hints_by_requests_that_are_free() -> None:
    meter = Metered(MemoryStore())
    queue = Queue(meter)
    task = await queue.submit("add")
    claim = await queue.claim(task.id, worker_id="w")
    assert isinstance(claim, Claim)
    await queue.complete(claim)
    await queue.close()
    assert meter.counts[Operation.DELETE] == 2
    assert meter.counts[Operation.DELETE_MANY] == 0


@pytest.mark.parametrize("mode", [IndexMode.INDEX_ONLY, IndexMode.HYBRID, IndexMode.LOG_SCAN])
async def test_an_idle_look_is_one_list(mode: IndexMode) -> None:
    meter = Metered(MemoryStore())
    feed = Feed(Queue(meter), mode=mode)
    assert await feed.take(10) == []
    assert meter.counts == {Operation.LIST: 1}


async def test_a_monitor_takes_the_requests_that_the_model_says(clock: StoreClock) -> None:
    meter = Metered(MemoryStore(clock=clock.now))
    now = clock.now()
    await roster.report(meter, roster.WorkerInfo(worker_id="w", started_at=now, last_heartbeat=now))
    monitor = Monitor(Queue(meter))
    await monitor.sweep()  # The first of all is careful, as is one that was long overdue.
    meter.reset()
    await monitor.check()
    per_check = Rhythm(check_s=DAY_S, sweep_s=0)
    assert meter.counts == nonzero(monitor_per_day(Load(1, 0), per_check))
    clock.advance(60)
    await monitor.sweep(unless_within_s=60)
    with_sweep = Rhythm(check_s=DAY_S, sweep_s=DAY_S)
    assert meter.counts == nonzero(monitor_per_day(Load(1, 0), with_sweep))


LOADS = [Load(1, 0), Load(20, 0), Load(1, 5_000), Load(4, 20_000), Load(20, 40_000), Load(4, 2_000, task_s=30)]


def check_bill(bill: Bill, expected: CostEstimate) -> None:
    assert bill.dollars_a_month == pytest.approx(expected.total, rel=0.15)
    share = bill.seconds / (MONTH_D * DAY_S)
    for operation in (Operation.PUT, Operation.LIST, Operation.GET):
        count = expected.requests[operation] * share
        assert bill.usage.counts.get(operation, 0) == pytest.approx(count, rel=0.25), operation


def new(load: Load) -> Load:
    """As if everything was as old as the run, so that a sweep and a scan read each ended task once."""
    return replace(load, kept_d=0)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.workers}w-{load.tasks_per_day}-{load.task_s:g}s")
def test_metered_workers_cost_what_the_model_says(load: Load) -> None:
    hours = 1 if load.workers < 10 else 0.25
    check_bill(run_fleet(load, 3600 * hours), estimate(new(load)))


@pytest.mark.parametrize(
    "load", [Load(1, 0), Load(16, 0), Load(8, 20_000)], ids=lambda load: f"{load.workers}w-{load.tasks_per_day}"
)
def test_metered_workers_that_lease_shards_cost_what_the_model_says(load: Load) -> None:
    bill = run_fleet(load, 900, prefix_len=2, shard_leasing=LeasingConfig())
    check_bill(bill, estimate(new(load), delivery=Delivery.LEASED))


def test_a_metered_sender_of_wake_ups_costs_what_the_model_says() -> None:
    load = Load(4, 20_000)
    bill = run_fleet(load, 900, push=PushConfig("token", []))
    check_bill(bill, estimate(new(load), delivery=Delivery.PUSH))


def test_a_metered_limit_costs_what_the_model_says() -> None:
    load = Load(1, 10_000, task_s=60.0)  # So that the limit is in use all the time.
    plain, limited = (run_fleet(load, 600, shared_limits=limits) for limits in ({}, {"t": Limit(concurrency=100)}))
    more = limited.usage - plain.usage
    per_month = multiply(limit_per_day(load), MONTH_D)
    assert more.dollars() * MONTH_D * DAY_S / 600 == pytest.approx(dollars(per_month), rel=0.15)


KEYED = [
    (Load(1, 20_000), 50),
    (Load(1, 20_000, task_s=8.0), 500),
    (Load(1, 20_000, task_s=30.0), 50),
    (Load(1, 40_000, task_s=2.0), 5),
    (Load(4, 10_000), 500),
]


@pytest.mark.parametrize(("load", "keys"), KEYED, ids=lambda each: getattr(each, "task_s", each))
def test_a_metered_limit_by_a_member_of_the_input_costs_what_the_model_says(load: Load, keys: int) -> None:
    seconds, limit = 600.0, Limit(concurrency=100, by="input.key")
    plain, limited = (run_fleet(load, seconds, keys=keys, shared_limits=each) for each in ({}, {"t": limit}))
    load = replace(load, tasks_per_day=len(limited.waits_s) * DAY_S / seconds)  # As many as there were.
    expected = multiply(keyed_limits_per_day(load, load.tasks_per_day, keys), seconds / DAY_S)
    more = limited.usage - plain.usage
    assert more.dollars() == pytest.approx(dollars(expected), rel=0.15)
    for operation in (Operation.GET, Operation.PUT):
        assert more.counts[operation] == pytest.approx(expected[operation], rel=0.15), operation


def test_a_metered_wait_takes_the_requests_that_the_model_says() -> None:
    async def story() -> Metered:
        meter = Metered(MemoryStore(clock=virtual.wall_clock))
        queue = Queue(meter, ambient=Ambient.seeded(1, virtual.monotonic))
        task = await queue.submit("t")
        watcher = Watcher(queue, reads_per_s=50)
        meter.reset()
        task = await queue.get(task.id)
        assert await watcher.next_state(task.id, after=task.token, timeout_s=60.0) is None
        await watcher.stop()
        return meter

    meter = virtual.run(story())
    assert meter.counts[Operation.GET] == pytest.approx(requests_per_wait(60.0)[Operation.GET], rel=0.15)


async def test_delete_markers_are_looked_for_with_the_requests_that_the_model_says() -> None:
    meter = Metered(MemoryStore())
    await HintMarkers(Queue(meter)).remove()
    assert meter.counts == {each: n * MARKERS_EVERY_S / DAY_S for each, n in markers_per_day(Load(1, 0)).items()}


async def test_a_purge_takes_the_requests_that_the_model_says() -> None:
    meter = Metered(MemoryStore())
    queue = Queue(meter)
    tasks = 1000
    for task in await queue.submit_many([NewTask("t", n) for n in range(tasks)]):
        claim = await queue.claim(task.id, worker_id="w")
        assert isinstance(claim, Claim)
        await queue.complete(claim)
    await queue.flush()
    meter.reset()
    assert (await Purger(queue, Policy(Keep(completed=timedelta(0)))).purge_all()).tasks == tasks
    assert meter.counts == nonzero(purge_per_day(Load(1, tasks, kept_d=1)))
