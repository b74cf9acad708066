"""Workers of an earlier release beside those of this one, in a queue whose shards are leased.

That release had a lease object for each shard, and one for its lookout, each renewed by a conditional write. An
``OlderWorker`` imitates what such a worker writes, and how it looks for tasks; claims are the same in both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.ownership import decode_plan, units
from qo.core.task import Status, Task
from qo.queue import roster
from qo.queue.options import NewTask
from qo.queue.queue import Claim, Queue
from qo.queue.shard_owners import read_shard_owners
from qo.testing import virtual
from support.worker.fleet import HEARTBEAT_S, Fleet

pytestmark = pytest.mark.fast

TTL_S, RENEW_S, WATCH_S = 30.0, 10.0, 5.0  # The defaults of that release.
SHARED_S = 60.0
LOOKOUT, SLOTS = "lookout", 4


class OlderWorker:
    """Imitated: its record in the roster, which says that it leases shards and not how many; the lease objects
    ``shard-leases/{shard}.json`` and ``shard-leases/lookout.json``, which it takes if they are free and renews every
    ten seconds; and that it lists the ready index of the shards that it has leased, one by one, and of no others.

    Left out: how that release shared out the shards, so it leases those that it is given; the board, which it read for
    orders only; and its monitor.
    """

    def __init__(self, fleet: Fleet, name: str, shards: Sequence[str]) -> None:
        self.name, self.shards = name, shards
        self.queue = Queue(
            fleet.store, prefix_len=fleet.queue.prefix_len, ambient=Ambient.seeded(99, virtual.monotonic)
        )
        self.held: set[str] = set()
        self.done: list[str] = []
        self.room = True
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(each()) for each in (self._beat, self._lease, self._look)]

    async def crash(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            now = await self.queue.store.now()
            record = {"worker_id": self.name, "started_at": now, "last_heartbeat": now, "heartbeat_s": HEARTBEAT_S}
            record |= {"shards": sorted(self.held), "leasing": True, "state": "running", "slots": SLOTS}
            await self.queue.store.put(keys.worker(self.name), msgspec.json.encode(record))
            await asyncio.sleep(HEARTBEAT_S)

    async def _lease(self) -> None:
        while True:
            for unit in (*self.shards, LOOKOUT):
                if await self._acquire(unit) and unit != LOOKOUT:
                    self.held.add(unit)
            await asyncio.sleep(RENEW_S)

    async def _acquire(self, unit: str) -> bool:
        key, now = f"{keys.SHARD_LEASES}{unit}.json", await self.queue.store.now()
        stored = await self.queue.store.get(key)
        if stored is not None:
            lease = msgspec.json.decode(stored.body)
            if lease["worker_id"] != self.name and lease["lease_expires_at"] > now.isoformat():
                return False
        body = msgspec.json.encode(
            {
                "shard": unit,
                "worker_id": self.name,
                "lease_expires_at": (now + timedelta(seconds=TTL_S)).isoformat(),
                "updated_at": now.isoformat(),
                "token": self.queue.ambient.token(),
                **({"members": [self.name], "lit": []} if unit == LOOKOUT else {}),
            }
        )
        condition = {"if_absent": True} if stored is None else {"if_match": stored.etag}
        await self.queue.store.put(key, body, **condition)
        return True

    async def _look(self) -> None:
        while True:
            for unit in sorted(self.held) if self.room else ():
                page = await self.queue.store.list(f"{keys.READY}{unit}", limit=SLOTS)
                for entry in page.entries:
                    await self._run(entry.key)
                await asyncio.sleep(0.1)
            await self.queue.hints.flush()
            await asyncio.sleep(WATCH_S)

    async def _run(self, hint: str) -> None:
        parsed = keys.parse_index(hint)
        assert parsed is not None
        claim = await self.queue.claim(parsed.task_id, worker_id=self.name)
        if isinstance(claim, Claim):
            await self.queue.complete(claim, None)
            self.done.append(parsed.task_id)


async def mixed_fleet(newer: int, older: int) -> tuple[Fleet, list[OlderWorker]]:
    """Newer workers that have shared out all shards by a plan, and older ones that have leased all of them as well."""
    fleet = Fleet()
    every = fleet.units
    olds = [OlderWorker(fleet, f"old-{n}", every[n::older]) for n in range(older)]
    for old in olds:
        await old.start()
    await fleet.join(newer)
    await fleet.watch(SHARED_S)
    assert fleet.fair(), "those that go by the plan share out all shards among them"
    assert sorted(unit for old in olds for unit in old.held) == list(every)
    return fleet, olds


async def disband(fleet: Fleet, olds: Sequence[OlderWorker]) -> None:
    await asyncio.gather(fleet.disband(), *(old.crash() for old in olds))


async def check_done(fleet: Fleet, tasks: Sequence[Task]) -> None:
    for task in tasks:
        current = await fleet.queue.get(task.id)
        assert (current.status, current.attempt) == (Status.COMPLETED, 1)


def test_older_and_newer_workers_run_each_task_once_and_both_kinds_run_some() -> None:
    async def story() -> None:
        fleet, olds = await mixed_fleet(3, 2)
        tasks: list[Task] = []
        for busy in (fleet.members, olds, []):  # One kind has no room, then the other, then both look.
            for each in busy:
                each.room = False
            tasks += await fleet.queue.submit_many([NewTask("t", n) for n in range(40)])
            await fleet.watch(60)
            for each in busy:
                each.room = True
        await check_done(fleet, tasks)
        by_newer = [task_id for member in fleet.members for task_id, _ in member.done]
        by_older = [task_id for old in olds for task_id in old.done]
        assert sorted([*by_newer, *by_older]) == sorted(task.id for task in tasks)
        assert by_newer
        assert by_older
        await disband(fleet, olds)

    virtual.run(story())


def test_the_plan_and_the_lease_objects_of_older_workers_leave_each_other_alone() -> None:
    async def story() -> None:
        fleet, olds = await mixed_fleet(2, 1)
        plan = await fleet.store.get(keys.SHARD_PLAN)
        assert plan is not None
        assert decode_plan(plan.body, units(1)).members == sorted(member.name for member in fleet.members)
        owners = {each.worker_id for each in await read_shard_owners(fleet.queue) or ()}
        assert owners == {member.name for member in fleet.members}
        for unit in (*fleet.units, LOOKOUT):
            stored = await fleet.store.get(f"{keys.SHARD_LEASES}{unit}.json")
            assert stored is not None
            assert msgspec.json.decode(stored.body)["worker_id"] == "old-0"
        assert len(fleet.lookouts()) == 1, "the older one's lookout is none of this release"
        infos = {info.worker_id: info for info in await roster.workers(fleet.store)}
        assert infos["old-0"].shards_max == 0
        await disband(fleet, olds)

    virtual.run(story())


@pytest.mark.parametrize("how", ["full", "dead"])
def test_shards_leased_by_an_older_worker_that_takes_nothing_are_served_by_the_newer_ones(how: str) -> None:
    async def story() -> None:
        fleet, olds = await mixed_fleet(2, 1)
        if how == "dead":
            await olds[0].crash()
        else:
            olds[0].room = False
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(60)])
        await fleet.watch(15)
        await check_done(fleet, tasks)
        await disband(fleet, olds)

    virtual.run(story())


def test_older_workers_alone_find_every_task_after_the_newer_ones_have_gone() -> None:
    async def story() -> None:
        fleet, olds = await mixed_fleet(2, 2)
        for member in list(fleet.members):
            await fleet.crash(member)
        tasks = await fleet.queue.submit_many([NewTask("t", n) for n in range(60)])
        await asyncio.sleep(60)
        await check_done(fleet, tasks)
        await disband(fleet, olds)

    virtual.run(story())
