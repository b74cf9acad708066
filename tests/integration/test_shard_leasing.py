"""Workers share out the shards among them: evenly, exclusively, and again whenever one comes or goes."""

from __future__ import annotations

import itertools
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from qo.core.board import WatchTimes
from qo.core.discovery import IndexMode
from qo.core.load import Load
from qo.core.ownership import LeasingConfig, decode_plan, unit_of, units
from qo.core.pricing import Operation
from qo.core.rhythm import COUNT_LEASED_EVERY_S
from qo.core.task import Task
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.port import ObjectStore
from qo.testing import virtual
from support.stores.queues import app_of, ended, until, wanted_hints, working
from support.worker.fleet import HEARTBEAT_S, Fleet, Member
from support.worker.metered_fleet import run_fleet

TTL_S = LeasingConfig().ttl_s
SHARED_S = TTL_S + 30  # After a worker has come, or has left in order.
MISSED_S = SHARED_S + 3 * HEARTBEAT_S + COUNT_LEASED_EVERY_S  # After one has died.
PREFIX_LENS = [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long), 4]
UNCAPPED = LeasingConfig(shards_per_worker=256)


def told(story: Coroutine[Any, Any, None]) -> None:
    virtual.run(story)


async def fleet_of(count: int, **options: Any) -> Fleet:
    """A fleet that has shared out the units."""
    fleet = Fleet(**options)
    await fleet.join(count)
    await fleet.watch(SHARED_S)
    assert fleet.fair()
    return fleet


def unit_of_task(task: Task) -> str:
    return unit_of(task.shard)


def done_by(fleet: Fleet) -> dict[str, tuple[Member, float]]:
    return {task_id: (member, at) for member in fleet.members for task_id, at in member.done}


# Sharing out


@pytest.mark.fast
@pytest.mark.parametrize("prefix_len", PREFIX_LENS)
@pytest.mark.parametrize("config", [LeasingConfig(), UNCAPPED], ids=["capped", "uncapped"])
def test_units_are_shared_out_evenly_within_a_minute(prefix_len: int, config: LeasingConfig) -> None:
    async def story() -> None:
        fleet = await fleet_of(5, prefix_len=prefix_len, config=config)
        for count in (1, 6):
            await fleet.join(count)
            await fleet.watch(SHARED_S)
            assert fleet.fair()
        await fleet.disband()

    told(story())


@pytest.mark.fast
@pytest.mark.parametrize("prefix_len", PREFIX_LENS)
@pytest.mark.parametrize("way", ["leave", "crash"])
def test_what_a_worker_had_is_the_others_soon(prefix_len: int, way: str) -> None:
    async def story() -> None:
        fleet = await fleet_of(12, prefix_len=prefix_len, config=UNCAPPED)
        lookout = fleet.lookouts()[0]
        other = next(member for member in fleet.members if member is not lookout)
        for gone in ([other], [lookout], fleet.members[4:8]):
            for member in [each for each in gone if each in fleet.members]:
                await (fleet.leave(member) if way == "leave" else fleet.crash(member))
            await fleet.watch(SHARED_S if way == "leave" and lookout not in gone else MISSED_S + 60)
            assert fleet.fair()
            assert len(fleet.lookouts()) == 1
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_a_worker_that_leaves_owns_nothing_and_its_neighbours_stay_where_they_are() -> None:
    async def story() -> None:
        fleet = await fleet_of(4, prefix_len=2)
        gone, *others = fleet.members
        before = {member.name: member.owned for member in others}
        await fleet.leave(gone)
        assert gone.owned == ()
        for _ in range(60):
            assert {member.name: member.owned for member in others} == before
            await fleet.watch(1)
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_a_worker_alone_takes_what_it_may_and_lists_the_rest_as_well() -> None:
    async def story() -> None:
        fleet = await fleet_of(1, prefix_len=2)
        assert len(fleet.members[0].owned) == 16
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(300)])
        await fleet.watch(30)
        assert {task.id for task in tasks} == set(done_by(fleet))
        await fleet.disband()

    told(story())


@pytest.mark.fast
@pytest.mark.parametrize("pause_s", [TTL_S + 1, 6 * TTL_S])
@pytest.mark.parametrize("who", ["lookout", "another"])
def test_a_worker_that_was_stopped_for_long_owns_nothing_before_it_has_read_the_board(
    pause_s: float, who: str
) -> None:
    async def story() -> None:
        fleet = await fleet_of(4, config=UNCAPPED)
        stopped = next(each for each in fleet.members if each.lookout.on_duty is (who == "lookout"))
        assert stopped.owned
        stopped.line.freeze()
        await fleet.watch(pause_s)
        assert stopped.owned == ()
        stopped.line.thaw()
        assert stopped.owned == ()
        await fleet.watch(MISSED_S)
        assert fleet.fair()
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_leases_are_renewed_while_handlers_run() -> None:
    async def story() -> None:
        fleet = await fleet_of(4, config=UNCAPPED)
        owned = {member.name: member.owned for member in fleet.members}
        for member in fleet.members:
            member.room = False
        for _ in range(40):
            await fleet.watch(TTL_S / 2)
            assert {member.name: member.owned for member in fleet.members} == owned
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_with_more_workers_than_shards_some_have_none_and_help_all_the_same() -> None:
    async def story() -> None:
        fleet = await fleet_of(20)
        assert sorted(len(member.owned) for member in fleet.members) == [0] * 4 + [1] * 16
        owners = [member for member in fleet.members if member.owned]
        for member in owners:
            member.room = False
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(50)])
        await fleet.watch(30)
        assert {task.id for task in tasks} == set(done_by(fleet))
        assert not any(member.done for member in owners)
        await fleet.disband()

    told(story())


