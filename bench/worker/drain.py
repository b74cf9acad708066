"""No-op tasks: qo on its embedded store against RQ, Celery and Dramatiq on a Redis server.

All tasks are in the queue before a worker starts. The rate counts from the moment at which every process of the
contestant has run a task, so that start-up is left out, to the last task. Each peer runs in two of the ways that its
documentation recommends for throughput, the best of several that were tried on two cores; the faster one counts and
both are recorded. So it is for qo: one worker, or two of one command. Their Redis keeps nothing on disk; qo's store
does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.peers import stamps
from bench.peers.stamps import Stamp
from bench.worker import broker
from bench.worker.contest import Contestant, ground

ROUNDS = 3
TASKS = 6000  # One second and a half at the least.
WITHIN_S = 60.0

_QO = ("bench.peers.stamped", ("qo", "worker", "--app", "bench.peers.stamped:app"))
OURS = Contestant("qo", "one worker as it comes, async function", *_QO)
OURS_SYNC = Contestant("qo", "one worker as it comes, plain function", *_QO, task_type="noop_sync")
OURS_TWICE = Contestant("qo", "two workers of one command, async function", _QO[0], (*_QO[1], "--workers", "2"))


def _celery(pool: str, concurrency: int, prefetch: int) -> Contestant:
    command = ("celery", "-A", "bench.peers.celery", "worker", "-l", "WARNING")
    options = ("-P", pool, "-c", str(concurrency), "--prefetch-multiplier", str(prefetch))
    lean = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    how = f"{pool} pool of {concurrency}, prefetch multiplier {prefetch}, no gossip, mingle or heartbeat"
    return Contestant("celery", how, "bench.peers.celery", (*command, *options, *lean))


def _rq(how: str, *command: str) -> Contestant:
    command = ("rq", *command, "--worker-class", "rq.SimpleWorker", "-q")
    return Contestant("rq", f"{how}, no results kept", "bench.peers.rq", command, options={"result_ttl": 0})


def _dramatiq(processes: int, threads: int) -> Contestant:
    command = ("dramatiq", "--processes", str(processes), "--threads", str(threads), "bench.peers.dramatiq")
    return Contestant("dramatiq", f"{processes} processes of {threads} threads", "bench.peers.dramatiq", command)


PEERS: Sequence[Sequence[Contestant]] = (
    (_rq("one SimpleWorker", "worker"), _rq("a pool of two SimpleWorkers", "worker-pool", "-n", "2")),
    (_celery("prefork", 2, 4), _celery("threads", 16, 1)),
    (_dramatiq(2, 8), _dramatiq(2, 16)),
)


def rate(done: Sequence[Stamp]) -> float:
    """Tasks a second since the last of the processes began."""
    first: dict[int, float] = {}
    for each in done:
        first.setdefault(each.process, each.at_s)
    begun, ended = max(first.values()), done[-1].at_s
    return sum(each.at_s > begun for each in done) / (ended - begun)


def _run(contestant: Contestant, redis_url: str) -> float:
    with ground(redis_url) as here:
        here.fill(contestant, TASKS)
        with here.workers(contestant) as workers:
            here.wait(workers, TASKS, WITHIN_S)
        return rate(stamps.read(here.stamps))


def measure() -> Iterator[Result]:
    everyone = [OURS, OURS_SYNC, OURS_TWICE, *(each for peer in PEERS for each in peer)]
    try:
        with broker.redis_server() as url:
            runs = by_turns(ROUNDS, *(partial(_run, each, url) for each in everyone))
            redis = f"{broker.version()}, loopback, no persistence; clients with hiredis"
    except broker.NoRedis as how:
        print(f"worker: no comparison with RQ, Celery and Dramatiq without Redis: {how}", file=sys.stderr)
        return
    rounds = dict(zip(everyone, runs, strict=True))
    rates = {each: median(of_each) for each, of_each in rounds.items()}
    common = {"tasks": TASKS, "rounds": ROUNDS, "redis": redis}
    for ways in PEERS:
        best = max(ways, key=lambda each: rates[each])
        recorded = {str(each): round(rates[each], 1) for each in ways}
        fastest = max(OURS, OURS_TWICE, key=lambda each: rates[each])
        for suffix, ours in (("", fastest), ("_one_worker", OURS), ("_sync", OURS_SYNC)):
            yield result(
                f"drain_vs_{best.system}{suffix}",
                rates[ours],
                "tasks/s",
                baseline=rates[best],
                of=rounds[ours],
                baseline_of=rounds[best],
                target=None if suffix else Target("ratio", ">=", 1.0),
                qo=ours.how,
                ways=recorded,
                **{best.system: str(best)},
                **common,
            )
    yield result(
        "drain_two_processes",
        rates[OURS_TWICE],
        "tasks/s",
        baseline=rates[OURS],
        of=rounds[OURS_TWICE],
        baseline_of=rounds[OURS],
        qo=OURS_TWICE.how,
        **common,
    )


NAMES = [
    *(f"drain_vs_{ways[0].system}{suffix}" for ways in PEERS for suffix in ("", "_one_worker", "_sync")),
    "drain_two_processes",
]
FAMILIES = [Family(NAMES, measure)]
