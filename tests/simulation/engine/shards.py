"""Workers that lease shards: replies are lost, requests refused and slow, the store away, workers stopped, killed and
started. No shard ever has two owners, and as soon as the faults are over all shards have one again.
"""

from __future__ import annotations

import asyncio
from itertools import count

from qo.ambient import Ambient
from qo.core.discovery import IndexMode
from qo.core.ownership import LeasingConfig
from qo.core.task import Status
from qo.queue.options import NewTask
from qo.queue.shard_leases import Held
from qo.store.faulty import FaultPlan
from qo.store.port import ObjectStore
from qo.store.retrying import Retrying
from qo.testing import virtual
from simulation.engine.faults import Faults
from simulation.engine.line import Line, Perils
from simulation.engine.machines import machines
from support.worker.fleet import Fleet, Member

TROUBLE_S = 240.0
LATENCY_MAX_S = 25.0
STOPPED_MAX_S = 60.0
MEMBERS_MAX = 6
KNOWN = [(0.0, 0.0), (0.001, 0.05), (0.01, 0.5)]  # So quick that one reply tells the time well enough.
HAPPENS = ["join", "leave", "crash", "freeze", "fill up", "empty"]


class Watched(dict[str, Held]):
    """What one member holds. Whenever it begins to believe in a lease, or goes on to, nobody else may."""

    def __init__(self, member: Member, fleet: Fleet, broken: list[str]) -> None:
        super().__init__()
        self._member, self._fleet, self._broken = member, fleet, broken

    def __setitem__(self, unit: str, held: Held) -> None:
        super().__setitem__(unit, held)
        now = virtual.monotonic()
        believers = [
            each.name
            for each in self._fleet.members
            if (theirs := each.ownership._held.get(unit)) is not None and now < theirs.until
        ]
        if len(believers) > 1:
            self._broken.append(f"{unit} at {virtual.monotonic()}: {believers}")


class World:
    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        rng = self.rng = faults.stream("world")
        self.worst = rng.choice([0.02, 0.1, 0.25])  # How likely each kind of fault is.
        self.stops = rng.choice([0.0, 0.001, 0.005])
        self.retrying = rng.random() < 0.5
        self.learns_time = rng.random() < 0.5
        self.fleet = Fleet(
            prefix_len=rng.choice([*[1] * 9, 2, 3, 4]),
            config=LeasingConfig(shards_per_worker=rng.choice([3, 16, 256]), watch_s=rng.choice([1.0, 5.0])),
            mode=rng.choice(list(IndexMode)),
            wrap=self.line,
            seed=faults.seed,
        )
        self.homes: dict[str, str] = {}  # The process of each member.
        self.lines: list[Line] = []
        self.broken: list[str] = []  # Whenever two believed that they own the same unit.
        self.burials: list[asyncio.Task[None]] = []
        self.over = False

    def line(self, store: ObjectStore, ambient: Ambient) -> ObjectStore:
        """As one process sees the store."""
        name = f"m{len(self.lines) + 1}"
        rng, perils = self.faults.stream(f"line of {name}"), Perils(learns_time=self.learns_time)
        if not self.over:
            start = rng.uniform(0, TROUBLE_S)
            perils = Perils(
                FaultPlan(
                    refused=rng.uniform(0, self.worst),
                    lost_reply=rng.uniform(0, self.worst),
                    conflict=rng.uniform(0, self.worst),
                    own_412=rng.uniform(0, self.worst),
                    latency_s=rng.choice(
                        KNOWN if self.learns_time else [*KNOWN, (0.01, 2.0), (0.0, LATENCY_MAX_S)]
                    ),
                ),
                crash=self.stops,
                pause=self.stops,
                outages_s=((start, start + rng.uniform(1, 60)),),
                learns_time=self.learns_time,
            )
        line = Line(name, store, perils, self.faults)
        self.lines.append(line)
        return Retrying(line, ambient=ambient) if self.retrying else line

    async def join(self, count: int = 1) -> None:
        for _ in range(count):
            process = f"m{len(self.lines) + 1}"
            machines().spawn(process, self.fleet.join())
            await asyncio.sleep(0)
            # Not by their number: others may have died in this turn.
            for member in [each for each in self.fleet.members if each.name not in self.homes]:
                self.homes[member.name] = process
                assert member.ownership.owned == ()
                member.ownership._held = Watched(member, self.fleet, self.broken)
            # Not before it is known where the members live: a process may die in its first turn.
            self.burials.append(asyncio.create_task(self._bury(process)))

    async def _bury(self, process: str) -> None:
        """Whose process dies is a member no more."""
        await machines().death(process)
        self.fleet.members[:] = [each for each in self.fleet.members if self.homes.get(each.name) != process]

    async def disturb(self, n: int) -> None:
        """One thing that happens to the fleet."""
        fleet, rng = self.fleet, self.faults.stream(f"disturb {n}")
        what, for_s = rng.choice(HAPPENS), rng.uniform(1, STOPPED_MAX_S)
        if not fleet.members:
            await self.join()
            return
        victim = rng.choice(fleet.members)
        if not self.faults.strikes(f"!{n}", what):
            return
        match what:
            case "join" if len(fleet.members) < MEMBERS_MAX:
                await self.join()
            case "leave" if len(fleet.members) > 2 and victim.started:
                leaving = machines().spawn(self.homes[victim.name], fleet.leave(victim))
                await asyncio.wait({leaving}, timeout=60)
            case "crash" if len(fleet.members) > 2:
                machines().kill(self.homes[victim.name])
            case "freeze":
                machines().pause(self.homes[victim.name], for_s)
            case "fill up":
                victim.room = False
            case "empty":
                victim.room = True
            case _:
                pass

    def calm(self) -> None:
        self.over = True
        self.faults.end()
        for line in self.lines:
            line.plan = FaultPlan()
        for member in self.fleet.members:
            member.room = True

    def check(self) -> None:
        """After every step."""
        # Only those that hold a lease may believe in it; to ask all of them after every step takes longer.
        holders = 0
        for member in self.fleet.members:
            holders += member.ownership._lookout._held is not None
        if holders > 1:
            assert len(self.fleet.lookouts()) <= 1, f"two lookouts at {virtual.monotonic()}"
        assert not self.broken, self.broken


async def simulate(faults: Faults) -> None:
    world = World(faults)
    fleet, rng, loop = world.fleet, world.rng, machines()
    loop.after_step = world.check
    await world.join(rng.choice([2, 3, 4]))
    submitted = 0
    for n in count():
        if virtual.monotonic() >= TROUBLE_S:
            break
        await asyncio.sleep(rng.uniform(0, 20))
        await world.disturb(n)
        await fleet.queue.submit_many([NewTask("t", n) for n in range(5)])
        submitted += 5
    world.calm()
    await asyncio.sleep(
        LATENCY_MAX_S + STOPPED_MAX_S
    )  # What was sent before is answered by then, and who was stopped runs.
    if len(fleet.members) < 2:
        await world.join(2)
    await asyncio.sleep(2 * fleet.config.ttl_s)
    assert fleet.fair(), [(member.name, member.ownership.owned) for member in fleet.members]
    assert len(fleet.lookouts()) == 1
    until = virtual.monotonic()
    until += 4 * fleet.config.ttl_s if fleet.members[0].feed.mode is not IndexMode.LOG_SCAN else 1200
    while left := await fleet.queue.list(status=Status.PENDING, limit=1000):
        assert virtual.monotonic() < until, f"{len(left)} of {submitted} are left undone"
        await asyncio.sleep(5)
    loop.after_step = None
