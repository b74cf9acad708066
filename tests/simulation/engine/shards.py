"""Workers that lease shards: replies are lost, requests refused and slow, the store away, workers stopped, killed and
started. No shard ever has two owners, and as soon as the faults are over all shards have one again.
"""

from __future__ import annotations

import asyncio
from itertools import count

from qo.ambient import Ambient
from qo.core.discovery import IndexMode
from qo.core.ownership import LeasingConfig, relied_until
from qo.core.rhythm import COUNT_LEASED_EVERY_S
from qo.core.task import Status
from qo.queue.options import NewTask
from qo.store.faulty import FaultPlan
from qo.store.port import ObjectStore
from qo.store.retrying import Retrying
from qo.testing import virtual
from simulation.engine.faults import Faults
from simulation.engine.line import Line, Perils
from simulation.engine.machines import machines
from support.worker.fleet import HEARTBEAT_S, Fleet, Member

TROUBLE_S = 240.0
LATENCY_MAX_S = 25.0
STOPPED_MAX_S = 60.0
MEMBERS_MAX = 6
# Those that died are missed after three heartbeats, counted within two intervals of that, and the shards move.
SETTLED_AFTER_S = 3 * HEARTBEAT_S + 2 * COUNT_LEASED_EVERY_S + LeasingConfig().ttl_s + 60
KNOWN = [(0.0, 0.0), (0.001, 0.05), (0.01, 0.5)]  # So quick that one reply tells the time well enough.
HAPPENS = ["join", "leave", "crash", "freeze", "fill up", "empty"]


class Intervals:
    """From when to when each member goes by each of its grants, if it reads nothing more. Those of two members must not
    overlap, at any time to come."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[str, tuple[object, ...]] = {}
        self._held: dict[str, dict[str, tuple[float, float]]] = {}  # By member and unit.

    def check(self) -> None:
        names = {member.name for member in self._fleet.members}
        for gone in self._held.keys() - names:
            del self._held[gone], self._known[gone]
        for member in self._fleet.members:
            board = member.queue.board
            known = id(member.tenure._tenure), board.read_at, board.board and board.board.plan
            if self._known.get(member.name) != known:
                self._known[member.name] = known
                self._held[member.name] = self._intervals(member)
                self._compare(member.name)

    def _intervals(self, member: Member) -> dict[str, tuple[float, float]]:
        tenure = member.tenure._current()
        if tenure is None:
            return {}
        until = relied_until(tenure, member.tenure._shown_at)
        mine = [grant for grant in tenure.plan.grants if grant.worker_id == member.name]
        return {unit: (tenure.starts[grant.number], until) for grant in mine for unit in grant.units}

    def _compare(self, name: str) -> None:
        now = virtual.monotonic()
        for other, held in self._held.items():
            for unit in held.keys() & self._held[name].keys() if other != name else ():
                (one, one_until), (two, two_until) = held[unit], self._held[name][unit]
                assert max(one, two, now) >= min(one_until, two_until), (
                    f"{unit} at {now}: {other} {held[unit]}, {name} {self._held[name][unit]}"
                )


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
            config=LeasingConfig(shards_per_worker=rng.choice([3, 16, 256])),
            mode=rng.choice(list(IndexMode)),
            wrap=self.line,
            seed=faults.seed,
        )
        self.homes: dict[str, str] = {}  # The process of each member.
        self.lines: list[Line] = []
        self.intervals = Intervals(self.fleet)
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
                assert member.owned == ()
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
        self.intervals.check()


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
    await asyncio.sleep(SETTLED_AFTER_S)
    assert fleet.fair(), [(member.name, member.owned) for member in fleet.members]
    assert len(fleet.lookouts()) == 1
    until = virtual.monotonic()
    until += 4 * fleet.config.ttl_s if fleet.members[0].feed.mode is not IndexMode.LOG_SCAN else 1200
    while left := await fleet.queue.list(status=Status.PENDING, limit=1000):
        assert virtual.monotonic() < until, f"{len(left)} of {submitted} are left undone"
        await asyncio.sleep(5)
    loop.after_step = None
