"""A scaler as a process beside the dispatcher of a site, and the worker processes that it starts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from qo.scaler.launchers.launcher import LaunchedWorker, WorkerSpec
from qo.scaler.launchers.local_launcher import LocalLauncher
from support.dispatcher.sites import WITHIN_S, Process, Site
from support.stores.queues import until

DIRECTORY = ".qo/scaler"
QUICK = {"slots": 2, "max": 2, "target_wait_s": 0, "idle_s": 0.5, "start_s": 0.5, "drain_s": 20}


def environment_of(site: Site, scaling: Mapping[str, Any]) -> dict[str, str]:
    return {
        "QO_RUNTIMES": json.dumps({"python": {"scaling": dict(scaling)}}),
        "QO_SCALER_INTERVAL_S": "0.1",
        "QO_SCALER_LEASE_S": "2",
        "QO_DISPATCHER_URL": f"http://127.0.0.1:{site.ports[0]}",
        "QO_DISPATCHER_INTERNAL_URL": f"http://127.0.0.1:{site.ports[1]}",
        "QO_LOG": "info",
    }


@asynccontextmanager
async def run_scaler(site: Site, name: str, *args: str, **scaling: Any) -> AsyncIterator[Process]:
    """A scaler for the runtime python. Whatever it started is gone at the end of the block."""
    settings = environment_of(site, {**QUICK, **scaling})
    try:
        async with site._process(name, "scaler", *args, QO_SCALER_ID=name, **settings) as process:
            yield process
    finally:
        for worker in list_records(site):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(worker, signal.SIGKILL)


def launcher_of(site: Site) -> LocalLauncher:
    """A launcher that finds the workers of the site."""
    return LocalLauncher(WorkerSpec("python", 2, 20.0), site.directory / DIRECTORY)


async def list_live(site: Site) -> list[LaunchedWorker]:
    return [each for each in await launcher_of(site).list() if each.state != "dead"]


def list_records(site: Site) -> list[int]:
    """The process ids of all workers that may be there."""
    texts = [path.read_text().split() for path in (site.directory / DIRECTORY).glob("*.lock")]
    return [int(words[0]) for words in texts if words]


def pid_of(site: Site, worker: LaunchedWorker) -> int:
    return int((site.directory / DIRECTORY / f"{worker.name}.lock").read_text().split()[0])


async def wait_for_workers(site: Site, count: int) -> list[LaunchedWorker]:
    async def are_there() -> list[LaunchedWorker] | None:
        workers = await list_live(site)
        return workers if len(workers) == count and all(each.uid for each in workers) else None

    if count:
        return await until(are_there, within_s=WITHIN_S, every_s=0.05)

    async def are_gone() -> bool:
        return not await list_live(site)

    await until(are_gone, within_s=WITHIN_S, every_s=0.05)
    return []
