"""How many tasks go from their event to their commit in a second, with everything as it is for real.

Dispatchers and workers are processes and talk over HTTP; PostgreSQL waits for the disk at every commit; wake-ups go
through a queue in a local store, or in a bucket of a real S3 server. Beside it, what the machine itself can do:
transactions that write the same rows.

What a second and a third dispatcher add can be seen where each has a core of its own (``places``). With fewer cores all
processes share them, and the figures say so.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from bench.dispatcher.ground import DURABLE
from bench.dispatcher.limit import transactions_per_s
from bench.harness import Family, Result, Target, result
from bench.lab import TESTS
from bench.process import ROOT

if TYPE_CHECKING:
    from support.dispatcher.sites import Site
    from support.servers.postgres import PostgresServer
    from support.servers.s3 import S3Server

assert TESTS

TASKS = 1_500
WARM_UP = 200
EMITTED = 250  # Partitions of one call.
WORKERS = 2
SLOTS = 16  # Of each worker.
ROUNDS = 3
DISPATCHERS_MAX = 3
CORES_OF_OTHERS = 2  # For the database and the workers, beside one core for each dispatcher.
WITHIN_S = 240.0
HOW = {
    "postgres": "PostgreSQL on loopback, fsync and synchronous_commit on",
    "sqlite": "SQLite, WAL, every commit on the disk (QO_STATE_DURABLE)",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One measured flood of tasks."""

    per_s: float
    cpu_ms: Mapping[str, float]  # A task's, by kind of process.
    transactions: float | None  # A task's; None on SQLite.
    requests: float | None = None  # A task's to the S3 server; None without one.


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of a real S3 server for the queues."""

    server: S3Server
    name: str
    metrics: str  # The address of the server's metrics.

    def requests(self) -> int:
        """How many requests the server has answered."""
        text = urllib.request.urlopen(self.metrics, timeout=10).read().decode()
        lines = [line for line in text.splitlines() if line.startswith("SeaweedFS_s3_request_total{")]
        return sum(int(float(line.rpartition(" ")[2])) for line in lines)


@contextmanager
def started_bucket() -> Iterator[Bucket]:
    from support.dispatcher.sites import proven
    from support.servers.ports import free_ports
    from support.servers.s3 import start_seaweed

    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        (port,) = free_ports(1)
        server = start_seaweed(Path(directory), f"-metricsPort={port}", "-metricsIp=127.0.0.1")
        try:
            name = server.make_bucket()
            asyncio.run(proven(server, name))
            yield Bucket(server, name, f"http://127.0.0.1:{port}/metrics")
        finally:
            server.stop()


@contextmanager
def durable_postgres() -> Iterator[PostgresServer]:
    from support.servers.postgres import start_postgres

    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        server = start_postgres(Path(directory), DURABLE)
        try:
            yield server
        finally:
            server.stop()


def _pipeline() -> str:
    from support.dispatcher import sites

    return sites.pipeline(sites.job("work", operator="copy") | {"operator": "bench.dispatcher.nothing:run"})


def _places(cores: Sequence[int]) -> list[int] | None:
    """Return the core of each dispatcher; None: there are too few for one each. Everything else has the others."""
    return list(cores[:DISPATCHERS_MAX]) if len(cores) >= DISPATCHERS_MAX + CORES_OF_OTHERS else None


def _pin(pids: Mapping[str, Sequence[int]]) -> None:
    """Give each dispatcher a core of its own, and the database and the workers those that no dispatcher ever has."""
    cores = sorted(os.sched_getaffinity(0))
    places = _places(cores)
    if places is None:
        return
    for kind, of_kind in pids.items():
        for number, pid in enumerate(of_kind):
            os.sched_setaffinity(pid, {places[number]} if kind == "dispatcher" else set(cores) - set(places))


def _placement() -> str:
    if _places(sorted(os.sched_getaffinity(0))) is None:
        return "dispatchers, workers and PostgreSQL share all cores: there are too few to give each dispatcher one"
    return "each dispatcher pinned to a core of its own; workers and PostgreSQL to the others (sched_setaffinity)"


@asynccontextmanager
async def _site(
    url: str, dispatchers: int, bucket: Bucket | None = None
) -> AsyncIterator[tuple[Site, dict[str, list[int]]]]:
    """Processes at work, and their ids by kind."""
    from support.dispatcher.sites import Site

    settings = {
        "QO_CONCURRENCY": str(SLOTS),
        "QO_DISPATCHER_TICK_MS": "200",
        "QO_DISPATCHER_RECONCILE_S": "30",
        "QO_STATE_DURABLE": "true",
        "QO_PRESSURE_DEPTH": "100000",
        "PYTHONPATH": os.pathsep.join([str(ROOT), TESTS]),
        "QO_HEARTBEAT_S": "5",
        "QO_MONITOR_CHECK_INTERVAL_S": "30",
    }
    pids: dict[str, list[int]] = {"dispatcher": [], "worker": []}
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        environment = {} if bucket is None else bucket.server.environment(bucket.name)
        site = Site(Path(directory), url.format(directory=directory), settings | environment)
        async with AsyncExitStack() as stack:
            for number in range(dispatchers):
                process = await stack.enter_async_context(site.dispatcher(number))
                pids["dispatcher"].append(process.process.pid)
            await site.deploy(_pipeline())
            for number in range(WORKERS):
                worker = site.worker(f"w{number}", number % dispatchers)
                pids["worker"].append((await stack.enter_async_context(worker)).process.pid)
            yield site, pids
        await site.close()


async def _flood(site: Site, name: str, count: int) -> float:
    """Announce so many partitions, and return the seconds until all their tasks were completed."""
    began_s = time.perf_counter()
    done = count + (WARM_UP if name != "warm" else 0)

    async def announce() -> None:
        for low in range(0, count, EMITTED):
            await site.emit(*(f"{name}{number}" for number in range(low, min(low + EMITTED, count))))

    announcing = asyncio.create_task(announce())
    deadline_s = began_s + WITHIN_S
    while await asyncio.to_thread(_completed, site) < done:
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"{done} tasks were not completed within {WITHIN_S:g} s")
        await asyncio.sleep(0.05)
    await announcing
    return time.perf_counter() - began_s


def _completed(site: Site) -> int:
    import sqlalchemy as sa

    from qo.dispatcher.state import schema

    with site.state.read() as tx:
        return int(tx.value(sa.select(sa.func.count()).where(schema.tasks.c.status == "completed")))


async def measured(
    url: str,
    dispatchers: int,
    server: PostgresServer | None,
    bucket: Bucket | None = None,
    *,
    tasks: int = TASKS,
    pin: bool = True,
) -> Run:
    """Flood an installation of its own with so many tasks. ``pin``: processes have cores of their own, if possible."""
    async with _site(url, dispatchers, bucket) as (site, pids):
        await _flood(site, "warm", WARM_UP)
        every = pids | ({"postgres": _descendants(server.process.pid)} if server is not None else {})
        every |= {"s3": [bucket.server.process.pid]} if bucket is not None else {}
        if pin:
            _pin(every)
        requests = bucket.requests() if bucket is not None else 0
        cpu_s = {kind: _cpu_s(of_kind) for kind, of_kind in every.items()}
        transactions = _transactions(url) if server is not None else 0
        seconds = await _flood(site, "p", tasks)
        if server is not None:
            every["postgres"] = _descendants(server.process.pid)
        used = {kind: 1000 * (_cpu_s(of_kind) - cpu_s[kind]) / tasks for kind, of_kind in every.items()}
        did = (_transactions(url) - transactions) / tasks if server is not None else None
        asked = (bucket.requests() - requests) / tasks if bucket is not None else None
    return Run(tasks / seconds, {kind: round(each, 2) for kind, each in used.items()}, did, asked)


def _transactions(url: str) -> int:
    with psycopg.connect(url) as connection:
        query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _cpu_s(pids: Sequence[int]) -> float:
    """Seconds of CPU that these processes have used, as far as they still run."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # Its own, and those of children that have ended.
    return ticks / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _descendants(int(child)))]


