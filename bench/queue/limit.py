"""How much of what the S3 client can do at all a draining worker gets out of it.

The client alone makes the requests that a drain is made of (a GET, two conditional PUTs and a plain one for each
task), with nothing in between, as many at a time as the worker has tasks. That is the limit of client, network and
server together.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.lab import seaweed
from bench.process import run
from bench.queue.sides import CONCURRENCY, Qo

ROUNDS = 3
TASKS = 600


def measure() -> Iterator[Result]:
    with seaweed() as server:

        def drain() -> tuple[float, float]:
            side = Qo.fresh(server)
            side.enqueue(TASKS)
            (answer,) = side.drain(TASKS)
            requests = sum(answer["requests"].values())
            return requests / answer["seconds"], requests / TASKS

        def plain(batches: bool) -> float:
            side = Qo.fresh(server)
            job = {
                **side.job(),
                "do": "plain",
                "tasks": TASKS,
                "concurrency": CONCURRENCY,
                "batches": batches,
            }
            answer = run("bench.peers.raw", job, side.environment())
            return sum(answer["requests"].values()) / answer["seconds"]

        drains, plains, wholes = by_turns(ROUNDS, drain, lambda: plain(False), lambda: plain(True))
    rate, requests_per_task = (median(column) for column in zip(*drains, strict=True))
    settings = {
        "drain_tasks_per_s": round(rate / requests_per_task, 1),
        "requests_per_task": round(requests_per_task, 2),
        "concurrency": CONCURRENCY,
        "tasks": TASKS,
        "rounds": ROUNDS,
        "server": "SeaweedFS, versioned buckets",
    }
    mix = "1 GET, 2 conditional PUTs, 1 PUT"
    for name, limit, target, mix in (
        ("share_of_store_limit", median(plains), Target("value", ">=", 0.6), mix),
        ("share_of_store_limit_all", median(wholes), None, f"{mix}, and the drain's LISTs and batched deletes"),
    ):
        rates = {"drain_rps": round(rate, 1), "limit_rps": round(limit, 1)}
        yield result(name, rate / limit, "of 1", target=target, **rates, mix=mix, **settings)


FAMILIES = [Family(["share_of_store_limit", "share_of_store_limit_all"], measure)]
