"""Direct dispatch: a task is found by the worker that it was routed to, on every store, and everything else is as with
shared dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest

from qo.core import keys, wire
from qo.core.dispatch import Dispatch, DispatchConfig, Routing
from qo.core.poll import Pace
from qo.core.task import Status
from qo.errors import AccessDenied, LeaseLost, Refused
from qo.queue import roster
from qo.queue.depth import DepthReader
from qo.queue.inbox_recovery import InboxRecovery
from qo.queue.listing import Filter
from qo.queue.options import NewTask, Options
from qo.queue.pusher import PushConfig
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo
from qo.queue.sweeper import Sweeper
from qo.store.memory import MemoryStore
from qo.store.port import ObjectStore, PutResult
from qo.worker.worker import Worker
from support.stores.queues import app_of, config, drain, ended, hints, keys_under, until, working

DIRECT = DispatchConfig(dispatch=Dispatch.DIRECT)
OWNER: dict[str, Any] = {"dispatch": Dispatch.DIRECT}


async def echo(input: Any) -> Any:
    return input


async def hold(input: Any) -> Any:
    await asyncio.sleep(60)


async def other(input: Any) -> Any:
    return input


APP = app_of(echo, hold)


@pytest.fixture
async def producer(any_store: ObjectStore) -> AsyncIterator[Queue]:
    queue = Queue(any_store, dispatch=DIRECT)
    yield queue
    await queue.flush()
    await queue._workers.close()


async def sign_on(queue: Queue, worker_id: str, **details: Any) -> WorkerInfo:
    """Put a worker on the roster that owns an inbox and does nothing."""
    now = await queue.store.now()
    info = WorkerInfo(
        worker_id=worker_id,
        started_at=now,
        last_heartbeat=now,
        heartbeat_s=60.0,
        inbox_until=now + timedelta(seconds=180),
        token="t",
        **{"task_types": ["echo"], "state": "running", **details},
    )
    await roster.report(queue.store, info)
    return info


async def running(*workers: Worker) -> None:
    """Wait until the workers have signed on, so that tasks are routed to them."""
    for worker in workers:
        await until(lambda worker=worker: _true(worker.stats.looks > 0))


async def _true(value: bool) -> bool:
    return value


@pytest.mark.parametrize("routing", Routing)
async def test_each_task_is_run_by_the_worker_whose_inbox_it_was_put_into(
    any_store: ObjectStore, routing: Routing
) -> None:
    producer = Queue(any_store, dispatch=DispatchConfig(dispatch=Dispatch.DIRECT, routing=routing))
    async with AsyncExitStack() as stack:
        names = ["one", "two"]
        workers = [
            await stack.enter_async_context(working(Queue(any_store), APP, worker_id=name, **OWNER))
            for name in names
        ]
        await running(*workers)
        tasks = [await producer.submit("echo", n) for n in range(6)]
        tasks += await producer.submit_many([NewTask("echo", n) for n in range(6)])
        assert {task.inbox for task in tasks} <= {*names}
        if routing is Routing.ROUND_ROBIN:
            assert [task.inbox for task in tasks].count("one") == 6
        for task in tasks:
            done = await ended(producer, task.id)
            assert (done.output, done.worker_id, done.inbox) == (task.input, task.inbox, None)
            states = [state.status for state in await producer.history(task.id)]
            assert states == [Status.PENDING, Status.RUNNING, Status.COMPLETED] or not await any_store.versioned()
        for worker in workers:
            await worker._queue.flush()
        await until(lambda: _no_hints(producer))


async def _no_hints(queue: Queue) -> bool:
    return await hints(queue) == set()


@pytest.mark.fast
async def test_a_task_without_a_worker_for_it_goes_to_the_ready_index(
    memory_store: ObjectStore,
) -> None:
    queue = Queue(memory_store, dispatch=DIRECT)
    assert (await queue.submit("echo")).inbox is None
    now = await queue.store.now()
    await sign_on(queue, "paused", state="paused")
    await sign_on(queue, "leaving", state="draining")
    await sign_on(queue, "elsewhere", task_types=["other"])
    await sign_on(queue, "without", task_types=["echo"], paused_types=["echo"])
    shared = WorkerInfo(worker_id="shared", started_at=now, last_heartbeat=now, task_types=["echo"])
    await roster.report(queue.store, shared)
    late = await sign_on(queue, "late")
    expired = wire.encode({**wire.decode_json(wire.encode(late), ""), "inbox_until": now.isoformat()})
    await queue.store.put(keys.worker("late"), expired)
    another = Queue(memory_store, dispatch=DIRECT)
    task = await another.submit("echo")
    assert task.inbox is None
    assert await hints(another) >= {keys.ready_key(task)}
    await sign_on(queue, "able")
    third = Queue(memory_store, dispatch=DIRECT)
    assert (await third.submit("echo")).inbox == "able"
    assert (await Queue(memory_store).submit("echo")).inbox is None, "another producer may not dispatch directly"


@pytest.mark.fast
async def test_only_workers_of_a_shard_get_its_tasks(memory_store: ObjectStore) -> None:
    queue = Queue(memory_store, dispatch=DIRECT)
    await sign_on(queue, "low", shards=list("01234567"))
    await sign_on(queue, "high", shards=list("89abcdef"))
    for task in await queue.submit_many([NewTask("echo", n) for n in range(20)]):
        assert task.inbox == ("low" if task.shard < "8" else "high")


@pytest.mark.fast
async def test_what_cannot_start_now_is_not_routed(memory_store: ObjectStore) -> None:
    queue = Queue(memory_store, dispatch=DIRECT)
    await sign_on(queue, "w")
    assert (await queue.submit("echo", 1, Options(delay_s=5))).inbox is None
    first = await queue.submit("echo", 1)
    assert first.inbox == "w"
    assert (await queue.submit("echo", 1, Options(depends_on=[first.id]))).inbox is None
    assert (await queue.submit("echo", 1, Options(group="g"))).inbox is None


@pytest.mark.fast
async def test_the_same_key_again_is_the_same_task_in_the_same_inbox(memory_store: ObjectStore) -> None:
    queue = Queue(memory_store, dispatch=DIRECT)
    await sign_on(queue, "w")
    first = await queue.submit("echo", 1, Options(key="k"))
    await queue.store.delete(keys.index_key(first) or "")  # As if the submitter had died before it was written.
    await sign_on(queue, "v")
    again = await Queue(memory_store, dispatch=DIRECT).submit("echo", 1, Options(key="k"))
    assert (again.id, again.inbox) == (first.id, "w")
    assert await hints(queue) == {keys.index_key(first)}


class NoInboxes(MemoryStore):
    """To one who may not write to inboxes."""

    async def put(self, key: str, body: bytes, **conditions: Any) -> PutResult:
        if key.startswith(keys.INBOX):
            raise AccessDenied(f"not allowed: PUT {key}")
        return await super().put(key, body, **conditions)


@pytest.mark.fast
async def test_who_may_not_write_to_inboxes_uses_the_ready_index() -> None:
    queue = Queue(NoInboxes(), dispatch=DIRECT)
    await sign_on(queue, "w")
    task = await queue.submit("echo", 1)
    assert await hints(queue) == {keys.ready_key(task)}
    await drain(Queue(queue.store), APP, worker_id="x")
    assert (await queue.get(task.id)).status is Status.COMPLETED


@pytest.mark.fast
async def test_an_entry_that_was_never_written_is_restored_by_the_sweeper_and_stale_ones_are_removed(
    memory_store: ObjectStore,
) -> None:
    queue = Queue(memory_store, dispatch=DIRECT)
    await sign_on(queue, "w")
    lost, cancelled = await queue.submit("echo", 1), await queue.submit("echo", 2)
    wanted = keys.index_key(lost) or ""
    await queue.store.delete(wanted)
    await queue.cancel(cancelled.id)
    await queue.hints.flush()
    stale = [keys.index_key(cancelled) or "", keys.inbox_key("x", 1, lost.id), keys.ready_key(lost)]
    for key in stale:
        await queue.store.put(key, b"")
    report = await Sweeper(queue).sweep()
    assert (report.restored, report.removed) == (1, 3)
    assert await hints(queue) == {wanted}


async def test_tasks_in_inboxes_are_listed_counted_and_cancelled_as_others(
    any_store: ObjectStore, producer: Queue
) -> None:
    await sign_on(producer, "w")
    tasks = await producer.submit_many([NewTask("echo", n) for n in range(4)])
    assert {task.inbox for task in tasks} == {"w"}
    found = await producer.list(status=Status.PENDING)
    assert {task.id for task in found} == {task.id for task in tasks}
    in_shard = await producer.list(status=Status.PENDING, shard=tasks[0].shard)
    assert {task.id for task in in_shard} == {task.id for task in tasks if task.shard == tasks[0].shard}
    depth = await DepthReader(producer).read()
    assert (depth.due, depth.running, depth.exact) == (4, 0, True)
    assert (await producer.cancel(tasks[0].id)).status is Status.CANCELLED
    assert await hints(producer) == {keys.index_key(task) for task in tasks[1:]}
    report = await producer.cancel_many(Filter(status=Status.PENDING))
    assert report.changed == 3
    assert await hints(producer) == set()


async def test_a_worker_that_drains_the_queue_finds_what_is_left_in_every_inbox(
    any_store: ObjectStore, producer: Queue
) -> None:
    await sign_on(producer, "gone")
    tasks = await producer.submit_many([NewTask("echo", n) for n in range(5)])
    assert {task.inbox for task in tasks} == {"gone"}
    await drain(Queue(any_store), APP, worker_id="w")
    assert [(await producer.get(task.id)).status for task in tasks] == [Status.COMPLETED] * 5
    assert await hints(producer) == set()


async def test_a_worker_begins_with_what_an_earlier_one_of_its_id_has_left_and_urgent_tasks_go_first(
    any_store: ObjectStore, producer: Queue
) -> None:
    info = await sign_on(producer, "w", host="elsewhere", pid=1)
    calm = [await producer.submit("echo", n) for n in range(3)]
    urgent = await producer.submit("echo", 9, Options(priority=9))
    expired = wire.encode({**wire.decode_json(wire.encode(info), ""), "inbox_until": "2020-01-01T00:00:00Z"})
    await any_store.put(keys.worker("w"), expired)
    async with working(Queue(any_store), APP, concurrency=1, inbox_capacity=0, **OWNER):
        for task in [*calm, urgent]:
            await ended(producer, task.id)
    starts = [(await producer.get(task.id)).completed_at for task in [*calm, urgent]]
    assert min(starts, key=lambda at: at or info.started_at) == starts[-1]


# The lease


async def test_a_second_worker_of_the_same_id_is_refused(any_store: ObjectStore) -> None:
    async with working(Queue(any_store), APP, **OWNER) as first:
        await running(first)
        for dispatch in Dispatch:
            with pytest.raises(Refused, match=r"a worker w runs already .* give this one another id"):
                await Worker(Queue(any_store), APP, config(dispatch=dispatch)).run()
        record = await roster.find(any_store, "w")
        assert record is not None
        assert record.inbox_until is not None
    assert await roster.find(any_store, "w") is None, "who leaves in order gives the id free"
    async with working(Queue(any_store), APP, **OWNER) as again:
        await running(again)


async def test_a_worker_whose_inbox_is_taken_over_stops_its_handlers_and_ends_with_an_error(
    any_store: ObjectStore,
) -> None:
    queue = Queue(any_store, dispatch=DIRECT)
    worker = Worker(Queue(any_store), APP, config(heartbeat_s=0.1, shutdown_grace_s=60.0, **OWNER))
    run = asyncio.create_task(worker.run())
    await running(worker)
    task = await queue.submit("hold", 1)
    assert task.inbox == "w"
    await until(lambda: _true(len(worker._holds) == 1))
    thief = await sign_on(queue, "w", host="elsewhere", pid=7)
    async with asyncio.timeout(10):
        with pytest.raises(LeaseLost, match="host elsewhere, pid 7"):
            await run
    back = await queue.get(task.id)
    assert (back.status, back.retry_count, back.inbox) == (Status.PENDING, 0, None)
    assert await roster.find(any_store, "w") == thief, "the record of the new owner stays"


async def test_a_lost_reply_to_a_renewal_is_not_taken_for_a_takeover(any_store: ObjectStore) -> None:
    from qo.queue.inbox_lease import InboxLease

    queue = Queue(any_store)
    lease = InboxLease(queue, worker_id="w", ttl_s=60)
    now = await queue.store.now()
    info = WorkerInfo(worker_id="w", started_at=now, last_heartbeat=now)
    await lease.acquire(info)
    assert lease.is_held
    before = lease._etag
    await lease.renew(info)
    lease._etag = before  # As if the reply had been lost.
    await lease.renew(info)
    await queue.store.delete(keys.worker("w"))
    await lease.renew(info)
    assert lease.is_held
    assert await roster.find(queue.store, "w") is not None
    assert await lease.release()
    assert await roster.find(queue.store, "w") is None


# Recovery


async def offered(queue: Queue, *, ready: int = 0) -> int:
    recovery = InboxRecovery(queue)
    recovery._offer_after = timedelta(seconds=-5)  # Servers date objects by the second.
    return await recovery.offer_overdue(ready)


async def test_the_inbox_of_a_worker_that_has_gone_is_offered_to_all(
    any_store: ObjectStore, producer: Queue
) -> None:
    await sign_on(producer, "gone")
    tasks = await producer.submit_many([NewTask("echo", n) for n in range(5)])
    claim = await producer.claim(tasks[4].id, worker_id="x")
    assert claim is not None
    await roster.leave(any_store, "gone")
    await producer.store.put(keys.inbox_key("gone", 1, tasks[3].id), b"")  # A stray one.
    assert await offered(Queue(any_store)) == 4
    left = await hints(producer)
    wanted = [keys.index_key(await producer.get(task.id)) for task in tasks]
    assert {key for key in left if not key.startswith(keys.INBOX)} == set(wanted)
    async with working(Queue(any_store), APP, worker_id="shared"):
        for task in tasks[:4]:
            assert (await ended(producer, task.id)).worker_id == "shared"


async def test_a_worker_that_leaves_in_order_offers_what_it_has_not_begun(any_store: ObjectStore) -> None:
    producer = Queue(any_store, dispatch=DIRECT)
    slow = Pace(min_s=60.0, max_s=60.0)
    async with working(Queue(any_store), APP, concurrency=1, inbox_capacity=0, pace=slow, **OWNER) as worker:
        await running(worker)
        worker.pause()
        await until(lambda: _true(worker.state == "paused"))
        task = await producer.submit("echo", 1)
        assert task.inbox == "w"
    after = await producer.get(task.id)
    assert (after.inbox, after.status) == (None, Status.PENDING)
    assert await hints(producer) == {keys.ready_key(after)}


async def test_a_purged_task_leaves_nothing_that_misleads(any_store: ObjectStore, producer: Queue) -> None:
    await sign_on(producer, "w")
    task = await producer.submit("echo", 1)
    await any_store.delete(producer.tasks.key(task.id))
    assert await offered(producer) == 0
    assert await keys_under(any_store, keys.INBOX) == []


# Push

TOKEN = "a push token of the tests"
LOOPBACK = [ip_network("127.0.0.0/8")]


async def test_push_wakes_exactly_the_worker_that_a_task_was_routed_to(any_store: ObjectStore) -> None:
    producer = Queue(any_store, dispatch=DIRECT, push=PushConfig(TOKEN, LOOPBACK, timeout_s=5.0))
    slow: dict[str, Any] = {
        "http": "127.0.0.1:0",
        "push_tokens": (TOKEN,),
        "pace": Pace(min_s=60.0, max_s=60.0),
        **OWNER,
    }
    async with (
        working(Queue(any_store), APP, worker_id="one", **slow) as one,
        working(Queue(any_store), APP, worker_id="two", **slow) as two,
    ):
        await running(one, two)
        tasks = [await producer.submit("echo", n) for n in range(8)]
        for task in tasks:
            done = await ended(producer, task.id)
            assert done.worker_id == task.inbox
        assert (one.stats.pushed, two.stats.pushed) == (4, 4)
        assert producer.pusher is not None
        assert producer.pusher.counts["sent"] <= 8
        await producer.pusher.close()
    await until(lambda: _no_hints(producer))


@pytest.mark.parametrize("count", [1, 40])
async def test_tasks_of_a_handler_are_routed_too(any_store: ObjectStore, count: int) -> None:
    from qo.worker.api.app import App
    from qo.worker.api.context import Context

    app = App()

    @app.task("parent")
    async def parent(input: int, ctx: Context) -> list[str]:
        return [(await ctx.submit("child", n)).id for n in range(input)]

    @app.task("child")
    async def child(input: int) -> int:
        return input

    queue = Queue(any_store, dispatch=DIRECT)
    async with working(queue, app, **OWNER) as worker:
        await running(worker)
        task = await ended(queue, (await queue.submit("parent", count)).id)
        for child_id in task.output:
            assert (await ended(queue, child_id)).status is Status.COMPLETED
