"""One worker of qo in this process: when each task of a full queue was done, on a store that answers after a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from bench.process import Go, serve
from qo.ambient import SYSTEM
from qo.config.origins import load
from qo.core.task import PRIORITY_MAX
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan, Faulty
from qo.store.opening import open_store
from qo.store.port import ObjectStore
from qo.worker.api.app import App
from qo.worker.worker import Worker, WorkerConfig

SHORT_S, SLOW_S = 0.001, 2.0
FIRST = Options(priority=PRIORITY_MAX)  # At the head of the line, where it would do the most harm.


async def work(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    """Seconds from the worker's start to the end of each task, by their type."""
    done_at: dict[str, list[float]] = {task_type: [] for task_type in job["tasks"]}
    opened, meter = await open_store(load({"store": job["store"]}))
    async with Queue(opened) as filled:
        await filled.submit_many(
            [
                NewTask(task_type, None, FIRST if task_type == "slow" else Options())
                for task_type, count in job["tasks"].items()
                for _ in range(count)
            ]
        )
        queue = Queue(_slowed(opened, job["latency_s"]), meter=meter)
        config = WorkerConfig(worker_id="bench", concurrency=job["concurrency"], stop_when_empty=True)
        worker = Worker(queue, _app(done_at), config)
        go()
        began = time.perf_counter()
        await worker.run()
    return {task_type: [at - began for at in times] for task_type, times in done_at.items()}


def _slowed(store: ObjectStore, latency_s: float) -> ObjectStore:
    """Every request takes so much longer, any number of them at the same time."""
    return Faulty(store, FaultPlan(latency_s=(latency_s, latency_s)), SYSTEM) if latency_s else store


def _app(done_at: Mapping[str, list[float]]) -> App:
    app = App()

    @app.task("noop")
    async def noop(value: object) -> None:
        done_at["noop"].append(time.perf_counter())

    @app.task("short")
    async def short(value: object) -> None:
        await asyncio.sleep(SHORT_S)
        done_at["short"].append(time.perf_counter())

    @app.task("slow")
    async def slow(value: object) -> None:
        await asyncio.sleep(SLOW_S)
        done_at["slow"].append(time.perf_counter())

    return app


if __name__ == "__main__":
    serve({"work": work})
