"""How long it takes from an event that was accepted to a wake-up in the queue of its runtime.

The dispatcher runs with all its loops; the queue is a real one, in a local store. Events come one by one at a steady
rate, each stored and followed up as by a request, so this is what somebody waits who says one thing and wants it done.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from bench.dispatcher.ground import DATABASES, HOW, databases, deployed, pipeline, running, said
from bench.harness import Family, Result, Target, result
from qo.config.settings import Settings
from qo.dispatcher.outbox.queues import BucketQueues
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.service import Dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State

SAMPLES = 600
WARM_UP = 50
EVENTS_PER_S = 100.0
REQUESTS_MAX = 8  # At once.
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
    accepted_at_s: dict[int, float] = {}

    def accept(dispatcher: Dispatcher, number: int) -> None:
        """As the route for events of a source does."""
        with state.write() as tx:
            emission.emit(tx, "shop", "orders", key=f"from-{number}", events=said([number]), by="bench")
            after_commit = dispatcher.fast_path(tx)
        accepted_at_s[number] = time.perf_counter()
        after_commit()

    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        settings = Settings(store=f"local:{directory}/store")
        queues = BucketQueues(settings)
        stamped = _Stamped(queues)
        # Threads of their own, as the listeners have: the dispatcher's do not wait behind requests.
        with ThreadPoolExecutor(REQUESTS_MAX) as requests:
            async with running(state, stamped, settings) as dispatcher:
                began_s = time.perf_counter()
                for number in range(WARM_UP + SAMPLES):
                    await asyncio.sleep(max(0.0, began_s + number / EVENTS_PER_S - time.perf_counter()))
                    requests.submit(accept, dispatcher, number)
                async with asyncio.timeout(WITHIN_S):
                    await stamped.all_there.wait()
        await queues.close()
    number_of = _numbers(state)
    return sorted(
        at_s - accepted_at_s[number]
        for task, at_s in stamped.at_s.items()
        if (number := number_of[task]) >= WARM_UP
    )


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
                    target=Target("value", "<=", 20.0) if (database, percent) == ("postgres", 99) else None,
                    samples=SAMPLES,
                    events_per_s=EVENTS_PER_S,
                    database=HOW[database],
                    queue="in a local store",
                )


FAMILIES = [
    Family([f"claimable_p{percent}_ms_{database}" for database in DATABASES for percent in (50, 99)], measure)
]
