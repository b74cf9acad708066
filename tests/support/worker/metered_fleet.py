"""Real workers with their monitors on a store in memory, in virtual time, with every request counted: what a queue of
some size costs in some time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from qo.ambient import Ambient
from qo.core.dispatch import Dispatch, DispatchConfig
from qo.core.load import Load
from qo.core.pricing import MONTH_D
from qo.queue.monitor import Monitor
from qo.queue.pusher import PushConfig
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.store.metered import Metered, Usage
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.worker import Worker

WARM_UP_S = 180.0  # By then all workers know of each other, and poll at their slowest.
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Bill:
    """What all processes together have sent within the time."""

    usage: Usage
    seconds: float
    waits_s: Sequence[float]  # From each submit to the start of its handler, sorted.

    @property
    def dollars_a_month(self) -> float:
        return self.usage.dollars() * MONTH_D * DAY_S / self.seconds

    def wait_s(self, share: float) -> float:
        return self.waits_s[min(len(self.waits_s) - 1, int(share * len(self.waits_s)))]


def run_fleet(
    load: Load,
    seconds: float,
    *,
    prefix_len: int = 1,
    push: PushConfig | None = None,
    keys: int = 1,
    **changes: Any,
) -> Bill:
    """Run so many workers for so long after a warm-up; tasks come at random, from one submitter, which has ``push``,
    and name one of so many ``keys`` each. ``changes`` are those of the workers' configuration."""
    return virtual.run(_run_fleet(load, seconds, prefix_len, push, keys, changes))


async def _run_fleet(
    load: Load, seconds: float, prefix_len: int, push: PushConfig | None, keys: int, changes: dict[str, Any]
) -> Bill:
    store, meters = MemoryStore(clock=virtual.wall_clock), list[Metered]()
    waits_s: list[float] = []
    dispatch = DispatchConfig(dispatch=changes.get("dispatch", Dispatch.SHARED))

    def open_queue(seed: int, push: PushConfig | None = None) -> Queue:
        meters.append(Metered(store))
        ambient = Ambient.seeded(seed, virtual.monotonic)
        return Queue(
            meters[-1], prefix_len=prefix_len, ambient=ambient, meter=meters[-1], dispatch=dispatch, push=push
        )

    app = App()

    @app.task("t")
    async def handle(input: dict[str, float]) -> None:
        waits_s.append(virtual.monotonic() - input["submitted_at"])
        await asyncio.sleep(load.task_s)

    workers: list[Worker] = []
    running: list[asyncio.Task[Any]] = []
    for n in range(load.workers):
        queue = open_queue(n)
        worker = Worker(queue, app, WorkerConfig(worker_id=f"w{n}", has_monitor=True, **changes))
        monitor = Monitor(queue).run(asyncio.Event(), on_duty=lambda worker=worker: worker.on_duty)
        workers.append(worker)
        running += [asyncio.create_task(worker.run()), asyncio.create_task(monitor)]
    await asyncio.sleep(WARM_UP_S)
    for meter in meters:
        meter.reset()
    await _submit(open_queue(-1, push), load.tasks_per_day / DAY_S, seconds, keys)
    usage = reduce(add, (meter.snapshot() for meter in meters))
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running[::2])
    for monitor in running[1::2]:
        monitor.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return Bill(usage, seconds, sorted(waits_s))


async def _submit(queue: Queue, per_s: float, seconds: float, keys: int) -> None:
    until = virtual.monotonic() + seconds
    rng = random.Random(0)  # Its own, so that tasks come at the same times whatever else is drawn.
    while per_s:
        gap_s = rng.expovariate(per_s)
        if virtual.monotonic() + gap_s >= until:
            break
        await asyncio.sleep(gap_s)
        key = rng.randrange(keys) if keys > 1 else 0
        await queue.submit("t", {"submitted_at": virtual.monotonic(), "key": key})
    await asyncio.sleep(until - virtual.monotonic())
