"""What workers cost that have nothing to do: requests and dollars for each of them and each minute.

In virtual time, on a store in memory, as processes run them: each worker with its monitor and a meter of its own. Only
the lookout lists an idle queue, with shard leasing or without. Workers that lease shards read the board in turns, half
as often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import NamedTuple

from bench.harness import Family, Result, Target, result
from qo.ambient import Ambient
from qo.core.ownership import LeasingConfig
from qo.core.pricing import Operation
from qo.queue.monitor import Monitor
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.store.metered import Metered, Usage
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.worker import Worker, WorkerConfig

FROM_MIN, UNTIL_MIN = 3, 13  # After all have found their share.
MINUTES = UNTIL_MIN - FROM_MIN
MONTH_MIN = 30 * 24 * 60


class Setup(NamedTuple):
    workers: int
    prefix_len: int
    leased: bool

    @property
    def shards(self) -> int:
        return 16**self.prefix_len

    @property
    def name(self) -> str:
        return f"idle_requests_{self.workers}w_{'leased' if self.leased else 'shared'}_{self.shards}shards"


WORKERS = (1, 16, 64)
# Without leasing an idle poll is one LIST, however many shards there are.
SETUPS = [
    *(Setup(workers, 2, False) for workers in WORKERS),
    *(Setup(workers, prefix_len, True) for prefix_len in (1, 2) for workers in WORKERS),
]
RATIO = "leased_vs_unleased_16w_256s_idle"
GROWTH = {2: "leased_lists_growth_64w", 1: "leased_lists_growth_64w_16shards"}


def _app() -> App:
    app = App()

    @app.task("noop")
    async def noop(value: object) -> None: ...

    return app


async def _idle(setup: Setup) -> Usage:
    """What all workers asked of the store, between the two minutes."""
    store = MemoryStore(clock=virtual.wall_clock)
    leasing = LeasingConfig() if setup.leased else None
    stop, meters, running = asyncio.Event(), list[Metered](), list[asyncio.Task[object]]()
    workers: list[Worker] = []
    for number in range(setup.workers):
        meter = Metered(store)
        ambient = Ambient.seeded(number, virtual.monotonic)
        queue = Queue(meter, prefix_len=setup.prefix_len, ambient=ambient, meter=meter)
        worker = Worker(queue, _app(), WorkerConfig(worker_id=f"bench-{number}", shard_leasing=leasing))
        monitor = Monitor(queue).run(stop, on_duty=lambda worker=worker: worker.on_duty)
        running += [asyncio.create_task(worker.run()), asyncio.create_task(monitor)]
        meters.append(meter)
        workers.append(worker)
    await asyncio.sleep(FROM_MIN * 60)
    before = _together(meters)
    await asyncio.sleep(MINUTES * 60)
    spent = _together(meters) - before
    stop.set()
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    return spent


def _together(meters: list[Metered]) -> Usage:
    return reduce(add, (meter.snapshot() for meter in meters))


def measure() -> Iterator[Result]:
    spent = {setup: virtual.run(_idle(setup)) for setup in SETUPS}
    for setup, usage in spent.items():
        worker_minutes = setup.workers * MINUTES
        yield result(
            setup.name,
            usage.requests / worker_minutes,
            "req/min each",
            by_kind={str(kind): round(count / worker_minutes, 3) for kind, count in usage.counts.items()},
            dollars_per_worker_minute=float(f"{usage.dollars() / worker_minutes:.3g}"),
            dollars_per_month_together=round(usage.dollars() / MINUTES * MONTH_MIN, 2),
            workers=setup.workers,
            shards=setup.shards,
            shard_leasing=setup.leased,
            minutes=f"{FROM_MIN} to {UNTIL_MIN}, virtual",
        )
    leased, shared = (spent[Setup(16, 2, leased)].dollars() for leased in (True, False))
    yield result(
        RATIO,
        leased / shared,
        "x",
        target=Target("value", "<=", 0.99),
        note="dollars of 16 idle workers on 256 shards with shard leasing over those without",
        dollars_per_month={"leased": leased / MINUTES * MONTH_MIN, "unleased": shared / MINUTES * MONTH_MIN},
    )
    for prefix_len, name in GROWTH.items():
        one, many = (spent[Setup(workers, prefix_len, True)].counts[Operation.LIST] for workers in (1, 64))
        yield result(
            name,
            many / one,
            "x",
            target=Target("value", "<=", 1.5) if prefix_len == 2 else None,
            note="LISTs of 64 workers together over those of one, with shard leasing",
            lists_per_minute={"1": one / MINUTES, "64": many / MINUTES},
            shards=16**prefix_len,
        )


FAMILIES = [Family([*(setup.name for setup in SETUPS), RATIO, *GROWTH.values()], measure)]
