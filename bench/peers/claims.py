"""Claims from a queue that holds many tasks, one after the other, a page of candidates at a time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from typing import Any

from bench.peers.qo import counts, open_queue
from bench.process import Go, serve
from qo.queue.feed import Feed
from qo.queue.options import NewTask, Options
from qo.queue.queue import Claim, Queue

PAGE = 100
CLAIMS_PER_STORE = 500  # Of at least 1,000 ready tasks, so that the line never gets short.
SUBMITS_AT_ONCE = 10_000
TOMORROW = Options(delay_s=86_400.0)


async def claim(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    """Seconds per claim, once for each page of candidates, and requests per claim."""
    samples: list[float] = []
    requests = 0
    go()
    while len(samples) < job["samples"]:
        with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
            store = "memory:" if job["store"] == "memory" else f"local:{directory}/store"
            async with await open_queue({"settings": {"store": store}}) as queue:
                await _fill(queue, job["ready"], Options())
                await _fill(queue, job["scheduled"], TOMORROW)
                assert queue.meter is not None
                queue.meter.reset()
                # A long line is hardly shortened: one store serves for all samples.
                wanted = job["samples"] if job["ready"] > 5 * CLAIMS_PER_STORE else CLAIMS_PER_STORE // PAGE
                samples += await _samples(queue, wanted)
                requests += sum(counts(queue).values())
    return {"seconds": samples, "requests": requests / (PAGE * len(samples))}


async def _fill(queue: Queue, tasks: int, options: Options) -> None:
    for start in range(0, tasks, SUBMITS_AT_ONCE):
        numbers = range(start, min(start + SUBMITS_AT_ONCE, tasks))
        await queue.submit_many([NewTask("noop", {"number": number}, options) for number in numbers])


async def _samples(queue: Queue, wanted: int) -> list[float]:
    feed = Feed(queue)
    samples: list[float] = []
    for _ in range(wanted):
        began = time.perf_counter()
        claimed = 0
        while claimed < PAGE:
            for due in await feed.take(PAGE - claimed):
                answer = await queue.claim(due.task_id, worker_id="bench")
                claimed += isinstance(answer, Claim)
        samples.append((time.perf_counter() - began) / PAGE)
    return samples


if __name__ == "__main__":
    serve({"claim": claim})
