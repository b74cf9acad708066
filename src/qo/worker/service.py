"""A worker as a process: with its monitor beside it, and signals that end it well."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable

from qo.config.settings import MonitorSettings, Settings
from qo.core.poll import Pace
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.queue import Queue
from qo.worker.app import App
from qo.worker.worker import Tally, Worker, WorkerConfig

log = logging.getLogger(__name__)


async def run_worker(queue: Queue, app: App, settings: Settings, *, stop_when_empty: bool = False) -> Tally:
    """Work until SIGTERM or SIGINT: the first lets running tasks finish, the second gives them back at once."""
    config = worker_config(queue, settings, stop_when_empty)
    worker = Worker(queue, app, config)
    stopped = asyncio.Event()
    handled = ", ".join(app.task_types) or "none"
    log.info(
        "worker %s on %s, %d at a time; types: %s", config.worker_id, settings.store, config.concurrency, handled
    )
    if not app.task_types:
        log.warning("the app has no handlers, so this worker will run nothing: register some with @app.task(NAME)")

    def stop() -> None:
        if stopped.is_set():
            log.info("giving back what is running")
            worker.hurry()
        else:
            log.info("stopping: finishing what is running; once more gives it back instead")
        stopped.set()
        worker.stop()

    restore = on_signals(stop)
    monitor = None
    if not settings.worker.no_monitor:
        monitor = asyncio.create_task(Monitor(queue, monitor_config(settings.monitor)).run(stopped))
    try:
        return await worker.run()
    finally:
        stopped.set()
        if monitor is not None:
            await monitor
        restore()


async def run_monitor(queue: Queue, settings: Settings) -> None:
    """Check and sweep until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    restore = on_signals(stopped.set)
    try:
        await Monitor(queue, monitor_config(settings.monitor)).run(stopped)
    finally:
        restore()


def on_signals(act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` on SIGTERM and SIGINT; returns what undoes that."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, act)

    def restore() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    return restore


def worker_config(queue: Queue, settings: Settings, stop_when_empty: bool) -> WorkerConfig:
    chosen = settings.worker
    return WorkerConfig(
        worker_id=chosen.id or fresh_worker_id(queue),
        shards=chosen.shards,
        concurrency=chosen.concurrency,
        index_mode=chosen.index_mode,
        ready_page_size=chosen.ready_page_size,
        log_scan_page_size=chosen.log_scan_page_size,
        pace=Pace(min_s=chosen.poll_min_ms / 1000, max_s=chosen.poll_max_ms / 1000),
        heartbeat_s=chosen.heartbeat_s,
        shutdown_grace_s=chosen.shutdown_grace_s,
        stop_when_empty=stop_when_empty,
    )


def monitor_config(chosen: MonitorSettings) -> MonitorConfig:
    return MonitorConfig(
        check_interval_s=chosen.check_interval,
        worker_health_threshold_s=chosen.worker_health_threshold,
        sweep_interval_s=chosen.sweep_interval,
        sweep_page_size=chosen.sweep_page_size,
    )


def fresh_worker_id(queue: Queue) -> str:
    """A name that no earlier process had, and that still says where to look."""
    host = (
        "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname())[:40].strip("-")
        or "worker"
    )
    return f"{host}-{os.getpid()}-{queue.ambient.token()[:8]}"
