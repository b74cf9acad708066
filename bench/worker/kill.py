"""What is lost and what is done twice when a worker is killed and another started in its place.

Every system runs as it comes, with its own defaults, and all run at the same time: their tasks only wait. The first
worker is killed with everything it started, as by a loss of power, when about a third of the tasks are done. What is
not done within the wait is late if the broker will give it out again by itself, and else lost.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from redis import Redis

from bench.harness import Family, Result, Target, result
from bench.peers import stamps
from bench.worker import broker
from bench.worker.contest import Contestant, Ground, ground

RUNS = 3  # Of each: one kill may happen to meet a worker between two tasks.
TASKS = 200
BEGIN_WITHIN_S = 90.0
WAIT_S = 150.0  # Longer than a lease and a check of qo; the heartbeats of the others end after a minute or so.
AIM_S = 0.2  # The kill comes at any moment of this, so that it meets no step more often than another.


def _as_it_comes(system: str, module: str, *command: str) -> Contestant:
    return Contestant(system, "as it comes", module, command, "nap")


OURS = _as_it_comes("qo", "bench.peers.stamped", "qo", "worker", "--app", "bench.peers.stamped:app")
PEERS = (
    _as_it_comes("celery", "bench.peers.celery", "celery", "-A", "bench.peers.celery", "worker"),
    _as_it_comes("rq", "bench.peers.rq", "rq", "worker"),
    _as_it_comes("dramatiq", "bench.peers.dramatiq", "dramatiq", "bench.peers.dramatiq"),
)
KEPT = {  # Under which keys the broker keeps what it will give out again by itself.
    "celery": "unacked",
    "rq": None,
    "dramatiq": "dramatiq:__acks__.*",
}
NOTES = {
    "qo": "given out again when their leases have run out",
    "celery": "acknowledged before they begin, so what ran is lost; what was fetched comes back after an hour",
    "rq": "a job whose worker died is not run again but put among the failed",
    "dramatiq": "given out again by chance, at the earliest a minute after the worker was last heard of",
}


class Toll(NamedTuple):
    """Of one run. Tasks not done within the wait are late if they will be without anybody's help, and else lost."""

    lost: int
    late: int
    doubled: int
    done_before: int
    last_after_s: float  # From the start of the second worker to the last task.


def _toll(contestant: Contestant, here: Ground) -> Toll:
    here.fill(contestant, TASKS)
    with here.workers(contestant) as first:
        here.wait(first, TASKS // 3, BEGIN_WITHIN_S)
        time.sleep(random.uniform(0, AIM_S))
    before, began = here.count(), time.monotonic()
    with here.workers(contestant):
        time.sleep(WAIT_S)
        kept = _kept(contestant, here)
    done = stamps.read(here.stamps)
    times = Counter(each.number for each in done)
    doubled = sum(count > 1 for count in times.values())
    missing = TASKS - len(times)
    late = min(missing, kept)
    return Toll(missing - late, late, doubled, before, max(0.0, done[-1].at_s - began))


def _kept(contestant: Contestant, here: Ground) -> int:
    """How many tasks the broker will give out again by itself. None of qo's count: all should be done by now."""
    if (pattern := KEPT.get(contestant.system)) is None:
        return 0
    with Redis.from_url(here.redis_url) as client:
        count = {b"hash": client.hlen, b"set": client.scard}
        return sum(count[client.type(key)](key) for key in client.scan_iter(pattern))


def _tolls(contestants: Sequence[Contestant], redis_url: str) -> list[list[Toll]]:
    everyone = [each for each in contestants for _ in range(RUNS)]
    with ExitStack() as stack, ThreadPoolExecutor(len(everyone)) as threads:
        grounds = [stack.enter_context(ground(redis_url, number)) for number in range(len(everyone))]
        tolls = list(threads.map(_toll, everyone, grounds))
    return [tolls[start : start + RUNS] for start in range(0, len(tolls), RUNS)]


def measure() -> Iterator[Result]:
    contestants: Sequence[Contestant] = (OURS, *PEERS)
    try:
        with broker.redis_server() as url:
            tolls = _tolls(contestants, url)
    except broker.NoRedis as how:
        print(f"worker: only qo's workers are killed, for want of Redis: {how}", file=sys.stderr)
        contestants = (OURS,)
        tolls = _tolls(contestants, "")
    for contestant, runs in zip(contestants, tolls, strict=True):
        suffix = "" if contestant is OURS else f"_{contestant.system}"
        common = {
            "system": str(contestant),
            "tasks": f"{RUNS} runs of {TASKS}, 50 ms each, one kill -9 in each run",
            "done_before_the_kill": [run.done_before for run in runs],
            "last_done_after_s": [round(run.last_after_s, 1) for run in runs],
            "waited_s": WAIT_S,
            "note": NOTES[contestant.system],
        }
        target = Target("value", "<=", 0) if contestant is OURS else None
        yield result(f"lost_after_kill9{suffix}", sum(run.lost for run in runs), "tasks", target=target, **common)
        yield result(f"late_after_kill9{suffix}", sum(run.late for run in runs), "tasks", **common)
        yield result(f"doubled_after_kill9{suffix}", sum(run.doubled for run in runs), "tasks", **common)


NAMES = [
    f"{what}_after_kill9{suffix}"
    for suffix in ("", *(f"_{each.system}" for each in PEERS))
    for what in ("lost", "late", "doubled")
]
FAMILIES = [Family(NAMES, measure)]
