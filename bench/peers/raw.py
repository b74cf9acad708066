"""qo's S3 client by itself: the requests of a drain without the queue around them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from bench.peers.qo import counts, open_queue
from bench.process import Go, Stopwatch, serve
from qo.queue.options import NewTask
from qo.queue.queue import Queue
from qo.store.port import Deletion, ObjectStore

BATCH = 100  # Index keys in one LIST, and in one batched delete.
BODY = b"x" * 900  # About as long as a task.


async def plain(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    """For each task: read it, replace it twice, write a lease key. With ``batches`` also one LIST for each hundred
    tasks, and the batched deletes of their ready and lease keys."""
    async with await open_queue(job) as queue:
        assert queue.meter is not None
        store = queue.meter.store
        await queue.submit_many([NewTask("noop", {"number": number}) for number in range(job["tasks"])])
        found = await _keys(store, "tasks/"), await _keys(store, "ready/")
        queue.meter.reset()
        tasks = iter(zip(*found, strict=True))
        go()
        with Stopwatch() as watch:
            each = (_work(queue, tasks, job["batches"]) for _ in range(job["concurrency"]))
            await asyncio.gather(*each)
        return {**watch.answer(), "requests": counts(queue)}


async def _work(queue: Queue, tasks: Iterator[tuple[str, str]], batches: bool) -> None:
    store = queue.meter
    assert store is not None
    deletions: list[Deletion] = []
    for task, ready in tasks:
        seen = await store.get(task)
        assert seen is not None
        lease = ready.replace("ready/", "leases/")
        first, leased = await asyncio.gather(
            store.put(task, BODY, if_match=seen.etag), store.put(lease, b"x" * 24)
        )
        await store.put(task, BODY, if_match=first.etag)
        deletions += [Deletion(ready), Deletion(lease, leased.version)]
        if batches and len(deletions) >= BATCH:
            await asyncio.gather(store.list("ready/", limit=BATCH), store.delete_many(deletions))
            deletions = []
    if batches and deletions:
        await store.delete_many(deletions)


async def _keys(store: ObjectStore, prefix: str) -> list[str]:
    found: list[str] = []
    while True:
        page = await store.list(prefix, start_after=found[-1] if found else "")
        found += [entry.key for entry in page.entries]
        if not page.truncated:
            return found


if __name__ == "__main__":
    serve({"plain": plain})
