"""qo: submit no-op tasks, drain them with a worker, and count the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bench.process import Go, Stopwatch, serve
from qo.config.origins import load
from qo.queue.feed import Feed
from qo.queue.options import NewTask
from qo.queue.queue import Claim, Queue
from qo.store.opening import open_store
from qo.worker.api.app import App
from qo.worker.worker import Worker, WorkerConfig

SUBMITS_AT_ONCE = 64

app = App()


@app.task("noop")
async def noop(value: object) -> None:
    pass


@app.task("noop_sync")
def noop_sync(value: object) -> None:
    pass


async def open_queue(job: Mapping[str, Any]) -> Queue:
    """The store with everything around it that a user gets, except the check that `qo doctor` has passed it."""
    store, meter = await open_store(load(job["settings"]))
    return Queue(store, meter=meter)


async def enqueue(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    async with await open_queue(job) as queue:
        go()
        with Stopwatch() as watch:
            await _WAYS[job["way"]](queue, job["tasks"], job["task_type"])
        return {**watch.answer(), "requests": counts(queue)}


async def drain(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    async with await open_queue(job) as queue:
        config = WorkerConfig(worker_id=job["worker_id"], stop_when_empty=True, **job["worker"])
        worker = Worker(queue, app, config)
        go()
        with Stopwatch() as watch:
            tally = await worker.run()
        return {**watch.answer(), "completed": tally.completed, "requests": counts(queue)}


async def time_claims(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    """Drains the queue, and says how long each claim took that succeeded."""
    claims_ms: list[float] = []
    missed = 0
    async with await open_queue(job) as queue:
        claim = queue.claim

        async def timed(*arguments: Any, **options: Any) -> Any:
            nonlocal missed
            with Stopwatch() as watch:
                answer = await claim(*arguments, **options)
            if isinstance(answer, Claim):
                claims_ms.append(1000 * watch.seconds)
            else:
                missed += 1
            return answer

        queue.claim = timed
        go()
        config = WorkerConfig(worker_id=job["worker_id"], stop_when_empty=True, **job["worker"])
        await Worker(queue, app, config).run()
    return {"claims_ms": claims_ms, "missed": missed}


async def poll(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    """Looks for candidates a number of times, as an idle worker does."""
    async with await open_queue(job) as queue:
        feed = Feed(queue)
        go()
        for _ in range(job["polls"]):
            if await feed.take(1):
                raise RuntimeError("the queue is not empty")
        return {"requests": counts(queue)}


def counts(queue: Queue) -> dict[str, int]:
    assert queue.meter is not None
    return {str(operation): count for operation, count in queue.meter.counts.items()}


async def _submit_many(queue: Queue, tasks: int, task_type: str) -> None:
    await queue.submit_many([NewTask(task_type, {"number": number}) for number in range(tasks)])


async def _submit_concurrently(queue: Queue, tasks: int, task_type: str) -> None:
    numbers = iter(range(tasks))

    async def submitter() -> None:
        for number in numbers:
            await queue.submit(task_type, {"number": number})

    await asyncio.gather(*(submitter() for _ in range(SUBMITS_AT_ONCE)))


async def _submit_in_a_loop(queue: Queue, tasks: int, task_type: str) -> None:
    for number in range(tasks):
        await queue.submit(task_type, {"number": number})


_WAYS: Mapping[str, Callable[[Queue, int, str], Awaitable[None]]] = {
    "submit_many": _submit_many,
    "concurrent": _submit_concurrently,
    "loop": _submit_in_a_loop,
}

if __name__ == "__main__":
    serve({"enqueue": enqueue, "drain": drain, "poll": poll, "time_claims": time_claims})
