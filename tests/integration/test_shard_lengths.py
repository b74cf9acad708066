"""16, 256, 4,096 or 65,536 shards: everything works with each of them."""

from __future__ import annotations

import pytest

from qo.core import keys, shard
from qo.core.discovery import IndexMode
from qo.core.task import Status
from qo.errors import Unproven, UsageError
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper
from qo.store import queue_manifest
from qo.store.port import ObjectStore
from qo.worker.api.app import App
from support.stores.queues import AT_ONCE, another, claimed, drain, hasty, hints, until, wanted_hints

LENGTHS = [1, 2, 3, 4]
P, R, C = Status.PENDING, Status.RUNNING, Status.COMPLETED


@pytest.fixture(params=LENGTHS, ids=lambda n: f"len{n}")
def sharded(request: pytest.FixtureRequest, any_store: ObjectStore) -> Queue:
    return Queue(any_store, prefix_len=request.param, ambient=hasty())


async def test_tasks_are_found_claimed_completed_and_listed(sharded: Queue) -> None:
    app = App()

    @app.task("t")
    async def handle(input: int) -> int:
        return input

    tasks = await sharded.submit_many([NewTask("t", n) for n in range(20)])
    assert all(task.shard == task.id[: sharded.prefix_len] for task in tasks)
    assert {t.id for t in await sharded.list(status=P)} == {task.id for task in tasks}
    await drain(sharded, app, ready_page_size=7)
    assert {t.id for t in await sharded.list(status=C)} == {task.id for task in tasks}
    (first, *_) = tasks
    assert {t.shard for t in await sharded.list(shard=first.shard)} == {first.shard}
    assert await hints(sharded) == set()


async def test_lapsed_leases_are_taken_back(sharded: Queue) -> None:
    tasks = await sharded.submit_many([NewTask("t", n, Options(retry_policy=AT_ONCE)) for n in range(4)])
    for task in tasks:
        await claimed(sharded, task.id, lease_s=0.05)
    await sharded.hints.flush()
    monitor, requeued = Monitor(another(sharded)), 0

    async def all_back() -> bool:
        nonlocal requeued
        requeued += (await monitor.check()).requeued
        return requeued == 4

    await until(all_back)
    back = [await sharded.get(task.id) for task in tasks]
    assert {task.status for task in back} == {P}
    assert await hints(sharded) == wanted_hints(*back)


async def test_hints_are_repaired(sharded: Queue) -> None:
    tasks = await sharded.submit_many([NewTask("t", n) for n in range(6)])
    for key in wanted_hints(*tasks):
        await sharded.store.delete(key)
    stale = keys.index(keys.READY, tasks[0].shard, 7, tasks[0].id)
    await sharded.store.put(stale, b"")
    sweeper, reports = Sweeper(another(sharded), page_size=4), []
    while not reports or not reports[-1].wrapped:
        reports.append(await sweeper.sweep())
    assert sum(report.restored for report in reports) == 6
    assert sum(report.removed for report in reports) == 1
    assert await hints(sharded) == wanted_hints(*tasks)


async def test_a_log_scan_finds_tasks_of_every_shard(sharded: Queue) -> None:
    app = App()

    @app.task("t")
    async def handle(input: int) -> None: ...

    await sharded.submit_many([NewTask("t", n) for n in range(10)])
    tally = await drain(sharded, app, index_mode=IndexMode.LOG_SCAN)
    assert tally.completed == 10


@pytest.mark.fast
@pytest.mark.parametrize("length", LENGTHS)
def test_there_are_as_many_shards_as_the_length_says(length: int) -> None:
    shards = shard.all_shards(length)
    assert len(set(shards)) == 16**length == shard.count(length)
    assert list(shards) == sorted(shards)


@pytest.mark.fast
@pytest.mark.parametrize("length", [0, 5, -1])
def test_other_lengths_are_refused(memory_store: ObjectStore, length: int) -> None:
    with pytest.raises(UsageError, match="1 to 4"):
        Queue(memory_store, prefix_len=length)


async def test_a_length_that_disagrees_with_the_bucket_is_refused(any_store: ObjectStore) -> None:
    await queue_manifest.create_or_get(any_store, prefix_len=2)
    with pytest.raises(Unproven, match="QO_SHARD_PREFIX_LEN=2"):
        await queue_manifest.require(any_store, prefix_len=1, needs_proof=False)
    assert (await queue_manifest.require(any_store, prefix_len=None, needs_proof=False)).shard_prefix_len == 2
