"""How much of what the S3 client can do at all a draining worker gets out of it.

The client alone makes the requests that a drain is made of (a GET, two conditional PUTs and a plain one for each
task), with nothing in between, as many at a time as the worker has tasks. That is the limit of client, network and
server together.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.lab import seaweed
from bench.process import run
from bench.queue.sides import CONCURRENCY, Answer, Qo

if TYPE_CHECKING:
    from support.servers.s3 import S3Server

ROUNDS = 3
TASKS = 600
MIX = "1 GET, 2 conditional PUTs, 1 PUT"


class Rate(NamedTuple):
    requests_per_s: float
    requests_per_task: float


def _rate(answer: Answer) -> Rate:
    requests = sum(answer["requests"].values())
    return Rate(requests / answer["seconds"], requests / TASKS)


def _drain(server: S3Server) -> Rate:
    side = Qo.fresh(server)
    side.enqueue(TASKS)
    (answer,) = side.drain(TASKS)
    return _rate(answer)


def _plain(server: S3Server, batches: bool) -> Rate:
    side = Qo.fresh(server)
    job = {"do": "plain", "tasks": TASKS, "concurrency": CONCURRENCY, "batches": batches}
    return _rate(run("bench.peers.raw", {**side.job(), **job}, side.environment()))


def measure() -> Iterator[Result]:
    with seaweed() as server:
        runs = by_turns(
            ROUNDS, partial(_drain, server), partial(_plain, server, False), partial(_plain, server, True)
        )
    drain, plain, whole = (median(rate.requests_per_s for rate in side) for side in runs)
    requests_per_task = median(rate.requests_per_task for rate in runs[0])
    settings = {
        "drain_tasks_per_s": round(drain / requests_per_task, 1),
        "requests_per_task": round(requests_per_task, 2),
        "concurrency": CONCURRENCY,
        "tasks": TASKS,
        "rounds": ROUNDS,
        "server": "SeaweedFS, versioned buckets",
    }
    for name, limit, alone, target, mix in (
        ("share_of_store_limit", plain, runs[1], Target("value", ">=", 0.6), MIX),
        ("share_of_store_limit_all", whole, runs[2], None, f"{MIX}, and the drain's LISTs and batched deletes"),
    ):
        shares = [ours.requests_per_s / most.requests_per_s for ours, most in zip(runs[0], alone, strict=True)]
        rates = {"drain_rps": round(drain, 1), "limit_rps": round(limit, 1)}
        yield result(name, drain / limit, "of 1", target=target, of=shares, **rates, mix=mix, **settings)


FAMILIES = [Family(["share_of_store_limit", "share_of_store_limit_all"], measure)]
