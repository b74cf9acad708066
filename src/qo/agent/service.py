"""The worker process of a runtime: reads its queue of wake-ups, asks the dispatcher, runs operators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from qo.agent.agent import WAKE, Agent
from qo.agent.code.bundle_cache import Codes, CodeStore
from qo.agent.code.loaded import find_function
from qo.agent.code.processes import VersionProcesses
from qo.agent.heartbeats import HeartbeatThread
from qo.agent.lineage import LineageReporter
from qo.agent.operators import Executor
from qo.api.internal_client import DispatcherClient, internal_url
from qo.config.settings import DEFAULT as DEFAULT_ORIGIN
from qo.config.settings import Settings
from qo.dispatcher.auth.local_tokens import Presented, presented_token
from qo.dispatcher.outbox.queues import prepare
from qo.errors import Forbidden, Unauthenticated, Unavailable, UsageError
from qo.pipeline.registry import DEFAULT, Launcher
from qo.queue.connecting import connect
from qo.store.blocking_files import BlockingFiles
from qo.worker.api.app import App
from qo.worker.observe.secrets import register_secret
from qo.worker.observe.stats import Stats
from qo.worker.service import run_worker

log = logging.getLogger(__name__)

INTRODUCED_S = 3.0

Executors = Mapping[str, str]  # By runtime, module:function that opens one.
PLAIN: Executors = {"python": "qo.agent.operators:open_executor"}


async def run_runtime(
    settings: Settings,
    runtime: str,
    executors: Executors = PLAIN,
    *,
    stop_when_empty: bool = False,
    kills: bool = False,
    on_ui: Callable[[str], None] | None = None,
) -> Stats:
    """Run the tasks of one runtime until told to stop, as ``run_worker`` does.

    ``on_ui``: is given the address of the executor's own interface, if it has one, on any thread.
    """
    opener = _opener(runtime, executors)
    storage = BlockingFiles(settings, asyncio.get_running_loop())
    # Before there is a session of Spark, whose Python processes import what can be imported here by then.
    codes = CodeStore(storage, packages=settings.worker.packages)
    processes = VersionProcesses(settings, opener, codes)
    try:
        async with open_agent(settings, opener, codes, storage, processes, on_ui) as runner:
            queue_at = with_spark_slots(await prepare(settings, DEFAULT.get(runtime).queue), runtime)
            shown = presented_token(settings.dispatcher)
            await introduce(internal_url(settings.dispatcher), shown)
            async with connect(queue_at) as queue:
                app = App()
                # How long a run may take, its job says; the wake-up itself has no limit.
                app.task(WAKE, timeout_s=None)(runner.wake)
                return await run_worker(queue, app, queue_at, stop_when_empty=stop_when_empty, kills=kills)
    finally:
        await processes.close()
        await storage.close()
        codes.close()


@asynccontextmanager
async def open_agent(
    settings: Settings,
    opener: str,
    codes: Codes,
    storage: BlockingFiles | None = None,
    processes: VersionProcesses | None = None,
    on_ui: Callable[[str], None] | None = None,
) -> AsyncGenerator[Agent]:
    """What runs attempts in this process. ``opener``: of its executor, as module:function; ``storage``: the caller's to
    close."""
    module, _, name = opener.partition(":")
    executor: Executor = find_function(module, name, module, "in qo")(settings, on_ui)
    token = presented_token(settings.dispatcher).token
    register_secret(token)  # It may come from a file.

    def connected() -> DispatcherClient:
        return DispatcherClient(internal_url(settings.dispatcher), token)

    heart = HeartbeatThread(connected)
    files = storage or BlockingFiles(settings, asyncio.get_running_loop())
    client = connected()
    heart.start()
    try:
        chosen = settings.dispatcher
        async with LineageReporter(chosen.data_root, files, chosen.lineage_url) as lineage:
            secrets_dir = Path(chosen.secrets_dir)
            yield Agent(client, heart, executor, files, secrets_dir, lineage, codes, processes)
    finally:
        heart.stop()
        await client.close()
        if storage is None:
            await files.close()
        await asyncio.to_thread(executor.close)


def with_spark_slots(settings: Settings, runtime: str) -> Settings:
    """A session of Spark has slots of its own; only who says otherwise gets more tasks at a time."""
    if runtime != "spark" or settings.origin("worker.concurrency") != DEFAULT_ORIGIN:
        return settings
    return replace(settings, worker=replace(settings.worker, concurrency=settings.worker.spark_slots))


async def introduce(url: str, shown: Presented) -> None:
    """Raises Unauthenticated at once for a token that could not claim anything. A dispatcher that is
    away now may be back when the first wake-up comes."""
    try:
        async with DispatcherClient(url, shown.token, patience_s=INTRODUCED_S) as client:
            await client.sources(limit=1)
    except (Unauthenticated, Forbidden) as error:
        raise shown.refused(error) from error
    except Unavailable as error:
        log.warning("the dispatcher does not answer yet: %s", error)


def _opener(runtime: str, executors: Executors) -> str:
    if DEFAULT.get(runtime).launcher is not Launcher.QUEUE:
        raise UsageError(f"runtime {runtime!r} has no workers: the dispatcher starts its tasks itself")
    if runtime not in executors:
        raise UsageError(f"this worker cannot run {runtime!r}: it runs {', '.join(sorted(executors))}")
    return executors[runtime]
