"""qo's handlers for the comparisons with queues on Redis. Its own command runs the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from bench.peers.qo import open_queue
from bench.peers.stamps import NAP_S, stamp
from bench.process import Go, serve
from qo.queue.options import NewTask
from qo.worker.api.app import App

app = App()


@app.task("noop")
async def noop(number: int) -> None:
    stamp(number)


@app.task("noop_sync")
def noop_sync(number: int) -> None:
    stamp(number)


@app.task("nap")
async def nap(number: int) -> None:
    await asyncio.sleep(NAP_S)
    stamp(number)


async def enqueue(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    async with await open_queue(job) as queue:
        go()
        await queue.submit_many([NewTask(job["task_type"], number) for number in range(job["tasks"])])
    return {}


if __name__ == "__main__":
    serve({"enqueue": enqueue})
