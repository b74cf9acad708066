"""Purgers, replayers and submitters of the same keys at once, who lose replies, are cut off and killed.

Whoever was told that a task is replayed or submitted finds it, with its input; everything else is gone in the end, and
nothing of it is left.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.retention import DATA_GRACE, Keep, Policy
from qo.core.task import Status, Task
from qo.errors import NotFound, Refused
from qo.queue.options import Options
from qo.queue.purger import Purger
from qo.queue.queue import Claim, Queue
from qo.store.memory import MemoryStore
from qo.testing import virtual
from simulation.engine.faults import Faults
from simulation.engine.machines import machines
from simulation.engine.queue import World, keep

TASKS = 16
LASTS_S = 120.0
QUIET_S = 120.0  # Longer than a process stands still.
EVERYTHING = Policy(Keep(**dict.fromkeys(Keep.__slots__, timedelta(0))))
INPUT = "an input that is kept beside its task"


class PurgedWorld(World):
    def __init__(self, faults: Faults) -> None:
        super().__init__(faults)
        self.vault = MemoryStore(clock=virtual.wall_clock)
        self.truth = self.vault  # type: ignore[assignment]
        self.told: dict[str, str] = {}  # The tasks that live, as somebody was told: id to what they were told.
        self.wrong: list[str] = []

    def open(self, name: str, *, outages: int = 0) -> Queue:
        line = self.queue(name, outages=outages)
        return Queue(line.store, prefix_len=self.prefix_len, payload_threshold_bytes=10, ambient=line.ambient)

    def plain(self) -> Queue:
        ambient = Ambient.seeded(self.faults.seed, virtual.monotonic)
        return Queue(self.vault, prefix_len=self.prefix_len, payload_threshold_bytes=10, ambient=ambient)

    async def check(self) -> None:
        """No state long past is current again, and whatever waits has its input."""
        for entry in (await self.vault.list(keys.TASKS)).entries:
            stored = await self.vault.get(entry.key)
            assert stored is not None
            task = wire.decode_task(stored.body, entry.key)
            if task.status is Status.RUNNING:
                self.wrong.append(f"{task.id} runs again, as it did long ago")
            if task.status is Status.PENDING and (
                task.input_ref is None or await self.vault.get(task.input_ref) is None
            ):
                self.wrong.append(f"{task.id} has lost its input")
        assert self.wrong == [], self.wrong[:3]


def _options(n: int) -> Options:
    return Options(key=f"{n}", max_retries=0)


async def _prepare(world: PurgedWorld) -> list[str]:
    queue, ids = world.plain(), list[str]()
    for n in range(TASKS):
        task = await queue.submit("work", INPUT, _options(n))
        claim = await queue.claim(task.id, worker_id="w")
        assert isinstance(claim, Claim)
        await (queue.complete(claim, "an output that is large") if n % 2 else queue.fail(claim, "broken"))
        ids.append(task.id)
    await queue.hints.flush()
    return ids


async def _purge(world: PurgedWorld, name: str) -> None:
    rng = world.faults.stream(f"purger {name}")
    purger = Purger(world.open(name, outages=1), EVERYTHING, page_size=rng.choice([3, 5, 100]))
    while True:
        await purger.purge(at_once=True)
        await asyncio.sleep(rng.uniform(0, 5))


async def _replay(world: PurgedWorld, name: str, ids: list[str]) -> None:
    queue, rng = world.open(name, outages=1), world.faults.stream(f"replayer {name}")
    while True:
        task_id = rng.choice(ids)
        try:
            task = await queue.replay(task_id)
        except (NotFound, Refused):
            pass
        else:
            _note(world, task, "replayed")
        await asyncio.sleep(rng.uniform(0, 20))


async def _submit(world: PurgedWorld, name: str) -> None:
    queue, rng = world.open(name, outages=1), world.faults.stream(f"submitter {name}")
    while True:
        task = await queue.submit("work", INPUT, _options(rng.randrange(TASKS)))
        if task.status is Status.PENDING:
            _note(world, task, "submitted")
        await asyncio.sleep(rng.uniform(0, 40))


def _note(world: PurgedWorld, task: Task, what: str) -> None:
    if not machines().over:
        world.told[task.id] = what


async def simulate(faults: Faults) -> None:
    world = PurgedWorld(faults)
    ids = await _prepare(world)
    await asyncio.sleep(2 * DATA_GRACE.total_seconds())
    over = asyncio.Event()
    crowd = {
        **{f"p{n}": lambda process: _purge(world, process) for n in range(world.rng.choice([1, 2]))},
        **{f"r{n}": lambda process: _replay(world, process, ids) for n in range(2)},
        **{f"s{n}": lambda process: _submit(world, process) for n in range(2)},
    }
    keeping = [
        asyncio.create_task(keep(name, act, faults.stream(f"keep {name}"), over)) for name, act in crowd.items()
    ]
    ends_at = virtual.monotonic() + LASTS_S
    while virtual.monotonic() < ends_at:
        await world.check()
        await asyncio.sleep(0.5)
    over.set()
    for each in keeping:
        each.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)
    await machines().bury()
    await asyncio.sleep(QUIET_S)
    await _check_end(world)


async def _check_end(world: PurgedWorld) -> None:
    queue = world.plain()
    await asyncio.sleep(2 * DATA_GRACE.total_seconds())
    await Purger(queue, EVERYTHING).purge_all()
    await world.check()
    living: set[str] = set()
    for entry in (await world.vault.list(keys.TASKS)).entries:
        task_id = keys.task_id_of(entry.key)
        assert task_id is not None
        living.add(task_id)
        assert (await queue.get(task_id)).status is Status.PENDING
    lost = {task_id: what for task_id, what in world.told.items() if task_id not in living}
    assert lost == {}, lost
    left = {keys.task_id_of(key) for key, _ in (await world.vault.list_versions(keys.TASKS)).entries}
    assert left == living, "nothing is left of what was purged"
    data = {keys.data_task_id(key) for key, _ in (await world.vault.list_versions(keys.DATA)).entries}
    assert data == living, "and what lives has its data"
