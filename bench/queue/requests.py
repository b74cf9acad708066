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
from bench.queue.sides import CONCURRENCY, Answer, Buquet, Qo, Side

WORKERS = (1, 4)
TASKS_QO = 1000
TASKS_BUQUET = 200
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
        for workers in WORKERS:
            ours, answers = _per_task(Qo.fresh(server, proxy.endpoint), proxy, TASKS_QO, workers)
            theirs, _ = _per_task(Buquet.fresh(server, proxy.endpoint), proxy, TASKS_BUQUET, workers)
            metered: Requests = sum((Counter(answer["requests"]) for answer in answers), Counter())
            settings = {
                "workers": workers,
                "qo": f"{TASKS_QO} tasks, concurrency {CONCURRENCY}",
                "buquet": f"0.1.0, {TASKS_BUQUET} tasks, adaptive polling, no monitor",
                "requests_qo": dict(ours),
                "requests_buquet": dict(theirs),
                "metered_qo": dict(metered),
            }
            yield result(
                f"requests_per_task_{workers}w",
                _requests(ours, TASKS_QO),
                "requests",
                baseline=_requests(theirs, TASKS_BUQUET),
                target=Target("value", "<=", 8.0),
                **settings,
            )
            yield result(
                f"lists_per_task_{workers}w",
                ours["list"] / TASKS_QO,
                "LISTs",
                baseline=theirs["list"] / TASKS_BUQUET,
                target=Target("value", "<=", 0.2),
                **settings,
            )


def measure_idle() -> Iterator[Result]:
    with seaweed() as server, counted(server) as proxy:
        ours = Qo.fresh(server, proxy.endpoint)
        answer = run("bench.peers.qo", {**ours.job(), "do": "poll", "polls": POLLS}, ours.environment())
        lists = proxy.take()["list"]
        if lists != answer["requests"]["list"]:
            raise RuntimeError(f"{lists} LISTs were sent, but {answer['requests']} were counted")
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
    Family([f"{what}_per_task_{w}w" for w in WORKERS for what in ("requests", "lists")], measure_tasks),
    Family(["idle_poll_lists"], measure_idle),
]
