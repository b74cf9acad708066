"""buquet, the queue on S3 that qo is measured against: submit no-op tasks, or drain them with one worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import buquet

from bench.process import Go, serve

SUBMITS_AT_ONCE = 50


async def _open(job: Mapping[str, Any]) -> Any:
    return await buquet.connect(endpoint=job["endpoint"], bucket=job["bucket"], region=job["region"])


async def _enqueue(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    queue = await _open(job)
    go()
    began = time.perf_counter()
    for start in range(0, job["tasks"], SUBMITS_AT_ONCE):
        numbers = range(start, min(start + SUBMITS_AT_ONCE, job["tasks"]))
        await queue.submit_many([("noop", {"number": number}) for number in numbers])
    return {"seconds": time.perf_counter() - began}


async def _drain(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    """Stops after ``max_tasks``; with none, the caller kills it."""
    queue = await _open(job)
    worker = buquet.Worker(queue, job["worker_id"], queue.all_shards())

    @worker.task("noop")
    async def noop(value: object) -> None:
        pass

    # The shortest pause between polls that its documentation names; no monitor, which would add requests.
    options = buquet.WorkerRunOptions(
        polling=buquet.PollingStrategy.adaptive(min_interval_ms=100, max_interval_ms=5000),
        max_tasks=job["tasks"],
        with_monitor=False,
    )
    go()
    began = time.perf_counter()
    await worker.run(options)
    return {"seconds": time.perf_counter() - began}


def enqueue(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    return asyncio.run(_enqueue(job, go))


def drain(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    return asyncio.run(_drain(job, go))


if __name__ == "__main__":
    serve({"enqueue": enqueue, "drain": drain})
