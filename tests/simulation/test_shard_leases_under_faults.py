"""Workers that lease shards in virtual time, under faults drawn from a seed: replies are lost, requests refused and
slow, the store away, workers stopped, killed and started. No shard ever has two owners, and as soon as the faults are
over all shards have one again.

One seed is one history; ``SIM_SEEDS=17`` or ``SIM_SEEDS=100-199`` chooses which are run, ``PROVE=1`` runs 150.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterable

import pytest

from fleet import Fleet, Member
from qo.ambient import Ambient
from qo.core.discovery import IndexMode
from qo.core.ownership import LeasingConfig
from qo.core.task import Status
from qo.queue.options import NewTask
from qo.queue.shard_leases import Held
from qo.store.faulty import FaultPlan, Faulty
from qo.store.port import ObjectStore
from qo.store.retrying import Retrying
from qo.testing import virtual

TROUBLE_S = 300.0
LATENCY_MAX_S = 25.0


def seeds() -> Iterable[int]:
    chosen = os.environ.get("SIM_SEEDS")
    if chosen is None:
        return range(150 if os.environ.get("PROVE") else 6)
    first, _, last = chosen.partition("-")
    return range(int(first), int(last or first) + 1)


class Watched(dict[str, Held]):
    """What one member holds. Whenever it begins to believe in a lease, or goes on to, nobody else may."""

    def __init__(self, member: Member, fleet: Fleet, broken: list[str]) -> None:
        super().__init__()
        self._member, self._fleet, self._broken = member, fleet, broken

    def __setitem__(self, unit: str, held: Held) -> None:
        super().__setitem__(unit, held)
        believers = [each.name for each in self._fleet.members if unit in each.ownership.owned]
        if len(believers) > 1:
            self._broken.append(f"{unit} at {virtual.monotonic()}: {believers}")


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[Faulty] = []
        self.worst = self.rng.choice([0.02, 0.1, 0.25])  # How likely each kind of fault is.
        self.retrying = self.rng.random() < 0.5
        self.fleet = Fleet(
            prefix_len=self.rng.choice([1, 1, 2, 3, 4]),
            config=LeasingConfig(
                shards_per_worker=self.rng.choice([3, 16, 256]), watch_s=self.rng.choice([1.0, 5.0])
            ),
            mode=self.rng.choice(list(IndexMode)),
            wrap=self.line,
            seed=seed,
        )
        self.frozen: list[Member] = []
        self.broken: list[str] = []  # Whenever two believed that they own the same unit.
        self.over = False

    def line(self, store: ObjectStore, ambient: Ambient) -> ObjectStore:
        """As one process sees the store."""
        rng, plan = self.rng, FaultPlan()
        if not self.over:
            start = rng.uniform(0, TROUBLE_S)
            plan = FaultPlan(
                refused=rng.uniform(0, self.worst),
                lost_reply=rng.uniform(0, self.worst),
                conflict=rng.uniform(0, self.worst),
                own_412=rng.uniform(0, self.worst),
                latency_s=rng.choice([(0.0, 0.0), (0.001, 0.05), (0.01, 2.0), (0.0, LATENCY_MAX_S)]),
                outages_s=((start, start + rng.uniform(1, 60)),),
            )
        self.lines.append(Faulty(store, plan, ambient))
        return Retrying(self.lines[-1], ambient=ambient) if self.retrying else self.lines[-1]

    async def join(self, count: int = 1) -> None:
        for _ in range(count):
            for member in await self.fleet.join():
                assert member.ownership.owned == ()
                member.ownership._held = Watched(member, self.fleet, self.broken)

    async def disturb(self) -> None:
        """One thing that happens to the fleet."""
        fleet, rng = self.fleet, self.rng
        victim = rng.choice(fleet.members)
        match rng.choice(["join", "leave", "crash", "freeze", "thaw", "fill up", "empty"]):
            case "join" if len(fleet.members) < 8:
                await self.join()
            case "leave" if len(fleet.members) > 2:
                await asyncio.wait({asyncio.ensure_future(fleet.leave(victim))}, timeout=60)
            case "crash" if len(fleet.members) > 2:
                await fleet.crash(victim)
            case "freeze" if victim not in self.frozen:
                victim.line.freeze()
                self.frozen.append(victim)
            case "thaw" if self.frozen:
                self.frozen.pop().line.thaw()
            case "fill up":
                victim.room = False
            case "empty":
                victim.room = True
            case _:
                pass

    def calm(self) -> None:
        self.over = True
        for line in self.lines:
            line.plan = FaultPlan()
        for member in self.frozen:
            member.line.thaw()
        for member in self.fleet.members:
            member.room = True


class CheckedLoop(virtual.VirtualLoop):
    """After every step there is one lookout at most."""

    fleet: Fleet | None = None

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        if self.fleet is not None:
            assert len(self.fleet.lookouts()) <= 1


async def simulate(seed: int) -> None:
    world = World(seed)
    fleet, rng = world.fleet, world.rng
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CheckedLoop)
    loop.fleet = fleet
    await world.join(rng.choice([2, 3, 5]))
    submitted = 0
    while virtual.monotonic() < TROUBLE_S:
        await asyncio.sleep(rng.uniform(0, 20))
        await world.disturb()
        await fleet.queue.submit_many([NewTask("t", n) for n in range(5)])
        submitted += 5
    world.calm()
    await asyncio.sleep(LATENCY_MAX_S)  # What was sent before is answered by then.
    await asyncio.sleep(2 * fleet.config.ttl_s)
    assert fleet.fair(), [(member.name, member.ownership.owned) for member in fleet.members]
    assert len(fleet.lookouts()) == 1
    await asyncio.sleep(4 * fleet.config.ttl_s if fleet.members[0].feed.mode is not IndexMode.LOG_SCAN else 1200)
    left = await fleet.queue.list(status=Status.PENDING, limit=1000)
    assert left == [], f"of {submitted}"
    assert world.broken == []
    loop.fleet = None
    await fleet.disband()


@pytest.mark.parametrize("seed", seeds())
def test_no_shard_ever_has_two_owners_and_all_have_one_once_the_faults_are_over(seed: int) -> None:
    with asyncio.Runner(loop_factory=CheckedLoop) as runner:
        runner.run(simulate(seed))