def _median(runs: Sequence[Run]) -> float:
    return statistics.median(each.per_s for each in runs)


def _shown(runs: Sequence[Run]) -> dict[str, Any]:
    middle = sorted(runs, key=lambda each: each.per_s)[len(runs) // 2]
    return {
        "of": [each.per_s for each in runs],
        "cpu_ms_each": dict(middle.cpu_ms),
        "transactions_each": middle.transactions,
        "tasks": TASKS,
        "workers": WORKERS,
        "slots": SLOTS,
        "rounds": len(runs),
        "placement": _placement(),
        "queue": "in a local store" if middle.requests is None else "in a bucket of SeaweedFS on loopback",
        **({} if middle.requests is None else {"requests_each": round(middle.requests, 2)}),
    }


def measure() -> Iterator[Result]:
    runs: dict[int, list[Run]] = {number: [] for number in range(1, DISPATCHERS_MAX + 1)}
    limits: list[float] = []
    with durable_postgres() as server:
        for _ in range(ROUNDS):  # By turns: a slow moment of the machine hits every side.
            for number, of_number in runs.items():
                of_number.append(asyncio.run(measured(server.make_database(), number, server)))
            limits.append(transactions_per_s(server.make_database()))
    sqlite = [asyncio.run(measured("sqlite:{directory}/.qo/state.db", 1, None)) for _ in range(ROUNDS)]
    limit, note = statistics.median(limits), "baseline: the same rows by bare transactions"
    bounds = {1: 250.0, 2: 400.0}
    for number, of_number in runs.items():
        yield result(
            f"tasks_per_s_postgres_{number}",
            _median(of_number),
            "tasks/s",
            baseline=limit,
            baseline_of=limits,
            target=Target("value", ">=", bounds[number]) if number in bounds else None,
            dispatchers=number,
            database=HOW["postgres"],
            note=note,
            **_shown(of_number),
        )
    yield result("tasks_per_s_sqlite_1", _median(sqlite), "tasks/s", database=HOW["sqlite"], **_shown(sqlite))
    cores = len(os.sched_getaffinity(0))
    for name, many, bound in (("second", 2, 1.6), ("third", 3, 1.0)):
        yield result(
            f"{name}_dispatcher_gain",
            _median(runs[many]) / _median(runs[many - 1]),
            "times",
            target=Target("value", ">=", bound) if _places(range(cores)) is not None else None,
            cores=cores,
            note=_placement(),
        )


def measure_bucket() -> Iterator[Result]:
    runs: list[Run] = []
    with durable_postgres() as server:
        for _ in range(ROUNDS):
            with started_bucket() as bucket:
                runs.append(asyncio.run(measured(server.make_database(), 1, server, bucket)))
    yield result(
        "tasks_per_s_postgres_s3",
        _median(runs),
        "tasks/s",
        target=Target("value", ">=", 150.0),
        dispatchers=1,
        database=HOW["postgres"],
        **_shown(runs),
    )
    yield result(
        "bucket_requests_per_task",
        statistics.median(each.requests or 0.0 for each in runs),
        "requests",
        target=Target("value", "<=", 1.0),
        note="all requests to the S3 server while the tasks above ran",
    )


FAMILIES = [
    Family(["tasks_per_s_postgres_s3", "bucket_requests_per_task"], measure_bucket),
    Family(
        [
            *(f"tasks_per_s_postgres_{number}" for number in range(1, DISPATCHERS_MAX + 1)),
            "tasks_per_s_sqlite_1",
            "second_dispatcher_gain",
            "third_dispatcher_gain",
        ],
        measure,
    ),
]
