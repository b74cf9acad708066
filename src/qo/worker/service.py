"""A worker as a process: made from settings, with a monitor beside it, and stopped by signals."""

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
    same_store = with_absolute_path(settings)

    async def open_again() -> Queue:
        return await connect(same_store)

    # A store in memory cannot be opened twice.
    open_queue = open_again if settings.location.is_shared else None
    worker = Worker(queue, app, config, executors=executors, open_queue=open_queue)
    _log_start(app, config, settings)
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
        checks = Monitor(queue, monitor_config(settings.monitor))
        monitor = asyncio.create_task(checks.run(asyncio.Event(), on_duty=lambda: worker.on_duty))
    try:
        return await worker.run()
    finally:
        if monitor is not None:
            monitor.cancel()  # It can be interrupted anywhere: another monitor will do its work.
            await asyncio.gather(monitor, return_exceptions=True)
        shutdown.restore()


def with_absolute_path(settings: Settings) -> Settings:
    """Return settings that mean the same store even if a handler changes the working directory: the connection that
    renews leases is opened later, when the first renewal is due."""
    return replace(settings, store=settings.location.text)


async def run_monitor(queue: Queue, settings: Settings) -> None:
    """Check and sweep until SIGTERM, SIGINT or SIGHUP."""
    stopped = asyncio.Event()
    restore = stop_on_signals(stopped)
    try:
        await Monitor(queue, monitor_config(settings.monitor)).run(stopped)
    finally:
        restore()


def _log_start(app: App, config: WorkerConfig, settings: Settings) -> None:
    task_types = ", ".join(app.task_types) or "none"
    log.info(
        "worker %s on %s, %d at a time; types: %s",
        config.worker_id,
        settings.store,
        config.concurrency,
        task_types,
    )
    if not app.task_types:
        log.warning("the app has no handlers, so this worker will run nothing: register some with @app.task(NAME)")


def worker_config(queue: Queue, settings: Settings, stop_when_empty: bool) -> WorkerConfig:
    values = settings.worker
    pace = Pace(min_s=values.poll_min_ms / 1000, max_s=values.poll_max_ms / 1000)
    return WorkerConfig(
        worker_id=values.id or make_worker_id(queue),
        shards=values.shards,
        index_mode=values.index_mode,
        ready_page_size=values.ready_page_size,
        log_scan_page_size=values.log_scan_page_size,
        pace=pace,
        dequeue_backoff_s=values.dequeue_backoff_ms / 1000,
        stop_when_empty=stop_when_empty,
        unknown_types=values.unknown_types,
        concurrency=values.concurrency,
        inbox_capacity=values.inbox_capacity,
        threads=values.threads,
        processes=values.processes,
        process_tasks_max=values.process_tasks_max,
        process_memory_max_mb=values.process_memory_max_mb,
        spark_slots=values.spark_slots,
        service=ServiceOptions(timeout_s=values.timeout_s),
        lease_s=values.lease_s,
        clock_doubt_s=APART_S if settings.location.is_remote else 0.0,
        heartbeat_s=values.heartbeat_s,
        control_s=values.control_s,
        shutdown_grace_s=values.shutdown_grace_s,
        cancel_grace_s=values.cancel_grace_s,
        http=values.http,
        shard_leasing=leasing_config(values.shard_leasing, pace),
    )


def leasing_config(settings: ShardLeasingSettings, pace: Pace) -> LeasingConfig | None:
    if not settings.enabled:
        return None
    return LeasingConfig(
        shards_per_worker=settings.shards_per_worker,
        ttl_s=settings.lease_ttl_s,
        renew_s=settings.lease_renew_interval_s,
        watch_s=pace.max_s,
    )


def monitor_config(settings: MonitorSettings) -> MonitorConfig:
    return MonitorConfig(
        check_interval_s=settings.check_interval_s,
        worker_health_threshold_s=settings.worker_health_threshold_s,
        sweep_interval_s=settings.sweep_interval_s,
        sweep_page_size=settings.sweep_page_size,
    )


def make_worker_id(queue: Queue) -> str:
    """Return an id that no earlier process had, and that names the host and the process."""
    host = (
        "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname())[:40].strip("-")
        or "worker"
    )
    return f"{host}-{os.getpid()}-{queue.ambient.token()[:8]}"
