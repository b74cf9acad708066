"""A worker as a process: from settings, with its monitor beside it, and signals that end it well."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import replace

from qo.config.settings import MonitorSettings, Settings
from qo.config.worker import ShardLeasingSettings
from qo.core.ownership import LeasingConfig
from qo.core.poll import Pace
from qo.core.storetime import APART_S
from qo.queue.connecting import connect
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.queue import Queue
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor
from qo.worker.layers import ServiceOptions
from qo.worker.observe.stats import Stats
from qo.worker.shutdown import Shutdown, stop_on_signals
from qo.worker.worker import Worker

log = logging.getLogger(__name__)


async def run_worker(
    queue: Queue,
    app: App,
    settings: Settings,
    *,
    stop_when_empty: bool = False,
    executors: Mapping[str, Executor] | None = None,
    kills: bool = False,
) -> Stats:
    """Work until SIGTERM, SIGINT or SIGHUP: the first lets running tasks finish, the second gives them back at once.

    With ``kills``, the third ends the process, and so does a shutdown that takes longer than its graces allow.
    """
    config = worker_config(queue, settings, stop_when_empty)
    there = fixed(settings)

    async def open_again() -> Queue:
        return await connect(there)

    # What lies in memory cannot be opened twice.
    second = open_again if settings.location.is_shared else None
    worker = Worker(queue, app, config, executors=executors, open_queue=second)
    _introduce(app, config, settings)
    loop = asyncio.get_running_loop()
    shutdown = Shutdown(
        drain=lambda: loop.call_soon_threadsafe(worker.stop),
        cancel=lambda: loop.call_soon_threadsafe(worker.hurry),
        drain_s=config.shutdown_grace_s,
        cancel_s=config.cancel_grace_s,
        exit_s=settings.worker.exit_grace_s,
        kills=kills,
    )
    shutdown.install()
    monitor = None
    if not settings.worker.no_monitor:
        beside = Monitor(queue, monitor_config(settings.monitor))
        monitor = asyncio.create_task(beside.run(asyncio.Event(), on_duty=lambda: worker.on_duty))
    try:
        return await worker.run()
    finally:
        if monitor is not None:
            monitor.cancel()  # Everything it does can be broken off: another monitor will do it.
            await asyncio.gather(monitor, return_exceptions=True)
        shutdown.restore()


def fixed(settings: Settings) -> Settings:
    """With the same store, whatever directory a handler changes to: leases are renewed by a connection that is opened
    when the first is due, and an empty store elsewhere would know of none."""
    return replace(settings, store=settings.location.text)


async def run_monitor(queue: Queue, settings: Settings) -> None:
    """Check and sweep until SIGTERM, SIGINT or SIGHUP."""
    stopped = asyncio.Event()
    restore = stop_on_signals(stopped)
    try:
        await Monitor(queue, monitor_config(settings.monitor)).run(stopped)
    finally:
        restore()


def _introduce(app: App, config: WorkerConfig, settings: Settings) -> None:
    handled = ", ".join(app.task_types) or "none"
    log.info(
        "worker %s on %s, %d at a time; types: %s", config.worker_id, settings.store, config.concurrency, handled
    )
    if not app.task_types:
        log.warning("the app has no handlers, so this worker will run nothing: register some with @app.task(NAME)")


def worker_config(queue: Queue, settings: Settings, stop_when_empty: bool) -> WorkerConfig:
    chosen = settings.worker
    pace = Pace(min_s=chosen.poll_min_ms / 1000, max_s=chosen.poll_max_ms / 1000)
    return WorkerConfig(
        worker_id=chosen.id or make_worker_id(queue),
        shards=chosen.shards,
        index_mode=chosen.index_mode,
        ready_page_size=chosen.ready_page_size,
        log_scan_page_size=chosen.log_scan_page_size,
        pace=pace,
        dequeue_backoff_s=chosen.dequeue_backoff_ms / 1000,
        stop_when_empty=stop_when_empty,
        unknown_types=chosen.unknown_types,
        concurrency=chosen.concurrency,
        inbox_capacity=chosen.inbox_capacity,
        threads=chosen.threads,
        processes=chosen.processes,
        process_tasks_max=chosen.process_tasks_max,
        process_memory_max_mb=chosen.process_memory_max_mb,
        spark_slots=chosen.spark_slots,
        service=ServiceOptions(timeout_s=chosen.timeout_s),
        lease_s=chosen.lease_s,
        clock_doubt_s=APART_S if settings.location.is_remote else 0.0,
        heartbeat_s=chosen.heartbeat_s,
        control_s=chosen.control_s,
        shutdown_grace_s=chosen.shutdown_grace_s,
        cancel_grace_s=chosen.cancel_grace_s,
        http=chosen.http,
        shard_leasing=leasing_config(chosen.shard_leasing, pace),
    )


def leasing_config(chosen: ShardLeasingSettings, pace: Pace) -> LeasingConfig | None:
    if not chosen.enabled:
        return None
    return LeasingConfig(
        shards_per_worker=chosen.shards_per_worker,
        ttl_s=chosen.lease_ttl_s,
        renew_s=chosen.lease_renew_interval_s,
        watch_s=pace.max_s,
    )


def monitor_config(chosen: MonitorSettings) -> MonitorConfig:
    return MonitorConfig(
        check_interval_s=chosen.check_interval_s,
        worker_health_threshold_s=chosen.worker_health_threshold_s,
        sweep_interval_s=chosen.sweep_interval_s,
        sweep_page_size=chosen.sweep_page_size,
    )


def make_worker_id(queue: Queue) -> str:
    """A name that no earlier process had, and that still says where to look."""
    host = (
        "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname())[:40].strip("-")
        or "worker"
    )
    return f"{host}-{os.getpid()}-{queue.ambient.token()[:8]}"
