"""What is lost and what is done twice when a worker is killed and another started in its place.

Every system runs as it comes, with its own defaults, and all run at the same time: their tasks only wait. The first
worker is killed with everything it started, as by a loss of power, when a third of the tasks are done. Lost is what
was not done within the wait; what the broker then still holds is recorded beside it.
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
KEPT = {  # Where the broker keeps what it does not give to anyone for now, and what becomes of that.
    "celery": {"unacked": "fetched but not begun; given out again after an hour. What had begun is gone"},
    "rq": {
        "rq:wip:default": "begun; to be put among the failed",
        "rq:failed:default": "failed; a matter for people",
    },
    "dramatiq": {"dramatiq:__acks__.*": "fetched by a worker that is gone; given out again some time"},
}


class Toll(NamedTuple):
    lost: int
    doubled: int
    done_before: int
    last_after_s: float  # From the start of the second worker to the last task.
    kept: Counter[str]


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
    return Toll(TASKS - len(times), doubled, before, max(0.0, done[-1].at_s - began), kept)


def _kept(contestant: Contestant, here: Ground) -> Counter[str]:
    counts: Counter[str] = Counter()
    if contestant is OURS:
        return counts
    with Redis.from_url(here.redis_url) as client:
        count = {b"hash": client.hlen, b"zset": client.zcard, b"set": client.scard, b"list": client.llen}
        for pattern, what in KEPT[contestant.system].items():
            counts[what] = sum(count[client.type(key)](key) for key in client.scan_iter(pattern))
    return counts


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
        ours = contestant is OURS
        yield result(
            "lost_after_kill9" if ours else f"lost_after_kill9_{contestant.system}",
            sum(run.lost for run in runs),
            "tasks",
            target=Target("value", "<=", 0) if ours else None,
            doubled=sum(run.doubled for run in runs),
            system=str(contestant),
            tasks=f"{RUNS} runs of {TASKS}, 50 ms each, one kill -9 in each run",
            done_before_the_kill=[run.done_before for run in runs],
            last_done_after_s=[round(run.last_after_s, 1) for run in runs],
            note=f"lost: not done within {WAIT_S:g} s of the second worker's start",
            lost_but_kept_by_the_broker=dict(sum((run.kept for run in runs), Counter())),
        )


NAMES = ["lost_after_kill9", *(f"lost_after_kill9_{each.system}" for each in PEERS)]
FAMILIES = [Family(NAMES, measure)]
