"""How long it takes from the commit of a month's last day until a worker that is awake can claim the month's task.

The dispatcher runs with all its loops. All days of ten years but the last of each month are there; the last ones are
committed one by one, each stored and followed up as by a request. A look at the task's row says when it is released.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import date, timedelta

import sqlalchemy as sa

from bench.dispatcher.ground import DATABASES, HOW, databases, deployed, running
from bench.harness import Family, Result, Target, result
from qo.api.contract.task import EventBody
from qo.config.settings import Settings
from qo.dispatcher.outbox.queues import BucketQueues
from qo.dispatcher.service import Dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.pipeline.parsing import read

FIRST, LAST = date(2016, 1, 1), date(2025, 12, 31)
WARM_UP = 20  # Months.
WITHIN_S = 30.0
LOOK_EVERY_S = 0.001
PIPELINE = """
name: shop
jobs:
- {name: orders, source: manual, partitions: {kind: day, timezone: Europe/Berlin, start: "2016-01-01"}}
- {name: monthly, operator: "shop.monthly:run", runtime: python, inputs: [orders],
   partitions: {kind: month, timezone: Europe/Berlin}}
"""


def _announce(state: State, days: list[str], dispatcher: Dispatcher | None = None) -> None:
    """Commit days, as the route for events of a source does if it has a dispatcher."""
    with state.write() as tx:
        events = [EventBody(partition_key=day) for day in days]
        emission.emit(tx, "shop", "orders", key=f"from {days[0]}", events=events, by="bench")
        after_commit = dispatcher.fast_path(tx) if dispatcher is not None else None
    if after_commit is not None:
        after_commit()


def _await_released(state: State, month: str) -> None:
    tasks, deadline_s = schema.tasks, time.monotonic() + WITHIN_S
    query = sa.select(tasks.c.released_at).where(tasks.c.job == "monthly", tasks.c.partition_key == month)
    while True:
        with state.read() as tx:
            if tx.value(query) is not None:
                return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{month} was not released within {WITHIN_S:g} s")
        time.sleep(LOOK_EVERY_S)


async def _latencies(state: State) -> list[float]:
    days = [FIRST + timedelta(days=n) for n in range((LAST - FIRST).days + 1)]
    last_days = [day for day in days if (day + timedelta(days=1)).day == 1]
    others = sorted(str(day) for day in set(days) - set(last_days))
    for start in range(0, len(others), 500):
        _announce(state, others[start : start + 500])
    taken_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        settings = Settings(store=f"local:{directory}/store")
        queues = BucketQueues(settings)
        async with running(state, queues, settings) as dispatcher:

            def close(day: date) -> float:
                began_s = time.perf_counter()
                _announce(state, [str(day)], dispatcher)
                _await_released(state, f"{day:%Y-%m}")
                return time.perf_counter() - began_s

            taken_s += [await asyncio.to_thread(close, day) for day in last_days]
        await queues.close()
    return sorted(taken_s[WARM_UP:])


def measure() -> Iterator[Result]:
    taken_ms: dict[str, list[float]] = {}
    with databases() as fresh:
        for database in DATABASES:
            state = fresh(database)
            deployed(state, read(PIPELINE))
            taken_ms[database] = [1000 * each for each in asyncio.run(_latencies(state))]
    p50 = {database: statistics.median(each) for database, each in taken_ms.items()}
    p99 = {database: statistics.quantiles(each, n=100)[98] for database, each in taken_ms.items()}
    yield result(
        "month_of_days_overhead_ms",
        max(p50.values()),
        "ms",
        target=Target("value", "<=", 100.0),
        **{f"p99_{database}": round(each, 1) for database, each in p99.items()},
        **{f"p50_{database}": round(each, 1) for database, each in p50.items()},
        months=len(taken_ms["sqlite"]),
        databases="; ".join(HOW[each] for each in DATABASES),
        note="from the commit of the last day until the task is released; the median of the slower database",
    )


FAMILIES = [Family(["month_of_days_overhead_ms"], measure)]
