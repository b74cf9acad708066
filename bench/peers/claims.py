"""Claims from queues that hold more and more tasks, one claim after the other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from bench.peers.qo import counts, open_queue
from bench.process import Go, serve
from qo.queue.feed import Feed
from qo.queue.options import NewTask, Options
from qo.queue.queue import Claim, Queue

PAGE = 100  # What a worker lists at a time, so that every sample has its share of listing.
SUBMITS_AT_ONCE = 10_000
NOW, TOMORROW = Options(), Options(delay_s=86_400.0)


class Line:
    """A queue with a number of tasks waiting, which stays the same: what is claimed is submitted anew."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._feed = Feed(queue)
        self._requests = 0
        self._samples: list[float] = []

    async def fill(self, tasks: int, options: Options) -> None:
        for start in range(0, tasks, SUBMITS_AT_ONCE):
            numbers = range(start, min(start + SUBMITS_AT_ONCE, tasks))
            await self._queue.submit_many([NewTask("noop", {"number": number}, options) for number in numbers])

    async def sample(self) -> None:
        assert self._queue.meter is not None
        self._queue.meter.reset()
        began = time.perf_counter()
        claimed = 0
        while claimed < PAGE:
            for due in await self._feed.take(PAGE - claimed):
                claimed += isinstance(await self._queue.claim(due.task_id, worker_id="bench"), Claim)
        self._samples.append((time.perf_counter() - began) / PAGE)
        await self._queue.hints.flush()
        self._requests += sum(counts(self._queue).values())
        await self.fill(PAGE, NOW)

    def answer(self) -> Mapping[str, Any]:
        return {"seconds": self._samples, "requests": self._requests / (PAGE * len(self._samples))}


async def claim(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    """Seconds per claim, once for each page of candidates, and requests per claim; for each load."""
    lines: dict[str, Line] = {}
    async with AsyncExitStack() as stack:
        for name, (ready, scheduled) in job["loads"].items():
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="qo-bench-"))
            store = "memory:" if job["store"] == "memory" else f"local:{directory}/store"
            queue = await stack.enter_async_context(await open_queue({"settings": {"store": store}}))
            lines[name] = Line(queue)
            await lines[name].fill(ready, NOW)
            await lines[name].fill(scheduled, TOMORROW)
        go()
        for _ in range(job["samples"]):
            for line in lines.values():  # By turns, so that a slow moment hits every load.
                await line.sample()
        return {name: line.answer() for name, line in lines.items()}


if __name__ == "__main__":
    serve({"claim": claim})
