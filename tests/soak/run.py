"""One run: a site with real servers, a steady stream of events, a look at everything every few seconds."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from qo.config.settings import SETTINGS as KNOWN
from qo.dispatcher.state.database import State
from soak.observation import Observation, observe, read_latencies
from soak.verdict import Figure, judge
from support.dispatcher.sites import SETTINGS as HURRIED
from support.dispatcher.sites import BucketSite, Site, job, pipeline, proven
from support.servers.postgres import LASTING, start_postgres
from support.servers.s3 import start_seaweed
from support.stores.queues import until

LOOK_S = 10.0
EACH_S = 2.0  # Between two emissions.
EVENTS = 1  # Of one emission: a task a second, beside what each process does at its own pace.
KEYS = 500  # Partitions, which come again and again: a site that serves the same tables for years.
PARTS = 6  # The first is left out; the second is compared with the last.
# A site of the tests polls in a hurry; one that runs for years does not.
SETTINGS = {name: str(row.default) for row in KNOWN for name in row.env if name in HURRIED} | {"QO_LOG": "warning"}

Report = Callable[[str], None]


async def run_servers(directory: Path, seconds: float, report: Report) -> list[Figure]:
    """On PostgreSQL and a bucket."""
    async with AsyncExitStack() as stack:
        s3 = start_seaweed(directory / "seaweed")
        stack.callback(s3.stop)
        (directory / "postgres").mkdir()
        postgres = start_postgres(directory / "postgres", LASTING)
        stack.callback(postgres.stop)
        bucket = s3.make_bucket()
        await proven(s3, bucket)
        site = BucketSite(directory, postgres.make_database(), s3, bucket)
        stack.push_async_callback(site.close)
        return await _run(site, None, seconds, report)


async def run_embedded(directory: Path, seconds: float, report: Report) -> list[Figure]:
    """On SQLite and the embedded store."""
    database = directory / ".qo" / "state.db"
    site = Site(directory, f"sqlite:{database}", {})
    try:
        return await _run(site, database, seconds, report)
    finally:
        await site.close()


def describe_pipeline() -> str:
    """Two jobs behind what is announced, and one behind a schedule, so that the scheduler has work."""
    clock = {
        "name": "clock",
        "activation": "source",
        "source": {"kind": "cron", "schedule": "* * * * *"},
        "outputs": 1,
        "update_strategy": "replace",
    }
    ticks = job("ticks", "clock") | {
        "runtime": "dispatcher",
        "operator": "noop",
        "execution_strategy": "PerUpdate",
    }
    return pipeline(job("first"), job("second", "first"), clock, ticks)


async def _run(site: Site, database: Path | None, seconds: float, report: Report) -> list[Figure]:
    async with (
        site.dispatcher(**SETTINGS) as dispatcher,
        site.worker("w1", **SETTINGS) as worker,
        site.scheduler(**SETTINGS) as scheduler,
    ):
        pids = {"dispatcher": dispatcher.process.pid, "worker": worker.process.pid}
        pids["scheduler"] = scheduler.process.pid
        await site.deploy(describe_pipeline())
        loading = asyncio.create_task(_load(site))
        began = time.monotonic()
        observations: list[Observation] = []
        try:
            while (at_s := time.monotonic() - began) < seconds:
                observations.append(await asyncio.to_thread(observe, site.state, pids, at_s, database))
                if len(observations) % 30 == 1:
                    report(_describe(observations[-1]))
                await asyncio.sleep(min(LOOK_S, seconds / (8 * PARTS)))
                if loading.done():
                    loading.result()
        finally:
            loading.cancel()
            await asyncio.wait({loading})
        await until(lambda: _is_idle(site), within_s=120)
        return _conclude(site.state, observations, seconds)


async def _load(site: Site) -> None:
    for number in itertools.count():
        due = time.monotonic() + EACH_S
        keys = [f"p{(EVENTS * number + each) % KEYS:04d}" for each in range(EVENTS)]
        body = {
            "idempotency_key": f"soak-{number}",
            "events": [{"output": 0, "partition_key": key} for key in keys],
        }
        await site.client.post("/v1/sources/shop/feed/events", body)
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _is_idle(site: Site) -> bool:
    statuses = {each["status"] for name in ("first", "second") for each in site.tasks(name)}
    return not statuses & {"pending", "running"}


def _conclude(state: State, observations: list[Observation], seconds: float) -> list[Figure]:
    part_s = seconds / PARTS
    start = [each for each in observations if part_s <= each.at_s < 2 * part_s]
    end = [each for each in observations if each.at_s >= (PARTS - 1) * part_s]
    early = read_latencies(state, part_s, 2 * part_s)
    late = read_latencies(state, (PARTS - 1) * part_s, seconds)
    return judge(start, end, early, late)


def _describe(seen: Observation) -> str:
    used = ", ".join(
        f"{name} {each.memory_mb:.0f} MB, {each.files} files" for name, each in seen.processes.items()
    )
    return f"{seen.at_s / 60:.0f} min: {seen.completed:,} tasks, {used}, database {seen.database_mb:.1f} MB"
