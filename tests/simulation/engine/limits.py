"""Workers that share a limit, lose replies, are cut off, stopped and killed.

The shares in the bucket never add up to more than the limit; a worker changes only its own, and admits a task only
while it has one. No more handlers run than that, but for those of a worker that stood still or was cut off for so long
that it lost its share. And all tasks are done in the end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from qo.core import keys, wire
from qo.core.limit_shares import Limit, LimitRegister
from qo.core.poll import Pace
from qo.core.task import RetryPolicy, Status
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.worker import Worker
from simulation.engine.faults import Faults
from simulation.engine.ledger import SKEW_MAX, Ledger
from simulation.engine.machines import PROCESS, machines
from simulation.engine.queue import World, keep
from support.stores.queues import all_tasks

TASKS = 40
GIVE_UP_S = 4 * 3600.0
QUICK = RetryPolicy(initial_interval_ms=200, max_interval_ms=2_000)
OPTIONS = Options(retry_policy=QUICK, max_retries=10_000, max_deliveries=10_000)


class LimitLedger(Ledger):
    """Looks at every write to the register of the limit, too."""

    def __init__(self, faults: Faults, limit: Limit) -> None:
        super().__init__(faults)
        self.limit = limit
        self.register = LimitRegister(name=limit.name)
        self.sharers: set[str] = set()  # Workers that have ever had a share.

    def _add(self, key: str, body: bytes | None, etag: str) -> Any:
        added = super()._add(key, body, etag)
        if key == keys.limit(self.limit.name) and body is not None:
            before, self.register = self.register, wire.decode(LimitRegister, body, key)
            self._check_others(key, before)
            leased = self.valid_shares()
            if self.limit.concurrency is not None and sum(leased.values()) > self.limit.concurrency:
                self._say(key, f"more is leased than there is: {leased}")
            self.sharers |= {*leased}
        return added

    def _check_others(self, key: str, before: LimitRegister) -> None:
        """A worker changes no share but its own, unless it has run out."""
        lasting = virtual.wall_clock() + SKEW_MAX
        for name, share in before.shares.items():
            if name != PROCESS.get() and share.until > lasting and self.register.shares.get(name) != share:
                self._say(key, f"{PROCESS.get()} changed the share of {name}, which has not run out")

    def valid_shares(self) -> dict[str, int]:
        """The permits of each worker."""
        now = virtual.wall_clock()
        return {name: share.permits for name, share in self.register.shares.items() if share.until > now}


class LimitedWorld(World):
    def __init__(self, faults: Faults) -> None:
        super().__init__(faults)
        rng = faults.stream("limits")
        starts = rng.choice([None, None, 5])
        self.limit = Limit(name="limited", concurrency=rng.choice([1, 2, 3, 5]), starts=starts)
        self.truth = self.ledger = LimitLedger(faults, self.limit)
        self.running: Counter[str] = Counter()  # Handlers, by process.
        self.excused: set[str] = set()  # Processes that stood still, or lost their share while they ran something.

    def app(self, name: str) -> App:
        app, rng = App(), self.faults.stream(f"app {name}")

        @app.task("limited", limit=self.limit)
        async def limited(input: int) -> int:
            self._begin(name)
            try:
                await asyncio.sleep(rng.choice([0.0, 0.1, 1.0, 8.0]))
            finally:
                self.running[name] -= 1
            if rng.randrange(10) == 0:
                raise RuntimeError("out of luck")
            return input

        return app

    def _begin(self, name: str) -> None:
        self.running[name] += 1
        if name not in self.ledger.sharers and not machines().over:
            self.ledger._say(name, "it began a task, and never had a share")

    def judge_admissions(self, name: str, worker: Worker) -> None:
        """Have it checked that a worker admits a task only while it has a share, from now on."""
        limit = worker._admission._shared["limited"]
        count = limit.count_admitted

        def check_and_count() -> None:
            if name not in self.ledger.valid_shares() and not machines().over:
                self.ledger._say(name, "it admits a task, and its share has run out")
            count()

        limit.count_admitted = check_and_count

    def check_step(self) -> None:
        """After every step of the loop."""
        shares = self.ledger.valid_shares()
        # Also one that runs nothing yet: it may have been stopped in the middle of a claim.
        self.excused |= machines().halted
        self.excused |= {name for name, count in self.running.items() if count and name not in shares}
        counted = {
            name: count
            for name, count in self.running.items()
            if count and name not in self.excused and machines().alive(name)
        }
        if self.limit.concurrency is not None and sum(counted.values()) > self.limit.concurrency:
            self.ledger._say("limited", f"too many at a time: {counted}, with {shares}")


async def _work(world: LimitedWorld, name: str) -> None:
    rng = world.faults.stream(f"worker {name}")
    config = WorkerConfig(worker_id=name, concurrency=rng.choice([2, 8]), pace=Pace(0.1, 2.0), heartbeat_s=4.0)
    worker = Worker(world.queue(name, outages=rng.choice([0, 1])), world.app(name), config)
    world.judge_admissions(name, worker)
    stop = asyncio.get_running_loop().call_later(rng.uniform(20, 200), worker.stop)
    try:
        await worker.run()
    finally:
        stop.cancel()


async def _watch(world: LimitedWorld, name: str) -> None:
    config = MonitorConfig(check_interval_s=5.0, sweep_interval_s=10.0)
    await Monitor(world.queue(name, outages=0), config).run(asyncio.Event())


async def _unfinished(world: LimitedWorld) -> bool:
    return any(not history[-1].ended for history in world.ledger.histories.values())


async def simulate(faults: Faults) -> None:
    world = LimitedWorld(faults)
    queue, over = world.plain_queue(), asyncio.Event()
    await queue.submit_many([NewTask("limited", n, OPTIONS) for n in range(TASKS)])
    await queue.flush()
    crowd = {**dict.fromkeys((f"w{n}" for n in range(world.rng.choice([2, 4]))), _work), "m": _watch}
    keeping = [
        asyncio.create_task(
            keep(name, lambda process, act=act: act(world, process), faults.stream(f"keep {name}"), over)
        )
        for name, act in crowd.items()
    ]
    machines().after_step = world.check_step
    async with asyncio.timeout(GIVE_UP_S):
        while await _unfinished(world):
            world.ledger.check()
            await asyncio.sleep(1)
    machines().after_step = None
    over.set()
    for each in keeping:
        each.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)
    await machines().bury()
    world.ledger.check()
    assert all(task.status is Status.COMPLETED for task in await all_tasks(world.ledger))
