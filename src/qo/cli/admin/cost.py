"""qo cost: estimate the bill of a bucket."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from qo.cli.invocation import Session, command, new_app, setting_option
from qo.config.settings import Settings
from qo.core.cost_extras import Extras
from qo.core.cost_model import CostEstimate, estimate
from qo.core.discovery import IndexMode
from qo.core.dispatch import Dispatch
from qo.core.dispatch_pricing import estimate_direct
from qo.core.load import Delivery, Load
from qo.core.rhythm import Rhythm
from qo.errors import UsageError

app = new_app()

# Every index mode by the board, and the other ways to deliver in the default mode. Direct dispatch is asked for.
ROWS = [
    *((mode, Delivery.BOARD) for mode in IndexMode),
    (IndexMode.HYBRID, Delivery.LEASED),
    (IndexMode.HYBRID, Delivery.PUSH),
]
PARTS = ("tasks", "polling", "heartbeats", "monitor", "flows", "serving", "storage", "total")


def _number(flag: str, help: str) -> Any:
    return typer.Option(flag, help=help, show_default=False)


@command(app, "cost")
def cost(
    session: Session,
    workers: Annotated[int, _number("--workers", "The number of workers that always run [1].")] = 1,
    tasks_per_day: Annotated[int, _number("--tasks-per-day", "The number of tasks a day [10000].")] = 10_000,
    poll_min_ms: Annotated[str | None, setting_option("worker.poll_min_ms")] = None,
    poll_max_ms: Annotated[str | None, setting_option("worker.poll_max_ms")] = None,
    kept_days: Annotated[float, _number("--kept-days", "How many days tasks are kept, then purged [30].")] = 30.0,
    task_seconds: Annotated[float, _number("--task-seconds", "How many seconds a task runs [1].")] = 1.0,
    grouped: Annotated[
        float, _number("--grouped", "Tasks a day that have others before them in their group [0].")
    ] = 0.0,
    dependencies: Annotated[
        float, _number("--dependencies", "Dependencies a day: a task that waits for three others has three [0].")
    ] = 0.0,
    unique: Annotated[float, _number("--unique", "Unique tasks a day [0].")] = 0.0,
    limits: Annotated[
        int, _number("--limits", "Task types with a limit over all workers, in use all day [0].")
    ] = 0,
    keyed: Annotated[
        float, _number("--keyed", "Tasks a day with a limit for each value of a member of their input [0].")
    ] = 0.0,
    keys: Annotated[int, _number("--keys", "How many different values that member has [100].")] = 100,
    waits: Annotated[
        float, _number("--waits", "Calls of qo serve a day that wait for a task from submit to end [0].")
    ] = 0.0,
    dispatch: Annotated[str | None, setting_option("queue.dispatch")] = None,
) -> None:
    """Estimate what a bucket would charge for requests.

    Prints US dollars a month for each index mode, for workers that lease shards, and with wake-ups from one sender, at
    the list prices of Amazon S3 Standard and with the current settings. No store is accessed.
    """
    if min(workers, tasks_per_day, kept_days, task_seconds) < 0:
        raise UsageError("--workers, --tasks-per-day, --kept-days and --task-seconds cannot be negative")
    if min(grouped, dependencies, unique, limits, keyed, keys, waits) < 0:
        raise UsageError(
            "--grouped, --dependencies, --unique, --limits, --keyed, --keys and --waits cannot be negative"
        )
    settings = session.settings(
        {"worker.poll_min_ms": poll_min_ms, "worker.poll_max_ms": poll_max_ms, "queue.dispatch": dispatch}
    )
    load = Load(workers, tasks_per_day, kept_days, task_seconds)
    extras = Extras(
        grouped_per_day=grouped,
        dependencies_per_day=dependencies,
        unique_per_day=unique,
        limits=limits,
        keyed_per_day=keyed,
        keys=keys,
        waits_per_day=waits,
    )
    estimates = _estimate_rows(settings, load, extras)
    if session.json:
        session.output.document([_document(*row) for row in estimates])
        return
    session.output.table(("mode", *PARTS, "requests"), [_row(*row) for row in estimates])
    session.output.note(
        f"US dollars and requests a month, for {workers:,} workers and {tasks_per_day:,} tasks a day"
    )


def _estimate_rows(
    settings: Settings, load: Load, extras: Extras
) -> list[tuple[IndexMode, Delivery, CostEstimate]]:
    rhythm = _rhythm(settings)
    if settings.queue.dispatch is Dispatch.DIRECT:
        view_s = settings.queue.worker_view_s
        return [
            (mode, Delivery.DIRECT, estimate_direct(load, mode, rhythm=rhythm, view_s=view_s, extras=extras))
            for mode in IndexMode
        ]
    return [
        (mode, delivery, estimate(load, mode, delivery=delivery, extras=extras, rhythm=rhythm))
        for mode, delivery in ROWS
    ]


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


def _document(mode: IndexMode, delivery: Delivery, cost: CostEstimate) -> dict[str, object]:
    return {"index_mode": mode, "delivery": delivery, **msgspec.to_builtins(cost), "total": cost.total}


def _row(mode: IndexMode, delivery: Delivery, cost: CostEstimate) -> tuple[str, ...]:
    name = str(mode) if delivery is Delivery.BOARD else f"{mode}, {delivery}"
    dollars = (f"{getattr(cost, part):,.2f}" for part in PARTS)
    return (name, *dollars, f"{round(sum(cost.requests.values())):,}")
