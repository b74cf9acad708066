"""Workers share out the shards among them: evenly, exclusively, and again whenever one comes or goes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.core.discovery import IndexMode
from qo.core.ownership import LOOKOUT, LeasingConfig, unit_of, units
from qo.core.pricing import Operation
from qo.core.task import Task
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.shard_leases import Held, ShardLeases
from qo.store.port import ObjectStore
from qo.testing import virtual
from support.stores.queues import app_of, ended, until, wanted_hints, working
from support.worker.fleet import Fleet, Member

TTL_S = LeasingConfig().ttl_s
PREFIX_LENS = [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long), 4]
UNCAPPED = LeasingConfig(shards_per_worker=256)


def told(story: Coroutine[Any, Any, None]) -> None:
    virtual.run(story)


async def fleet_of(count: int, **options: Any) -> Fleet:
    """A fleet that has shared out the units."""
    fleet = Fleet(**options)
    await fleet.join(count)
    await fleet.watch(2 * TTL_S)
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
def test_units_are_shared_out_evenly_within_two_leases(prefix_len: int, config: LeasingConfig) -> None:
    async def story() -> None:
        fleet = await fleet_of(5, prefix_len=prefix_len, config=config)
        for count in (1, 6):
            await fleet.join(count)
            await fleet.watch(2 * TTL_S)
            assert fleet.fair()
        await fleet.disband()

    told(story())


@pytest.mark.fast
@pytest.mark.parametrize("prefix_len", PREFIX_LENS)
@pytest.mark.parametrize("way", ["leave", "crash"])
def test_what_a_worker_had_is_the_others_within_two_leases(prefix_len: int, way: str) -> None:
    async def story() -> None:
        fleet = await fleet_of(12, prefix_len=prefix_len, config=UNCAPPED)
        lookout = fleet.lookouts()[0]
        other = next(member for member in fleet.members if member is not lookout)
        for gone in ([other], [lookout], fleet.members[4:8]):
            for member in [each for each in gone if each in fleet.members]:
                await (fleet.leave(member) if way == "leave" else fleet.crash(member))
            await fleet.watch(2 * TTL_S)
            assert fleet.fair()
            assert len(fleet.lookouts()) == 1
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_what_a_leaving_worker_had_is_free_at_once() -> None:
    async def story() -> None:
        fleet = await fleet_of(3, prefix_len=2, config=UNCAPPED)
        gone = fleet.members[1]
        had = gone.ownership.owned
        await fleet.leave(gone)
        assert gone.ownership.owned == ()
        leases = ShardLeases(fleet.queue, worker_id="x", ttl_s=TTL_S)
        for unit in (*had, *([LOOKOUT] if not fleet.lookouts() else [])):
            lease = (await leases.read(unit)).lease
            assert lease is not None
            assert lease.lease_expires_at <= virtual.wall_clock()
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_a_worker_alone_takes_what_it_may_and_looks_after_the_rest_as_the_lookout() -> None:
    async def story() -> None:
        fleet = await fleet_of(1, prefix_len=2)
        assert len(fleet.members[0].ownership.owned) == 16
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(300)])
        await fleet.watch(30)
        assert {task.id for task in tasks} == set(done_by(fleet))
        await fleet.disband()

    told(story())


@pytest.mark.fast
@pytest.mark.parametrize("pause_s", [TTL_S + 1, 3 * TTL_S])
@pytest.mark.parametrize("who", ["lookout", "another"])
def test_a_worker_that_was_stopped_for_longer_than_its_leases_looks_at_nothing_before_it_has_renewed(
    pause_s: float, who: str
) -> None:
    async def story() -> None:
        fleet = await fleet_of(4, config=UNCAPPED)
        stopped = next(each for each in fleet.members if each.ownership.on_duty is (who == "lookout"))
        assert stopped.ownership.owned
        stopped.line.freeze()
        await fleet.watch(pause_s)
        assert stopped.ownership.owned == ()
        assert not stopped.ownership.on_duty
        assert not stopped.ownership.may_look()
        stopped.line.thaw()
        assert not stopped.ownership.may_look()
        await fleet.watch(2 * TTL_S)
        assert fleet.fair()
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_leases_are_renewed_while_handlers_run() -> None:
    async def story() -> None:
        fleet = await fleet_of(4, config=UNCAPPED)
        owned = {member.name: member.ownership.owned for member in fleet.members}
        for member in fleet.members:
            member.room = False
        for _ in range(40):
            await fleet.watch(TTL_S / 2)
            assert {member.name: member.ownership.owned for member in fleet.members} == owned
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_with_more_workers_than_shards_some_have_none_and_nothing_breaks() -> None:
    async def story() -> None:
        fleet = await fleet_of(20)
        assert sorted(len(member.ownership.owned) for member in fleet.members) == [0] * 4 + [1] * 16
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(50)])
        await fleet.watch(30)
        assert {task.id for task in tasks} == set(done_by(fleet))
        await fleet.disband()

    told(story())


# Finding tasks


@pytest.mark.fast
@pytest.mark.parametrize("mode", list(IndexMode))
@pytest.mark.parametrize("prefix_len", PREFIX_LENS)
def test_owners_are_rung_when_something_is_due_and_find_it(prefix_len: int, mode: IndexMode) -> None:
    async def story() -> None:
        fleet = await fleet_of(4, prefix_len=prefix_len, mode=mode, config=UNCAPPED)
        await fleet.watch(120)  # All doze.
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(40)])
        await fleet.watch(40 if mode is IndexMode.LOG_SCAN else 15)
        done = done_by(fleet)
        assert set(done) == {task.id for task in tasks}
        for task in tasks:
            assert unit_of_task(task) in done[task.id][0].ownership.owned
        await fleet.disband()

    told(story())


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
        assert min(late_s) >= 0
        assert max(late_s) <= 15, "no later than a ring takes"
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_no_task_starves_behind_an_owner_without_a_free_slot() -> None:
    async def story() -> None:
        fleet = await fleet_of(4, config=UNCAPPED)
        busy = next(member for member in fleet.members if not member.ownership.on_duty)
        busy.room = False
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(100)])
        assert any(unit_of_task(task) in busy.ownership.owned for task in tasks)
        await fleet.watch(2 * TTL_S)
        assert {task.id for task in tasks} == set(done_by(fleet))
        assert busy.done == []
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_an_owner_that_was_busy_for_long_goes_on_where_it_stopped_even_if_nobody_rings() -> None:
    async def story() -> None:
        fleet = await fleet_of(2, config=UNCAPPED)
        owner = next(member for member in fleet.members if not member.ownership.on_duty)
        await fleet.queue.submit_many([NewTask("t", n) for n in range(200)])
        for lookout in fleet.lookouts():
            await fleet.crash(lookout)
        owner.ownership._request_look()
        assert owner.ownership.may_look()
        assert len(await owner.feed.take(1)) == 1
        owner.room = False
        await asyncio.sleep(TTL_S / 2)
        assert not fleet.lookouts()
        assert owner.ownership.may_look()
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_a_lookout_without_a_free_slot_hands_the_duty_to_who_has_one() -> None:
    async def story() -> None:
        fleet = await fleet_of(4, prefix_len=2, config=LeasingConfig(shards_per_worker=2))
        busy = fleet.lookouts()[0]
        busy.room = False
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(100)])
        await fleet.watch(2 * TTL_S)
        assert fleet.lookouts() != [busy]
        await fleet.watch(TTL_S)
        assert {task.id for task in tasks} == set(done_by(fleet))
        await fleet.disband()

    told(story())


@pytest.mark.fast
def test_somebody_is_on_duty_now_and_then_even_if_all_are_busy() -> None:
    async def story() -> None:
        fleet = await fleet_of(4, config=UNCAPPED)
        for member in fleet.members:
            member.room = False
        on_duty = 0
        for _ in range(600):
            await fleet.watch(1)
            on_duty += len(fleet.lookouts())
        assert on_duty >= 200
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


async def idle_lists(count: int, **options: Any) -> float:
    """LISTs a minute of an idle queue, all workers together, once they have shared it out."""
    fleet = await fleet_of(count, **options)
    await fleet.watch(60, every_s=5)  # What was found while sharing out is done with.

    def lists() -> int:
        return sum(member.meter.counts[Operation.LIST] for member in fleet.members)

    before = lists()
    minutes = 20  # Long enough for the looks that need no reason.
    await fleet.watch(minutes * 60, every_s=5)
    await fleet.disband()
    return (lists() - before) / minutes


@pytest.mark.parametrize(
    ("prefix_len", "mode"),
    [
        pytest.param(1, IndexMode.INDEX_ONLY, marks=pytest.mark.fast),
        pytest.param(2, IndexMode.HYBRID, marks=pytest.mark.long),
    ],
)
def test_sixty_four_idle_workers_list_hardly_more_than_one(prefix_len: int, mode: IndexMode) -> None:
    one, many = (virtual.run(idle_lists(count, prefix_len=prefix_len, mode=mode)) for count in (1, 64))
    assert many / one <= 1.5


# On every store


def contenders(store: ObjectStore, ttl_s: float, count: int = 8) -> list[ShardLeases]:
    queues = [Queue(store, ambient=Ambient.seeded(n)) for n in range(count)]
    return [ShardLeases(queue, worker_id=f"w{n}", ttl_s=ttl_s) for n, queue in enumerate(queues)]


async def race(leases: list[ShardLeases]) -> tuple[ShardLeases, Held]:
    won = await asyncio.gather(*(each.acquire("a") for each in leases))
    winners = [(each, held) for each, held in zip(leases, won, strict=True) if held is not None]
    assert len(winners) == 1
    return winners[0]


async def test_of_eight_that_race_for_a_lease_exactly_one_has_it(any_store: ObjectStore) -> None:
    leases = contenders(any_store, 60.0)
    winner, held = await race(leases)
    for _ in range(3):
        assert [await each.acquire("a") for each in leases if each is not winner] == [None] * 7
        renewed = await winner.renew(held)
        assert renewed is not None
        held = renewed
    await winner.release(held)
    await race(leases)


async def test_of_eight_that_race_for_a_lease_that_ran_out_exactly_one_has_it(any_store: ObjectStore) -> None:
    leases = contenders(any_store, 1.0)
    late, held = await race(leases)

    async def free() -> bool:
        lease = (await leases[0].read("a")).lease
        return lease is not None and lease.lease_expires_at <= await any_store.now()

    await until(free)
    others = [each for each in leases if each is not late]
    winner, _ = await race(others)
    assert await late.renew(held) is None
    await late.release(held)
    lease = (await winner.read("a")).lease
    assert lease is not None
    assert lease.worker_id == f"w{leases.index(winner)}"


async def test_workers_that_lease_run_every_task_and_give_everything_back(any_store: ObjectStore) -> None:
    async def t(input: int) -> int:
        return input

    leasing, queue = LeasingConfig(ttl_s=6.0, renew_s=1.0, watch_s=0.2), Queue(any_store)
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                working(Queue(any_store), app_of(t), worker_id=f"w{n}", heartbeat_s=0.5, shard_leasing=leasing)
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
    leases = ShardLeases(queue, worker_id="x", ttl_s=6.0)
    for unit in (*units(1), LOOKOUT):
        lease = (await leases.read(unit)).lease
        assert lease is not None
        assert lease.lease_expires_at <= await any_store.now()
