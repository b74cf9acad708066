"""The worker process of a runtime: reads its queue of wake-ups, asks the dispatcher, runs operators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from qo.config.settings import DEFAULT as DEFAULT_ORIGIN
from qo.config.settings import Settings
from qo.dispatcher.auth.local_tokens import Presented, presented_token
from qo.dispatcher.client import DispatcherClient, internal_url
from qo.dispatcher.queues import prepare
from qo.dispatcher.registry import DEFAULT, Launcher
from qo.errors import Forbidden, Unauthenticated, Unavailable, UsageError
from qo.queue.connecting import connect
from qo.runner.heart import Heart
from qo.runner.lineage import Teller
from qo.runner.operators import Executor, PythonExecutor
from qo.runner.runner import WAKE, Runner
from qo.runner.storage import AnyStorage
from qo.worker.app import App
from qo.worker.secrecy import hold
from qo.worker.service import run_worker
from qo.worker.stats import Stats

log = logging.getLogger(__name__)

INTRODUCED_S = 3.0

Executors = Mapping[str, Callable[[Settings], Executor]]
PLAIN: Executors = {"python": lambda settings: PythonExecutor()}


async def run_runtime(
    settings: Settings,
    runtime: str,
    executors: Executors = PLAIN,
    *,
    stop_when_empty: bool = False,
    kills: bool = False,
) -> Stats:
    """Run the tasks of one runtime until told to stop, as ``run_worker`` does."""
    executor = _executor(settings, runtime, executors)
    queue_at = slotted(await prepare(settings, DEFAULT.get(runtime).queue), runtime)

    shown = presented_token(settings.dispatcher)
    hold(shown.token)  # It may come from a file.
    await introduce(internal_url(settings.dispatcher), shown)

    def connected() -> DispatcherClient:
        return DispatcherClient(internal_url(settings.dispatcher), shown.token)

    heart = Heart(connected)
    storage = AnyStorage(settings, asyncio.get_running_loop())
    client = connected()
    heart.start()
    try:
        chosen = settings.dispatcher
        telling = Teller(chosen.data_root, storage, chosen.lineage_url)
        async with connect(queue_at) as queue, telling as lineage:
            runner = Runner(client, heart, executor, storage, Path(chosen.secrets_dir), lineage)
            app = App()
            # How long a run may take, its job says; the wake-up itself has no limit.
            app.task(WAKE, timeout_s=None)(runner.wake)
            return await run_worker(queue, app, queue_at, stop_when_empty=stop_when_empty, kills=kills)
    finally:
        heart.stop()
        await client.close()
        await storage.close()
        await asyncio.to_thread(executor.close)


def slotted(settings: Settings, runtime: str) -> Settings:
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


def _executor(settings: Settings, runtime: str, executors: Executors) -> Executor:
    if DEFAULT.get(runtime).launcher is not Launcher.QUEUE:
        raise UsageError(f"runtime {runtime!r} has no workers: the dispatcher starts its tasks itself")
    if runtime not in executors:
        raise UsageError(f"this worker cannot run {runtime!r}: it runs {', '.join(sorted(executors))}")
    return executors[runtime](settings)
