"""One process that works on several queues: a worker for each, and slots that they share by weight."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from qo.config.kinds import parse_queues
from qo.config.location import parse as parse_location
from qo.config.settings import Settings
from qo.http_server.pages import Post
from qo.queue.connecting import connect
from qo.queue.queue import Queue
from qo.queue.queues_below import prepare
from qo.telemetry.log_context import set_worker
from qo.worker.api.app import App
from qo.worker.idle_watch import IdleLimit, ended_when_idle, idle_limit
from qo.worker.loop.slot_share import SharedSlots
from qo.worker.observe.stats import plain_counts, sum_counts
from qo.worker.service import (
    installed_shutdown,
    log_start,
    make_worker,
    make_worker_id,
    run_with_monitor,
    worker_config,
)
from qo.worker.worker import Worker

log = logging.getLogger(__name__)


async def _settings_of(settings: Settings, name: str) -> Settings:
    """Return the settings of one of several queues: a store by its location, or one below the store by its name."""
    if ":" in name:
        return replace(settings, store=parse_location(name).text)
    return await prepare(settings, name)


async def run_queues(
    app: App,
    settings: Settings,
    *,
    stop_when_empty: bool = False,
    kills: bool = False,
    kept_free: int = 0,
    limit: IdleLimit | None = None,
) -> dict[str, Any]:
    """Work on all queues of ``worker.queue`` until signals end it, as ``run_worker`` does for one. Return the sum of
    the workers' counters. ``kept_free``: see ``SharedSlots``."""
    limit = limit or idle_limit(settings)
    weights = parse_queues(settings.worker.queue)
    slots = SharedSlots(settings.worker.concurrency, weights, kept_free)
    async with AsyncExitStack() as stack:
        workers: dict[str, Worker] = {}
        queues: dict[str, Queue] = {}
        wake_paths: dict[str, Post] = {}
        for name in weights:
            at = await _settings_of(settings, name)
            queues[name] = queue = await stack.enter_async_context(connect(at))
            if settings.worker.id is None:  # One id in all queues: it is one process.
                settings = replace(settings, worker=replace(settings.worker, id=make_worker_id(queue)))
                at = replace(at, worker=settings.worker)
            # No task is claimed ahead of a free slot: it would wait for slots that belong to another queue.
            config = replace(
                worker_config(queue, at, stop_when_empty),
                inbox_capacity=0,
                http=settings.worker.http if not workers else _any_port(settings.worker.http),
                push_place=len(workers),
                wake_paths=wake_paths,
            )
            workers[name] = make_worker(queue, app, config, at, slot_share=slots.join(name))
            log_start(app, config, at)
        with installed_shutdown(list(workers.values()), settings, kills=kills):
            set_worker(settings.worker.id or "")
            async with ended_when_idle(list(workers.values()), limit):
                await asyncio.gather(
                    *(_work(slots, name, workers[name], queues[name], settings) for name in workers)
                )
    return sum_counts([plain_counts(worker.stats) for worker in workers.values()])


async def _work(slots: SharedSlots, name: str, worker: Worker, queue: Queue, settings: Settings) -> None:
    try:
        await run_with_monitor(worker, queue, settings)
    finally:
        slots.leave(name)


def _any_port(address: str) -> str:
    """Return an address of the same host for the status of a further worker."""
    host, colon, _ = address.rpartition(":")
    return f"{host}:0" if colon else address
