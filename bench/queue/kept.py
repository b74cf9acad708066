"""What ten million kept tasks cost: listing the newest, sweeping a settled page, and how quickly tasks are purged.

No disk here holds ten million tasks for a benchmark. ``Kept`` is a store whose keys follow from a formula: it answers
listings and reads of ten million ended tasks without having them, and everything else as the store in memory does. So
the figures are the work of qo without that of a server; the requests are counted beside them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.harness import Family, Result, median, result
from bench.lab import seaweed
from qo.core import keys, wire
from qo.core.retention import Keep, Policy
from qo.core.sweep import SweepCursor
from qo.core.task import Status, Task
from qo.queue.listing import SCAN_MAX, Filter
from qo.queue.options import NewTask
from qo.queue.purger import Purger
from qo.queue.queue import Claim, Queue
from qo.queue.sweeper import Sweeper
from qo.queue.task_removal import SAME_SECOND
from qo.store.embedded import etag_of, machine_time
from qo.store.local import LocalStore
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import LIST_LIMIT_MAX, Entry, ObjectStore, Page, Stored

TASKS = 10_000_000
RUNS = 3
SWEPT_PAGES = 100
PURGED = {"local": 4_000, "s3": 1_000}
NOW = machine_time()
_STEP = 2**32 / TASKS


def _key(number: int) -> str:
    head = f"{int(number * _STEP):08x}"
    return f"tasks/{head[0]}/{head}-0000-4000-8000-000000000000.json"


def _number_after(key: str) -> int:
    """The number of the first task whose key is not before this text."""
    low, high = 0, TASKS
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _key(middle) < key else (low, middle)
    return low


class Kept(MemoryStore):
    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        if not prefix.startswith(keys.TASKS):
            return await super().list(prefix, start_after=start_after, limit=limit)
        first = _number_after(max(prefix, f"{start_after}\0" if start_after else ""))
        entries: list[Entry] = []
        for number in range(first, min(first + limit + 1, TASKS)):
            if not (key := _key(number)).startswith(prefix):
                break
            entries.append(Entry(key, f'"{number:032x}"', 900, NOW - timedelta(seconds=3600 + number % 2_000_000)))
        return Page(entries[:limit], len(entries) > limit)

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        if not key.startswith(keys.TASKS):
            return await super().get(key, version=version)
        number = _number_after(key)
        at = NOW - timedelta(seconds=3600 + number % 2_000_000)
        task = Task(
            id=key.rpartition("/")[2].removesuffix(".json"),
            task_type="report",
            shard=key.split("/")[1],
            token="t",
            status=Status.COMPLETED,
            available_at=at,
            created_at=at,
            updated_at=at,
            completed_at=at,
        )
        body = wire.encode(task)
        return Stored(body, etag_of(body), "1")


def measure_list() -> Iterator[Result]:
    async def work() -> tuple[list[float], int]:
        meter = Metered(Kept())
        queue, seconds = Queue(meter), list[float]()
        for _ in range(RUNS):
            meter.reset()
            began = time.perf_counter()
            found = await queue.find(Filter(), 100, scan_max=SCAN_MAX)
            seconds.append(time.perf_counter() - began)
            assert len(found.tasks) == 100
            assert not found.complete
        return seconds, meter.snapshot().requests

    seconds, requests = asyncio.run(work())
    yield result(
        "list_10m_ms",
        1000 * median(seconds),
        "ms",
        of=[1000 * each for each in seconds],
        tasks=TASKS,
        requests=requests,
        store="a formula in memory, without the latency of a server; 16 requests at a time",
    )


def measure_sweep() -> Iterator[Result]:
    async def work() -> tuple[float, float]:
        meter = Metered(Kept())
        queue = Queue(meter)
        settled = SweepCursor(settled_at=NOW, full_at=NOW, full=False, pages=TASKS // 1000)
        await queue.store.put(keys.SWEEP, wire.encode(settled))
        sweeper = Sweeper(queue)
        meter.reset()
        began = time.perf_counter()
        for _ in range(SWEPT_PAGES):
            await sweeper.sweep()
        return (time.perf_counter() - began) / SWEPT_PAGES, meter.snapshot().requests / SWEPT_PAGES

    seconds, requests = asyncio.run(work())
    yield result(
        "sweep_page_10m_requests", requests, "requests", tasks_per_page=1000, page_ms=1000 * seconds, tasks=TASKS
    )


async def _fill(queue: Queue, count: int) -> None:
    async def finish(task: Task) -> None:
        claim = await queue.claim(task.id, worker_id="bench")
        assert isinstance(claim, Claim)
        await queue.complete(claim)

    for start in range(0, count, 64):
        tasks = await queue.submit_many([NewTask("report", n) for n in range(min(64, count - start))])
        await asyncio.gather(*(finish(task) for task in tasks))
    await queue.hints.flush()


async def _purge(opening: Awaitable[ObjectStore], count: int) -> tuple[float, dict[str, Any]]:
    meter = Metered(await opening)
    queue = Queue(meter)
    try:
        await _fill(queue, count)
        await asyncio.sleep(SAME_SECOND.total_seconds())  # Younger tasks are left for the next round.
        meter.reset()
        began = time.perf_counter()
        report = await Purger(queue, Policy(Keep(completed=timedelta(0)))).purge_all()
        seconds = time.perf_counter() - began
        assert report.tasks == count
        usage = meter.snapshot()
        return seconds, {
            "tasks": count,
            "versions": report.versions,
            "requests": {str(kind): number for kind, number in usage.counts.items()},
            "dollars_per_million": round(usage.dollars() / count * 1e6, 3),
        }
    finally:
        await queue.close()


def measure_purge() -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        local = LocalStore.open(Path(directory), forget=keys.EPHEMERAL)
        seconds, settings = asyncio.run(_purge(local, PURGED["local"]))
    yield result("purge_tasks_per_s", PURGED["local"] / seconds, "tasks/s", store="local", **settings)
    with seaweed() as server:
        bucket = server.make_bucket()
        seconds, settings = asyncio.run(_purge(server.open_store(bucket), PURGED["s3"]))
    yield result("purge_tasks_per_s_s3", PURGED["s3"] / seconds, "tasks/s", store="SeaweedFS", **settings)


FAMILIES = [
    Family(["list_10m_ms"], measure_list),
    Family(["sweep_page_10m_requests"], measure_sweep),
    Family(["purge_tasks_per_s", "purge_tasks_per_s_s3"], measure_purge),
]
