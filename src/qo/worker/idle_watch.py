"""Ends workers that have had nothing to do for long enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from qo.config.settings import Settings
from qo.core.durations import format_duration
from qo.core.idleness import Idleness, parse_idle_s
from qo.errors import ConfigError
from qo.worker.loop.state import State
from qo.worker.worker import Worker

log = logging.getLogger(__name__)

CHECK_S = 1.0
BY_JOBS = "jobs"

IdleLimit = Callable[[], float | None]  # Returns the seconds; None: never. It may change while the worker runs.


def idle_limit(settings: Settings) -> IdleLimit:
    """Return the limit that the settings set. Raises ConfigError if that needs a runtime."""
    text = settings.worker.idle_timeout
    if text == BY_JOBS:
        raise ConfigError(
            f"worker.idle_timeout = jobs ({settings.origin('worker.idle_timeout')}) is for workers of a runtime, which "
            "run the jobs of pipelines: set a time, or give --runtime NAME"
        )
    limit_s = parse_idle_s(text)
    return lambda: limit_s


@asynccontextmanager
async def ended_when_idle(workers: Sequence[Worker], limit: IdleLimit) -> AsyncGenerator[None]:
    """Stop the workers, within the context, once none of them has had a task for as long as the limit says."""
    watching = asyncio.create_task(_watch(workers, limit))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(workers: Sequence[Worker], limit: IdleLimit) -> None:
    time = asyncio.get_running_loop().time
    idle = Idleness(time())
    while True:
        now, limit_s = time(), limit()
        claimed = sum(each.stats.claimed for each in workers)
        idle = idle.observe(claimed=claimed, busy=any(_is_busy(each) for each in workers), now=now)
        remaining_s = idle.remaining_s(limit_s, now)
        if remaining_s == 0.0:
            break
        await asyncio.sleep(min(remaining_s, CHECK_S))
    log.info("ending: there was no task for %s", format_duration(now - idle.since))
    for each in workers:
        each.stop()


def _is_busy(worker: Worker) -> bool:
    """Whether it holds a task, has not looked for one yet, or was paused by people, who will resume it."""
    stats = worker.stats
    return stats.held > 0 or worker.state is not State.RUNNING or not (stats.looks or stats.claimed)
