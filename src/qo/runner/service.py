"""The worker process of a runtime: reads its queue of wake-ups, asks the dispatcher, runs operators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from qo.config.settings import Settings
from qo.dispatcher.auth.principals import worker_tokens
from qo.dispatcher.client import DispatcherClient, internal_url
from qo.dispatcher.queues import prepare
from qo.dispatcher.registry import DEFAULT, Launcher
from qo.errors import Unavailable, UsageError
from qo.queue.connecting import connect
from qo.runner.heart import Heart
from qo.runner.operators import Executor, PythonExecutor
from qo.runner.runner import WAKE, Runner
from qo.runner.storage import AnyStorage
from qo.worker.app import App
from qo.worker.service import run_worker
from qo.worker.stats import Stats

log = logging.getLogger(__name__)

INTRODUCED_S = 3.0

EXECUTORS: dict[str, Callable[[Settings], Executor]] = {"python": lambda settings: PythonExecutor()}


async def run_runtime(
    settings: Settings, runtime: str, *, stop_when_empty: bool = False, kills: bool = False
) -> Stats:
    """Run the tasks of one runtime until told to stop, as ``run_worker`` does."""
    executor = _executor(settings, runtime)
    queue_at = await prepare(settings, DEFAULT.get(runtime).queue)

    token = worker_tokens(settings.dispatcher)[-1]

    def connected() -> DispatcherClient:
        return DispatcherClient(internal_url(settings.dispatcher), token)

    heart = Heart(connected)
    storage = AnyStorage(settings, asyncio.get_running_loop())
    client = connected()
    await _introduce(internal_url(settings.dispatcher), token)
    heart.start()
    try:
        async with connect(queue_at) as queue:
            runner = Runner(client, heart, executor, storage, Path(settings.dispatcher.secrets_dir))
            app = App()
            # How long a run may take, its job says; the wake-up itself has no limit.
            app.task(WAKE, timeout_s=None)(runner.wake)
            return await run_worker(queue, app, queue_at, stop_when_empty=stop_when_empty, kills=kills)
    finally:
        heart.stop()
        await client.close()
        await storage.close()


async def _introduce(url: str, token: str) -> None:
    """Raises Unauthenticated or Forbidden at once for a token that could not claim anything. A dispatcher that is
    away now may be back when the first wake-up comes."""
    try:
        async with DispatcherClient(url, token, patience_s=INTRODUCED_S) as client:
            await client.sources(limit=1)
    except Unavailable as error:
        log.warning("the dispatcher does not answer yet: %s", error)


def _executor(settings: Settings, runtime: str) -> Executor:
    if DEFAULT.get(runtime).launcher is not Launcher.QUEUE:
        raise UsageError(f"runtime {runtime!r} has no workers: the dispatcher starts its tasks itself")
    if runtime not in EXECUTORS:
        raise UsageError(f"this installation cannot run {runtime!r}: it runs {', '.join(sorted(EXECUTORS))}")
    return EXECUTORS[runtime](settings)
