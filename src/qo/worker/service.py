"""A worker as a process: made from settings, with a monitor beside it, and stopped by signals."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from qo.config.kinds import parse_rate
from qo.config.settings import Settings
from qo.config.worker import ShardLeasingSettings, WorkerSettings
from qo.core.board import Rank, WatchTimes
from qo.core.dispatch import Dispatch
from qo.core.limit_shares import parse_limit
from qo.core.ownership import LeasingConfig
from qo.core.poll import Pace
from qo.core.storetime import APART_S
from qo.queue.connecting import connect
from qo.queue.lookout import Lookout
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.queue import Queue
from qo.queue.roster import SILENT_BEATS
from qo.telemetry.log_context import set_worker
from qo.telemetry.metric_pusher import pushed_metrics
from qo.worker.api.app import App
from qo.worker.api.handler import Rate
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor
from qo.worker.idle_watch import IdleLimit, ended_when_idle, idle_limit
from qo.worker.layers import ServiceOptions
from qo.worker.loop.slot_share import SharedSlotsMember
from qo.worker.observe.depth_board import DepthBoard, DepthMetrics
from qo.worker.observe.metrics import CONTENT_TYPE, Metrics
from qo.worker.observe.stats import Stats
from qo.worker.shutdown import Shutdown, stop_on_signals
from qo.worker.worker import Worker

if TYPE_CHECKING:
    from qo.http_server.pages import PageServer

log = logging.getLogger(__name__)

INBOX_HEARTBEAT_MAX_S = 60.0


async def run_worker(
    queue: Queue,
    app: App,
    settings: Settings,
    *,
    stop_when_empty: bool = False,
    executors: Mapping[str, Executor] | None = None,
    kills: bool = False,
    observer: Callable[[Worker], object] | None = None,
    limit: IdleLimit | None = None,
) -> Stats:
    """Work until SIGTERM, SIGINT or SIGHUP: the first lets running tasks finish, the second gives them back at once.

    With ``kills``, the third ends the process, and so does a shutdown that takes longer than its graces allow.
    ``observer`` is called with the worker before it runs: to subscribe to it, say. ``limit``: how long the worker stays
    without tasks; None: as the settings say.
    """
    limit = limit or idle_limit(settings)
    config = worker_config(queue, settings, stop_when_empty)
    worker = make_worker(queue, app, config, settings, executors=executors)
    if observer is not None:
        observer(worker)
    set_worker(config.worker_id)  # For the monitor's lines, too.
    log_start(app, config, settings)
    with installed_shutdown([worker], settings, kills=kills):
        async with ended_when_idle([worker], limit):
            return await run_with_monitor(worker, queue, settings)


def make_worker(
    queue: Queue,
    app: App,
    config: WorkerConfig,
    settings: Settings,
    *,
    executors: Mapping[str, Executor] | None = None,
    slot_share: SharedSlotsMember | None = None,
) -> Worker:
    same_store = with_absolute_path(settings)

    async def open_again() -> Queue:
        return await connect(same_store)

    # A store in memory cannot be opened twice.
    open_queue = open_again if settings.location.is_shared else None
    return Worker(queue, app, config, executors=executors, open_queue=open_queue, slot_share=slot_share)


@contextmanager
def installed_shutdown(workers: Sequence[Worker], settings: Settings, *, kills: bool) -> Generator[None]:
    """Let signals end these workers within the context."""
    loop = asyncio.get_running_loop()

    def drain() -> None:
        for worker in workers:
            loop.call_soon_threadsafe(worker.stop)

    def cancel() -> None:
        for worker in workers:
            loop.call_soon_threadsafe(worker.hurry)

    shutdown = Shutdown(
        drain=drain,
        cancel=cancel,
        drain_s=settings.worker.shutdown_grace_s,
        cancel_s=settings.worker.cancel_grace_s,
        exit_s=settings.worker.exit_grace_s,
        kills=kills,
    )
    shutdown.install()
    try:
        yield
    finally:
        shutdown.restore()


async def run_with_monitor(worker: Worker, queue: Queue, settings: Settings) -> Stats:
    """Run a worker, with a monitor beside it unless the settings say otherwise."""
    monitor = None
    if not settings.worker.no_monitor:
        checks = Monitor(queue, monitor_config(settings), worker.stats.depths)
        monitor = asyncio.create_task(checks.run(asyncio.Event(), on_duty=lambda: worker.on_duty))
    metrics = Metrics(worker.stats, worker.snapshot)
    try:
        with pushed_metrics(
            **settings.telemetry.push_options,
            service="qo-worker",
            instance=worker.snapshot().worker_id,
            exposition=metrics.exposition,
        ):
            return await worker.run()
    finally:
        if monitor is not None:
            monitor.cancel()  # It can be interrupted anywhere: another monitor will do its work.
            await asyncio.gather(monitor, return_exceptions=True)


def with_absolute_path(settings: Settings) -> Settings:
    """Return settings that mean the same store even if a handler changes the working directory: the connection that
    renews leases is opened later, when the first renewal is due."""
    return replace(settings, store=settings.location.text)


async def run_monitor(queue: Queue, settings: Settings) -> None:
    """Check, sweep and purge until SIGTERM, SIGINT or SIGHUP; serve the depth of the queue as metrics."""
    stopped = asyncio.Event()
    depths = DepthBoard()
    server = _serve_depth(settings.monitor.http, depths)
    restore = stop_on_signals(stopped)
    name = f"monitor-{make_worker_id(queue)}"
    try:
        with pushed_metrics(
            **settings.telemetry.push_options,
            service="qo-monitor",
            instance=name,
            exposition=DepthMetrics(depths).exposition,
        ):
            await watch(
                queue,
                monitor_config(settings),
                stopped,
                name=name,
                heartbeat_s=settings.worker.heartbeat_s,
                depths=depths,
            )
    finally:
        restore()
        if server is not None:
            server.stop()


def _serve_depth(address: str, depths: DepthBoard) -> PageServer | None:
    if address == "off":
        return None
    from qo.http_server.listening import listen
    from qo.http_server.pages import CLIENT_TIMEOUT_S, PageServer, page_reply

    metrics = DepthMetrics(depths)
    pages = {
        "/livez": lambda: page_reply(HTTPStatus.OK, b"ok\n"),
        "/metrics": lambda: page_reply(HTTPStatus.OK, metrics.exposition(), CONTENT_TYPE),
    }
    listening = listen(
        address, what="the monitor's metrics", remedy="set monitor.http to a free address, or to off"
    )
    server = PageServer(listening, pages, client_timeout_s=CLIENT_TIMEOUT_S)
    server.start()
    log.info("metrics of the queue are at http://%s/metrics", server.address)
    return server


async def watch(
    queue: Queue,
    config: MonitorConfig,
    stop: asyncio.Event,
    *,
    name: str,
    heartbeat_s: float,
    depths: DepthBoard | None = None,
) -> None:
    """Run a monitor and be the lookout until stopped. Workers leave the duty to it."""
    lookout = Lookout(
        queue,
        name=name,
        rank=Rank.MONITOR,
        silent_max_s=SILENT_BEATS * heartbeat_s,
        times=WatchTimes.for_checks(config.check_interval_s),
    )
    looking_out = asyncio.create_task(lookout.run())
    try:
        await Monitor(queue, config, depths).run(stop, on_duty=lambda: lookout.on_duty)
    finally:
        looking_out.cancel()
        await asyncio.gather(looking_out, return_exceptions=True)
        await lookout.leave()


def log_start(app: App, config: WorkerConfig, settings: Settings) -> None:
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
        service=_service_options(values),
        producer_buffer=values.producer_buffer,
        result_buffer=values.result_buffer,
        shared_limits={task_type: parse_limit(task_type, text) for task_type, text in values.limits},
        lease_s=values.lease_s,
        clock_doubt_s=APART_S if settings.location.is_remote else 0.0,
        heartbeat_s=_heartbeat_s(values, is_direct=settings.queue.dispatch is Dispatch.DIRECT),
        dispatch=settings.queue.dispatch,
        has_monitor=not values.no_monitor,
        watch=WatchTimes.for_checks(settings.monitor.check_interval_s),
        control_s=values.control_s,
        shutdown_grace_s=values.shutdown_grace_s,
        cancel_grace_s=values.cancel_grace_s,
        http=values.http,
        push_tokens=settings.push.tokens,
        push_address=values.push_address,
        shard_leasing=leasing_config(values.shard_leasing),
    )


def _service_options(values: WorkerSettings) -> ServiceOptions:
    return ServiceOptions(
        load_shed=values.load_shed,
        buffer=values.buffer,
        timeout_s=values.timeout_s,
        concurrency_limit=values.concurrency_limit,
        rate_limit=None if values.rate_limit is None else Rate(*parse_rate(values.rate_limit)),
    )


def _heartbeat_s(values: WorkerSettings, *, is_direct: bool) -> float:
    """Where tasks are dispatched directly, whoever submits must not take the worker for dead."""
    return min(values.heartbeat_s, INBOX_HEARTBEAT_MAX_S) if is_direct else values.heartbeat_s


def leasing_config(settings: ShardLeasingSettings) -> LeasingConfig | None:
    if not settings.enabled:
        return None
    return LeasingConfig(
        shards_per_worker=settings.shards_per_worker,
        ttl_s=settings.lease_ttl_s,
        renew_s=settings.lease_renew_interval_s,
    )


def monitor_config(settings: Settings) -> MonitorConfig:
    values = settings.monitor
    return MonitorConfig(
        check_interval_s=values.check_interval_s,
        worker_health_threshold_s=values.worker_health_threshold_s,
        sweep_interval_s=values.sweep_interval_s,
        sweep_page_size=values.sweep_page_size,
        retention=settings.retention.policy,
        purge_requests_per_minute=settings.retention.requests_per_minute,
    )


def make_worker_id(queue: Queue) -> str:
    """Return an id that no earlier process had, and that names the host and the process."""
    host = (
        "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname())[:40].strip("-")
        or "worker"
    )
    return f"{host}-{os.getpid()}-{queue.ambient.token()[:8]}"
