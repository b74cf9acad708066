"""How long it takes from an event that was accepted to a wake-up in the queue of its runtime.

The dispatcher runs with all its loops; the queue is a real one, in a local store. Events come one by one, as from a
request, so this is what somebody waits who says one thing and wants it done.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from bench.dispatcher.ground import DATABASES, HOW, databases, deployed, emit, pipeline, running
from bench.harness import Family, Result, result
from qo.config.settings import Settings
from qo.dispatcher.outbox.queues import BucketQueues
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State

SAMPLES = 300
WARM_UP = 20
EVERY_S = 0.05
WITHIN_S = 30.0


class _Stamped:
    """Queues that remember when each wake-up was in them."""

    def __init__(self, queues: BucketQueues) -> None:
        self._queues = queues
        self.at_s: dict[str, float] = {}  # By task.
        self.all_there = asyncio.Event()

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        await self._queues.publish(queue, wakes)
        now_s = time.perf_counter()
        for each in wakes:
            self.at_s.setdefault(each.task_id, now_s)
        if len(self.at_s) == WARM_UP + SAMPLES:
            self.all_there.set()


async def _latencies(state: State) -> list[float]:
    accepted_at_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        settings = Settings(store=f"local:{directory}/store")
        queues = BucketQueues(settings)
        stamped = _Stamped(queues)
        async with running(state, stamped, settings) as dispatcher:
            for number in range(WARM_UP + SAMPLES):
                await asyncio.to_thread(emit, state, number, 1)
                accepted_at_s.append(time.perf_counter())
                dispatcher.nudge()
                await asyncio.sleep(EVERY_S)
            async with asyncio.timeout(WITHIN_S):
                await stamped.all_there.wait()
        await queues.close()
    number_of = _numbers(state)
    taken = [at_s - accepted_at_s[number_of[task]] for task, at_s in stamped.at_s.items()]
    return sorted(taken[WARM_UP:])


def _numbers(state: State) -> dict[str, int]:
    tasks = schema.tasks
    with state.read() as tx:
        rows = tx.execute(sa.select(tasks.c.id, tasks.c.start).where(tasks.c.job == "clean"))
        return {id_: start for id_, start in rows}


def measure() -> Iterator[Result]:
    with databases() as fresh:
        for database in DATABASES:
            state = fresh(database)
            deployed(state, pipeline("python", "shop.clean:run"))
            taken_s = asyncio.run(_latencies(state))
            hundredths = statistics.quantiles(taken_s, n=100)
            for percent in (50, 99):
                yield result(
                    f"claimable_p{percent}_ms_{database}",
                    1000 * hundredths[percent - 1],
                    "ms",
                    samples=SAMPLES,
                    every_s=EVERY_S,
                    database=HOW[database],
                    queue="in a local store",
                )


FAMILIES = [
    Family([f"claimable_p{percent}_ms_{database}" for database in DATABASES for percent in (50, 99)], measure)
]
