"""buquet, the queue on S3 that qo is measured against: submit no-op tasks, or drain them with one worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import buquet

from bench.process import Go, Stopwatch, serve

SUBMITS_AT_ONCE = 50


async def _open(job: Mapping[str, Any]) -> Any:
    return await buquet.connect(endpoint=job["endpoint"], bucket=job["bucket"], region=job["region"])


async def enqueue(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    queue = await _open(job)
    go()
    with Stopwatch() as watch:
        for start in range(0, job["tasks"], SUBMITS_AT_ONCE):
            numbers = range(start, min(start + SUBMITS_AT_ONCE, job["tasks"]))
            await queue.submit_many([("noop", {"number": number}) for number in numbers])
    return watch.answer()


async def drain(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    worker = await _worker(job)
    go()
    with Stopwatch() as watch:
        await worker.run(_options(max_tasks=job["tasks"]))
    return watch.answer()


async def _worker(job: Mapping[str, Any]) -> Any:
    queue = await _open(job)
    worker = buquet.Worker(queue, job["worker_id"], queue.all_shards())

    @worker.task("noop")
    async def noop(value: object) -> None:
        pass

    return worker


def _options(max_tasks: int | None = None) -> Any:
    """The polling that its documentation recommends, and no monitor, which would only add requests."""
    polling = buquet.PollingStrategy.adaptive(min_interval_ms=100, max_interval_ms=5000)
    return buquet.WorkerRunOptions(polling=polling, max_tasks=max_tasks, with_monitor=False)


async def idle(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    """Polls an empty queue for a while."""
    worker = await _worker(job)
    go()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(worker.run(_options()), job["seconds"])
    return {}


if __name__ == "__main__":
    serve({"enqueue": enqueue, "drain": drain, "idle": idle})
