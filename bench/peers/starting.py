"""Both sides of a task that starts: handlers that say when they began, and a producer that compares."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

import qo
from bench.process import Go, serve
from qo.config.origins import load
from qo.queue import roster

PATIENCE_S = 60.0

app = qo.App()


@app.task("start")
async def start(_: Any) -> float:
    return time.monotonic()  # The same clock in all processes of a machine.


async def latencies(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    """Milliseconds from the call of ``submit`` to the begin of the handler, of one task after the other."""
    rng = random.Random(7)
    async with qo.connect(load()) as queue:
        async with asyncio.timeout(PATIENCE_S):
            while not await roster.workers(queue.store):  # noqa: ASYNC110 - another process signs on.
                await asyncio.sleep(0.05)
        go()
        found: list[float] = []
        for number in range(job["tasks"] + 1):
            await asyncio.sleep(job["idle_s"] * rng.uniform(0.5, 1.5))
            began = time.monotonic()
            task = await queue.submit("start")
            ended = await queue.wait(task.id, PATIENCE_S)
            if number:  # The first one opens connections.
                found.append(1000 * (await queue.output(ended) - began))
        return {"latencies_ms": found}


if __name__ == "__main__":
    serve({"latencies": latencies})