# Finding tasks


@pytest.mark.fast
@pytest.mark.parametrize("mode", list(IndexMode))
@pytest.mark.parametrize("prefix_len", PREFIX_LENS)
def test_a_backlog_is_done_by_the_owners_of_its_shards(prefix_len: int, mode: IndexMode) -> None:
    async def story() -> None:
        fleet = await fleet_of(4, prefix_len=prefix_len, mode=mode, config=UNCAPPED)
        await fleet.watch(120)  # All doze.
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(400)])
        await fleet.watch(60 if mode is IndexMode.LOG_SCAN else 15)
        done = done_by(fleet)
        assert set(done) == {task.id for task in tasks}
        by_owner = [task for task in tasks if unit_of_task(task) in done[task.id][0].owned]
        assert len(by_owner) > 0.9 * len(tasks)
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_a_single_task_starts_as_soon_as_with_workers_that_lease_nothing() -> None:
    """Whoever reads of it first takes it, not only the owner of its shard."""
    leased, shared = (
        run_fleet(Load(8, 60_000), 200, shard_leasing=leasing) for leasing in (LeasingConfig(), None)
    )
    assert len(leased.waits_s) > 100
    assert leased.wait_s(0.5) <= shared.wait_s(0.5) + 0.05
    assert leased.wait_s(0.99) <= shared.wait_s(0.99) + 0.1


@pytest.mark.fast
def test_delayed_tasks_are_taken_soon_after_they_are_due() -> None:
    async def story() -> None:
        fleet = await fleet_of(4, config=UNCAPPED)
        delays = [float(n) for n in range(61, 500, 7)]
        submitted_at = virtual.monotonic()
        tasks = [await fleet.queue.submit("t", n, Options(delay_s=n)) for n in delays]
        await fleet.watch(520)
        done = done_by(fleet)
        late_s = [done[task.id][1] - submitted_at - delay_s for task, delay_s in zip(tasks, delays, strict=True)]
        assert min(late_s) >= -0.001
        assert max(late_s) <= 1, "its owner waits for the moment"
        await fleet.disband()

    told(story())


@pytest.mark.fast
@pytest.mark.parametrize("count", [10, 1000])
def test_no_task_waits_behind_an_owner_without_a_free_slot(count: int) -> None:
    async def story() -> None:
        fleet = await fleet_of(4, config=UNCAPPED)
        busy = fleet.members[1]
        busy.room = False
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(count)])
        assert any(unit_of_task(task) in busy.owned for task in tasks)
        await fleet.watch(45)
        assert {task.id for task in tasks} == set(done_by(fleet))
        assert busy.done == []
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_a_task_without_its_hint_is_found_while_all_doze() -> None:
    async def story() -> None:
        fleet = await fleet_of(4, mode=IndexMode.HYBRID, config=UNCAPPED)
        await fleet.watch(120)
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(20)])
        for key in itertools.chain.from_iterable(wanted_hints(task) for task in tasks):
            await fleet.store.delete(key)
        await fleet.watch(5 * 60)
        assert {task.id for task in tasks} == set(done_by(fleet))
        await fleet.disband()

    told(story())


# What it costs


@pytest.mark.parametrize(
    ("workers", "prefix_len"),
    [
        pytest.param(16, 2, marks=pytest.mark.fast),
        *(
            pytest.param(workers, prefix_len, marks=pytest.mark.long)
            for workers in (4, 64)
            for prefix_len in (1, 2)
        ),
    ],
)
def test_idle_workers_cost_less_if_they_lease_shards(workers: int, prefix_len: int) -> None:
    leased, shared = (
        run_fleet(Load(workers, 0), 300, prefix_len=prefix_len, shard_leasing=leasing)
        for leasing in (LeasingConfig(), None)
    )
    # Many workers read the board at the longest pause in both cases, and the lookout counts members more often.
    assert leased.dollars_a_month < shared.dollars_a_month * (1.0 if workers < 50 else 1.03)
    puts = leased.usage.counts[Operation.PUT]
    assert puts <= shared.usage.counts[Operation.PUT] * 1.05, "a lease is renewed by reading"


# On every store


async def test_workers_that_lease_run_every_task_and_give_everything_back(any_store: ObjectStore) -> None:
    async def t(input: int) -> int:
        return input

    leasing, queue = LeasingConfig(ttl_s=1.0, renew_s=0.2), Queue(any_store)
    # What an earlier version left is no plan, and in nobody's way.
    await any_store.put("shard-leases/0.json", b'{"shard":"0","worker_id":"old"}')
    await any_store.put("shard-leases/lookout.json", b'{"shard":"lookout","worker_id":"old"}')
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                working(
                    Queue(any_store),
                    app_of(t),
                    worker_id=f"w{n}",
                    heartbeat_s=0.5,
                    shard_leasing=leasing,
                    watch=WatchTimes(1.2),
                )
            )
            for n in range(3)
        ]

        async def shared_out() -> bool:
            return sorted(len(worker.shards) for worker in workers) == [5, 5, 6]

        await until(shared_out)
        tasks = await queue.submit_many([NewTask("t", n) for n in range(48)])
        for task in tasks:
            assert (await ended(queue, task.id)).output == task.input
        assert sum(worker.on_duty for worker in workers) == 1
        stored = await any_store.get("shard-leases/plan.json")
        assert stored is not None
        assert sorted(decode_plan(stored.body, units(1)).members) == ["w0", "w1", "w2"]
    assert all(worker.shards == () for worker in workers)
