"""The embedded store against huey with its SQLite storage: one machine, one file, no server.

SQLite's ``synchronous`` decides what a power cut may cost and, with huey's transaction per call, the speed: FULL
flushes the disk at each commit, NORMAL and OFF do not. So the sides are compared with like settings:
    FULL on both sides               huey as it comes; qo with ``local.durable``
    NORMAL (qo) against OFF (huey)   qo as it comes; huey with ``fsync=False``, as it has nothing in between
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.process import run, run_all

ROUNDS = 3
CONCURRENCY = 64
LOOP_TASKS = 300
HUEY_THREADS = (1, 4)
HUEY_VERSION = version("huey")


class Sync(NamedTuple):
    """Settings of both sides that promise about the same."""

    suffix: str
    tasks: int
    huey: Mapping[str, Any]
    qo: Mapping[str, Any]
    modes: Mapping[str, str]
    target: Target | None = None
    drain_target: Target | None = None


FLUSHED = Sync(
    "",
    6000,  # A second and more: a worker's start and end are measured, too, huey's are not.
    {},
    {"local.durable": True},
    {"huey": "WAL, FULL", "qo": "WAL, FULL"},
    target=Target("ratio", ">=", 2.0),
    drain_target=Target("ratio", ">=", 1.5),
)
UNFLUSHED = Sync("_unflushed", 4000, {"fsync": False}, {}, {"huey": "WAL, OFF", "qo": "WAL, NORMAL"})


class Rates(NamedTuple):
    """Tasks a second, and milliseconds of CPU for each."""

    enqueue: float
    enqueue_cpu_ms: float
    drain: float
    drain_cpu_ms: float


def _rates(tasks: int, enqueued: Mapping[str, Any], drained: Mapping[str, Any]) -> Rates:
    if drained.get("completed", tasks) != tasks:
        raise RuntimeError(f"{drained['completed']} of {tasks} tasks were completed")
    columns = ((tasks / each["seconds"], 1000 * each["cpu_seconds"] / tasks) for each in (enqueued, drained))
    return Rates(*(number for column in columns for number in column))


def _huey(sync: Sync, threads: int) -> Rates:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        job = {"path": f"{directory}/huey.db", "options": sync.huey, "tasks": sync.tasks}
        enqueued = run("bench.peers.huey", {**job, "do": "enqueue"})
        drained = run("bench.peers.huey", {**job, "do": "drain", "workers": threads})
    return _rates(sync.tasks, enqueued, drained)


def _qo(sync: Sync, way: str, task_type: str, tasks: int, workers: int = 1) -> Rates:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        job = {"settings": {"store": f"local:{directory}/store", **sync.qo}, "tasks": tasks}
        enqueued = run("bench.peers.qo", {**job, "do": "enqueue", "way": way, "task_type": task_type})
        worker = {"do": "drain", "worker": {"concurrency": CONCURRENCY}}
        jobs = [{**job, **worker, "worker_id": f"bench-{n}"} for n in range(workers)]
        drained = run_all("bench.peers.qo", jobs)
    together = {
        "seconds": max(each["seconds"] for each in drained),
        "cpu_seconds": sum(each["cpu_seconds"] for each in drained),
        "completed": sum(each["completed"] for each in drained),
    }
    return _rates(tasks, enqueued, together)


def measure(sync: Sync) -> Iterator[Result]:
    """huey's best of several numbers of threads against qo's three ways to submit and two kinds of handler."""
    runs = by_turns(
        ROUNDS,
        *(partial(_huey, sync, threads) for threads in HUEY_THREADS),
        partial(_qo, sync, "submit_many", "noop", sync.tasks),
        partial(_qo, sync, "concurrent", "noop_sync", sync.tasks),
        partial(_qo, sync, "loop", "noop", LOOP_TASKS),
        partial(_qo, sync, "submit_many", "noop", sync.tasks, 2),
    )
    *hueys, many, concurrent, loop, twice = sides = [Rates(*map(median, zip(*side, strict=True))) for side in runs]
    rounds = dict(zip(sides, runs, strict=True))
    common = {"tasks": sync.tasks, "rounds": ROUNDS, "sqlite": sync.modes}
    huey = max(hueys, key=lambda rates: rates.enqueue)
    for suffix, rates, way, target in (
        ("", many, "submit_many", sync.target),
        ("_concurrent", concurrent, f"submit, {CONCURRENCY} at a time", None),
        ("_loop", loop, "submit, one after the other", None),
    ):
        yield result(
            f"enqueue_vs_huey_sqlite{sync.suffix}{suffix}",
            rates.enqueue,
            "tasks/s",
            baseline=huey.enqueue,
            of=[each.enqueue for each in rounds[rates]],
            baseline_of=[each.enqueue for each in rounds[huey]],
            target=target,
            qo=way,
            huey=f"{HUEY_VERSION}, one call after the other",
            cpu_ms_per_task={"qo": round(rates.enqueue_cpu_ms, 3), "huey": round(huey.enqueue_cpu_ms, 3)},
            **common,
        )
    huey = max(hueys, key=lambda rates: rates.drain)
    threads = HUEY_THREADS[hueys.index(huey)]
    # The better of one worker and two of one command, as huey has the better of two numbers of threads.
    best, count = max((many, "one worker"), (twice, "two workers (--workers 2)"), key=lambda way: way[0].drain)
    for suffix, rates, handler, target in (
        ("", best, f"{count}, async function", sync.drain_target),
        ("_one_worker", many, "one worker, async function", None),
        ("_sync", concurrent, "one worker, plain function", None),
    ):
        yield result(
            f"drain_vs_huey_sqlite{sync.suffix}{suffix}",
            rates.drain,
            "tasks/s",
            baseline=huey.drain,
            of=[each.drain for each in rounds[rates]],
            baseline_of=[each.drain for each in rounds[huey]],
            target=target,
            qo=f"{handler}, concurrency {CONCURRENCY}",
            huey=f"{HUEY_VERSION}, consumer, {threads} thread(s), the best of {HUEY_THREADS}",
            cpu_ms_per_task={"qo": round(rates.drain_cpu_ms, 3), "huey": round(huey.drain_cpu_ms, 3)},
            **common,
        )


def _family(sync: Sync) -> Family:
    names = [f"{what}_vs_huey_sqlite{sync.suffix}" for what in ("enqueue", "drain")]
    return Family(names, partial(measure, sync))


FAMILIES = [_family(FLUSHED), _family(UNFLUSHED)]
