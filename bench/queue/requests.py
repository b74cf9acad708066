"""How many requests a task costs from submit to complete, and how many LISTs an idle poll.

Both sides are counted on the wire, by a proxy before the server: everything counts, also heartbeats and clocks.
What qo counts itself is recorded beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bench.harness import Family, Result, Target, result
from bench.lab import Counted, Requests, counted, seaweed
from bench.process import run
from bench.queue.sides import BUQUET_VERSION, CONCURRENCY, Answer, Buquet, Qo, Side

TASKS_QO = {1: 1000, 4: 2000}  # By the number of workers; enough that the end of the queue hardly counts.
TASKS_BUQUET = {1: 200, 4: 200}
IDLE_S = 3.0
POLLS = 20


def _per_task(side: Side, proxy: Counted, tasks: int, workers: int) -> tuple[Requests, list[Answer]]:
    proxy.take()
    answers = [side.enqueue(tasks), *side.drain(tasks, workers)]
    return _without_polls(proxy.take()), answers


def _without_polls(counts: Requests) -> Requests:
    del counts["poll"]  # Counted as LISTs already.
    return counts


def _requests(counts: Requests, tasks: int) -> float:
    """Without the LISTs, which have a figure of their own."""
    return (counts.total() - counts["list"]) / tasks


def measure_tasks() -> Iterator[Result]:
    with seaweed() as server, counted(server) as proxy:
        for workers, tasks_qo in TASKS_QO.items():
            tasks_buquet = TASKS_BUQUET[workers]
            ours, answers = _per_task(Qo.fresh(server, proxy.endpoint), proxy, tasks_qo, workers)
            theirs, _ = _per_task(Buquet.fresh(server, proxy.endpoint), proxy, tasks_buquet, workers)
            metered: Requests = sum((Counter(answer["requests"]) for answer in answers), Counter())
            settings = {
                "workers": workers,
                "qo": f"{tasks_qo} tasks, concurrency {CONCURRENCY}",
                "buquet": f"{BUQUET_VERSION}, {tasks_buquet} tasks, adaptive polling, no monitor",
                "requests_qo": dict(ours),
                "requests_buquet": dict(theirs),
                "metered_qo": dict(metered),
            }
            yield result(
                f"requests_per_task_{workers}w",
                _requests(ours, tasks_qo),
                "requests",
                baseline=_requests(theirs, tasks_buquet),
                target=Target("value", "<=", 7.0),
                **settings,
            )
            yield result(
                f"lists_per_task_{workers}w",
                ours["list"] / tasks_qo,
                "LISTs",
                baseline=theirs["list"] / tasks_buquet,
                target=Target("value", "<=", 0.2),
                **settings,
            )


def measure_idle() -> Iterator[Result]:
    with seaweed() as server, counted(server) as proxy:
        ours = Qo.fresh(server, proxy.endpoint)
        proxy.take()
        run("bench.peers.qo", {**ours.job(), "do": "poll", "polls": POLLS}, ours.environment())
        lists = proxy.take()["list"]
        theirs = Buquet.fresh(server, proxy.endpoint)
        job = {**theirs.job(), "do": "idle", "seconds": IDLE_S, "worker_id": "bench"}
        run("bench.peers.buquet", job, theirs.environment())
        seen = proxy.take()
    yield result(
        "idle_poll_lists",
        lists / POLLS,
        "LISTs",
        baseline=seen["list"] / seen["poll"],
        target=Target("value", "<=", 1.0),
        polls_qo=POLLS,
        polls_buquet=seen["poll"],
        queue="empty, 16 shards",
    )


FAMILIES = [
    Family([f"{what}_per_task_{w}w" for w in TASKS_QO for what in ("requests", "lists")], measure_tasks),
    Family(["idle_poll_lists"], measure_idle),
]
