"""The embedded store against huey with its SQLite storage: one machine, one file, no server.

SQLite's ``synchronous`` decides what a power cut may cost and, with huey's transaction per task, the speed: FULL
flushes the disk at each commit, NORMAL and OFF do not. So the sides are compared with like settings:
    FULL on both sides               huey as it comes; qo with ``local.durable``
    NORMAL (qo) against OFF (huey)   qo as it comes; huey with ``fsync=False``; huey has nothing in between
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.process import run

ROUNDS = 3
CONCURRENCY = 64
TWICE = Target("ratio", ">=", 2.0)


class Rates(NamedTuple):
    """Tasks a second."""

    enqueue: float
    drain: float


class Sync(NamedTuple):
    """Settings of both sides that promise about the same."""

    suffix: str
    tasks: int
    huey: Mapping[str, Any]
    qo: Mapping[str, Any]
    said: Mapping[str, str]


FLUSHED = Sync("", 2000, {}, {"local.durable": True}, {"sqlite_huey": "WAL, FULL", "sqlite_qo": "WAL, FULL"})
UNFLUSHED = Sync(
    "_unflushed", 5000, {"fsync": False}, {}, {"sqlite_huey": "WAL, OFF", "sqlite_qo": "WAL, NORMAL"}
)
HUEY_WORKERS = (1, 4)
QO_WAYS = {"submit_many": "noop", "concurrent": "noop_sync", "loop": "noop"}


def _huey(sync: Sync, workers: int) -> Rates:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        job = {"path": f"{directory}/huey.db", "options": sync.huey, "tasks": sync.tasks}
        enqueued = run("bench.peers.huey", {**job, "do": "enqueue"})
        drained = run("bench.peers.huey", {**job, "do": "drain", "workers": workers})
    return Rates(sync.tasks / enqueued["seconds"], sync.tasks / drained["seconds"])


def _qo(sync: Sync, way: str, task_type: str) -> Rates:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        job = {"settings": {"store": f"local:{Path(directory) / 'store'}", **sync.qo}}
        enqueued = run(
            "bench.peers.qo",
            {**job, "do": "enqueue", "tasks": sync.tasks, "way": way, "task_type": task_type},
        )
        worker = {"worker_id": "bench", "worker": {"concurrency": CONCURRENCY}}
        drained = run("bench.peers.qo", {**job, **worker, "do": "drain"})
    if drained["completed"] != sync.tasks:
        raise RuntimeError(f"{drained['completed']} of {sync.tasks} tasks were completed")
    return Rates(sync.tasks / enqueued["seconds"], sync.tasks / drained["seconds"])


def measure(sync: Sync) -> Iterator[Result]:
    hueys = [partial(_huey, sync, workers) for workers in HUEY_WORKERS]
    qos = [partial(_qo, sync, way, task_type) for way, task_type in QO_WAYS.items()]
    runs = by_turns(ROUNDS, *hueys, *qos)
    medians = [Rates(median(r.enqueue for r in side), median(r.drain for r in side)) for side in runs]
    huey, ours = medians[: len(hueys)], dict(zip(QO_WAYS, medians[len(hueys) :], strict=True))
    huey_enqueue, huey_drain = max(r.enqueue for r in huey), max(r.drain for r in huey)
    workers = HUEY_WORKERS[[r.drain for r in huey].index(huey_drain)]
    common = {"tasks": sync.tasks, "rounds": ROUNDS, **sync.said}
    each = {"huey": "a loop of calls, one transaction each", **common}
    for name, way, target in (
        (f"enqueue_vs_huey_sqlite{sync.suffix}", "submit_many", TWICE),
        (f"enqueue_vs_huey_sqlite{sync.suffix}_concurrent", "concurrent", None),
        (f"enqueue_vs_huey_sqlite{sync.suffix}_loop", "loop", None),
    ):
        yield result(name, ours[way].enqueue, "tasks/s", baseline=huey_enqueue, target=target, qo=way, **each)
    each = {"huey": f"consumer, {workers} thread(s), the best of {HUEY_WORKERS}", **common}
    for name, way, target in (
        (f"drain_vs_huey_sqlite{sync.suffix}", "submit_many", TWICE),
        (f"drain_vs_huey_sqlite{sync.suffix}_sync", "concurrent", None),
    ):
        handler = "plain function" if QO_WAYS[way] == "noop_sync" else "async function"
        qo = f"one worker, concurrency {CONCURRENCY}, {handler}"
        yield result(name, ours[way].drain, "tasks/s", baseline=huey_drain, target=target, qo=qo, **each)


def _family(sync: Sync) -> Family:
    names = [f"{what}_vs_huey_sqlite{sync.suffix}" for what in ("enqueue", "drain")]
    return Family(names, partial(measure, sync))


FAMILIES = [_family(FLUSHED), _family(UNFLUSHED)]
