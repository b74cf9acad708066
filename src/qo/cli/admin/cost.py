"""qo cost: estimate the bill of a bucket."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from qo.cli.invocation import Session, command, new_app, setting_option
from qo.config.settings import Settings
from qo.core.cost_model import CostEstimate, Load, Rhythm, estimate
from qo.core.discovery import IndexMode
from qo.core.dispatch import Dispatch
from qo.core.dispatch_pricing import estimate_direct
from qo.errors import UsageError

app = new_app()


@command(app, "cost")
def cost(
    session: Session,
    workers: Annotated[
        int, typer.Option("--workers", help="The number of workers that always run [1].", show_default=False)
    ] = 1,
    tasks_per_day: Annotated[
        int, typer.Option("--tasks-per-day", help="The number of tasks a day [10000].", show_default=False)
    ] = 10_000,
    poll_min_ms: Annotated[str | None, setting_option("worker.poll_min_ms")] = None,
    poll_max_ms: Annotated[str | None, setting_option("worker.poll_max_ms")] = None,
    kept_days: Annotated[
        float, typer.Option("--kept-days", help="How many days tasks are kept [30].", show_default=False)
    ] = 30.0,
    task_seconds: Annotated[
        float, typer.Option("--task-seconds", help="How many seconds a task runs [1].", show_default=False)
    ] = 1.0,
    dispatch: Annotated[str | None, setting_option("queue.dispatch")] = None,
) -> None:
    """Estimate what a bucket would charge for requests.

    Prints US dollars a month for each index mode, at the list prices of Amazon S3 Standard and with the current
    settings. No store is accessed.
    """
    if min(workers, tasks_per_day, kept_days, task_seconds) < 0:
        raise UsageError("--workers, --tasks-per-day, --kept-days and --task-seconds cannot be negative")
    settings = session.settings(
        {"worker.poll_min_ms": poll_min_ms, "worker.poll_max_ms": poll_max_ms, "queue.dispatch": dispatch}
    )
    rhythm = _rhythm(settings)
    load = Load(workers, tasks_per_day, kept_days, task_seconds)
    if settings.queue.dispatch is Dispatch.DIRECT:
        view_s = settings.queue.worker_view_s
        estimates = {mode: estimate_direct(load, mode, rhythm=rhythm, view_s=view_s) for mode in IndexMode}
    else:
        estimates = {mode: estimate(load, mode, rhythm=rhythm) for mode in IndexMode}
    if session.json:
        session.output.document([_document(mode, estimates[mode]) for mode in IndexMode])
        return
    headers = ("index mode", "tasks", "polling", "heartbeats", "monitor", "storage", "total", "requests")
    session.output.table(headers, [_row(mode, estimates[mode]) for mode in IndexMode])
    session.output.note(
        f"US dollars and requests a month, for {workers:,} workers and {tasks_per_day:,} tasks a day"
    )


def _rhythm(settings: Settings) -> Rhythm:
    worker, monitor = settings.worker, settings.monitor
    return Rhythm(
        poll_min_s=worker.poll_min_ms / 1000,
        poll_max_s=worker.poll_max_ms / 1000,
        ready_page=worker.ready_page_size,
        log_scan_page=worker.log_scan_page_size,
        heartbeat_s=worker.heartbeat_s,
        lease_s=worker.lease_s,
        check_s=monitor.check_interval_s,
        sweep_s=monitor.sweep_interval_s,
        sweep_page=monitor.sweep_page_size,
    )


def _document(mode: IndexMode, cost: CostEstimate) -> dict[str, object]:
    return {"index_mode": mode, **msgspec.to_builtins(cost), "total": cost.total}


def _row(mode: IndexMode, cost: CostEstimate) -> tuple[str, ...]:
    parts = (cost.tasks, cost.polling, cost.heartbeats, cost.monitor, cost.storage, cost.total)
    return (str(mode), *(f"{dollars:,.2f}" for dollars in parts), f"{round(sum(cost.requests.values())):,}")
