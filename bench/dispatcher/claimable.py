"""How long it takes from the call that announces an event until a worker that is awake can claim its task.

The dispatcher runs with all its loops; the queue is a real one, in a local store. Events come one by one at a steady
rate, each stored and followed up as by a request. A thread looks every few milliseconds which tasks are released.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from bench.dispatcher.ground import DATABASES, HOW, databases, deployed, pipeline, running, said
from bench.harness import Family, Result, Target, result
from qo.config.settings import Settings
from qo.dispatcher.outbox.queues import BucketQueues
from qo.dispatcher.service import Dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State

SAMPLES = 600
WARM_UP = 50
EVENTS_PER_S = 100.0
REQUESTS_MAX = 8  # At once.
WITHIN_S = 30.0
LOOK_EVERY_S = 0.002
NEWEST = 100  # Tasks that a look reads.


class _Watch(threading.Thread):
    """Notes when each task was first seen to be released: from then on, a worker that is awake gets it."""

    def __init__(self, state: State) -> None:
        super().__init__(daemon=True)
        self._state = state
        self.at_s: dict[int, float] = {}  # By the number of its event.
        self.all_there = threading.Event()

    def run(self) -> None:
        tasks = schema.tasks
        is_released = sa.and_(tasks.c.job == "clean", tasks.c.released_at.is_not(None))
        query = sa.select(tasks.c.start).where(is_released).order_by(tasks.c.created_at.desc()).limit(NEWEST)
        while len(self.at_s) < WARM_UP + SAMPLES:
            with self._state.read() as tx:
                rows = tx.execute(query).scalars().all()
            now_s = time.perf_counter()
            for number in rows:
                self.at_s.setdefault(int(number), now_s)
            time.sleep(LOOK_EVERY_S)
        self.all_there.set()


async def _latencies(state: State) -> list[float]:
    called_at_s: dict[int, float] = {}

    def accept(dispatcher: Dispatcher, number: int) -> None:
        """As the route for events of a source does."""
        called_at_s[number] = time.perf_counter()
        with state.write() as tx:
            emission.emit(tx, "shop", "orders", key=f"from-{number}", events=said([number]), by="bench")
            after_commit = dispatcher.fast_path(tx)
        after_commit()

    watch = _Watch(state)
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        settings = Settings(store=f"local:{directory}/store")
        queues = BucketQueues(settings)
        # Threads of their own, as the listeners have: the dispatcher's do not wait behind requests.
        with ThreadPoolExecutor(REQUESTS_MAX) as requests:
            async with running(state, queues, settings) as dispatcher:
                watch.start()
                began_s = time.perf_counter()
                for number in range(WARM_UP + SAMPLES):
                    await asyncio.sleep(max(0.0, began_s + number / EVENTS_PER_S - time.perf_counter()))
                    requests.submit(accept, dispatcher, number)
                if not await asyncio.to_thread(watch.all_there.wait, WITHIN_S):
                    raise TimeoutError(f"{len(watch.at_s)} tasks were released within {WITHIN_S:g} s")
        await queues.close()
    return sorted(at_s - called_at_s[number] for number, at_s in watch.at_s.items() if number >= WARM_UP)


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
