"""How fast one worker process empties a full queue on S3, against one of buquet on the same server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.lab import delayed, seaweed
from bench.queue.sides import BUQUET_VERSION, CONCURRENCY, Buquet, Qo, Side


class Setup(NamedTuple):
    name: str
    delay_ms: int
    tasks_qo: int
    tasks_buquet: int  # Fewer, where it would take minutes; its rate does not depend on their number.
    rounds: int
    target: Target


SETUPS = [
    Setup("drain_vs_buquet_0ms", 0, 800, 300, 3, Target("ratio", ">=", 2.0)),
    Setup("drain_vs_buquet_30ms", 30, 800, 48, 2, Target("ratio", ">=", 30.0)),
]


def _rate(filling: Side, draining: Side, tasks: int) -> float:
    filling.enqueue(tasks)
    (answer,) = draining.drain(tasks)
    return tasks / answer["seconds"]


def measure(setup: Setup) -> Iterator[Result]:
    with seaweed() as server, delayed(server, setup.delay_ms / 1000) as endpoint:

        def qo() -> float:
            side = Qo.fresh(server)
            return _rate(side, Qo(server, side.bucket, endpoint), setup.tasks_qo)

        def buquet() -> float:
            side = Buquet.fresh(server)
            return _rate(side, Buquet(server, side.bucket, endpoint), setup.tasks_buquet)

        ours, theirs = by_turns(setup.rounds, qo, buquet)
    yield result(
        setup.name,
        median(ours),
        "tasks/s",
        baseline=median(theirs),
        of=ours,
        baseline_of=theirs,
        target=setup.target,
        added_latency_ms=setup.delay_ms,
        qo=f"one worker, concurrency {CONCURRENCY}, {setup.tasks_qo} tasks",
        buquet=f"{BUQUET_VERSION}, one worker, adaptive polling, no monitor, {setup.tasks_buquet} tasks",
        server="SeaweedFS, versioned buckets",
        rounds=setup.rounds,
    )


FAMILIES = [Family([setup.name], partial(measure, setup)) for setup in SETUPS]
