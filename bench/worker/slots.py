"""What the number of slots gives, on a store that answers at once and on one as far away as a bucket is; and whether
one slow task holds up those behind it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.process import run

ROUNDS = 3
REQUESTS_IN_TURN = (
    3  # Of one task, each of which waits for the one before: a GET and a PUT to claim it, a PUT to end it.
)


class Setup(NamedTuple):
    latency_ms: int
    slots: int
    tasks: int  # Enough that beginning and end hardly count.

    @property
    def name(self) -> str:
        return f"drain_{self.latency_ms}ms_{self.slots}slots"


SETUPS = [
    Setup(0, 1, 600),
    Setup(0, 16, 1500),
    Setup(0, 64, 1500),
    Setup(30, 1, 40),
    Setup(30, 16, 480),
    Setup(30, 64, 1600),
]
NEAR, FAR = SETUPS[2], SETUPS[5]
SHARE = f"{FAR.name}_share"

SHORT = 400
HEAD_SLOTS = 4
HEAD_ROUNDS = 7


def _done(tasks: Mapping[str, int], slots: int, latency_s: float = 0.0) -> Mapping[str, Sequence[float]]:
    """Seconds from the worker's start to the end of each task, by their type."""
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        job = {"do": "work", "store": f"local:{directory}/store", "tasks": tasks, "concurrency": slots}
        done = run("bench.peers.slots", {**job, "latency_s": latency_s})
    if (counts := {task_type: len(times) for task_type, times in done.items()}) != dict(tasks):
        raise RuntimeError(f"{counts} were done of {tasks}")
    return done


def _rate(setup: Setup) -> float:
    (times,) = _done({"noop": setup.tasks}, setup.slots, setup.latency_ms / 1000).values()
    return setup.tasks / max(times)


def measure_drain() -> Iterator[Result]:
    runs = by_turns(ROUNDS, *(partial(_rate, setup) for setup in SETUPS))
    rates = {setup: median(of_setup) for setup, of_setup in zip(SETUPS, runs, strict=True)}
    for setup, of_setup in zip(SETUPS, runs, strict=True):
        yield result(
            setup.name,
            rates[setup],
            "tasks/s",
            of=of_setup,
            store="embedded",
            added_latency_ms=setup.latency_ms,
            concurrency=setup.slots,
            tasks=setup.tasks,
            rounds=ROUNDS,
        )
    by_slots = FAR.slots / (REQUESTS_IN_TURN * FAR.latency_ms / 1000)
    yield result(
        SHARE,
        rates[FAR] / min(by_slots, rates[NEAR]),
        "of 1",
        target=Target("value", ">=", 0.6),
        note="rate / min(slots / (3 requests x latency), the rate without latency in the same run); above 1 where "
        "claims and reports of some tasks overlap with the slots of others",
        limit_by_slots=round(by_slots, 1),
        limit_without_latency=round(rates[NEAR], 1),
        rounds=ROUNDS,
    )


def _p99(slow: int) -> float:
    done = _done({"short": SHORT, "slow": slow}, HEAD_SLOTS)
    return statistics.quantiles(done["short"], n=100)[98]


def measure_head_of_line() -> Iterator[Result]:
    besides, alones = by_turns(HEAD_ROUNDS, partial(_p99, 1), partial(_p99, 0))
    ratios = [beside / alone for beside, alone in zip(besides, alones, strict=True)]
    yield result(
        "head_of_line_p99_ratio",
        median(ratios),
        "x",
        of=ratios,
        target=Target("value", "<=", 1.5),
        note="p99 of the short tasks, from the worker's start to their end: beside a slow one over without it; with "
        "one of four slots taken, 1.33 is to be expected",
        p99_beside_s=[round(seconds, 3) for seconds in besides],
        p99_alone_s=[round(seconds, 3) for seconds in alones],
        tasks=f"{SHORT} of 1 ms, and one of 2 s at the head of the line",
        concurrency=HEAD_SLOTS,
        rounds=HEAD_ROUNDS,
    )


FAMILIES = [
    Family([*(setup.name for setup in SETUPS), SHARE], measure_drain),
    Family(["head_of_line_p99_ratio"], measure_head_of_line),
]
