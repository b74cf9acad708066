"""qo workers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
import typer

from qo.cli.durations import format_duration, format_instant
from qo.cli.session import Session, command, new_app, setting_option
from qo.queue import roster
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo

app = new_app()


@command(app, "workers")
def workers(
    session: Session,
    worker_health_threshold: Annotated[str | None, setting_option("monitor.worker_health_threshold")] = None,
    only_stale: Annotated[bool, typer.Option("--stale", help="Only workers that fell silent.")] = False,
) -> None:
    """List the workers, and whether they are alive.

    A worker that is killed stays on the list as stale; one that stops in order takes itself off.
    """
    settings = session.settings({"monitor.worker_health_threshold": worker_health_threshold})

    async def look(queue: Queue) -> tuple[list[WorkerInfo], datetime]:
        return await roster.workers(queue.store), await queue.store.now()

    found, now = session.ask(look)
    states = [(info, info.stale(now, settings.monitor.worker_health_threshold)) for info in found]
    shown = [(info, stale) for info, stale in states if stale or not only_stale]
    if session.json:
        session.output.document([{**msgspec.to_builtins(info), "stale": stale} for info, stale in shown])
        return
    headers = ("worker", "state", "last heard", "started", "shards", "running", "completed", "failed")
    session.output.table(headers, [_row(info, stale, now) for info, stale in shown])


def _row(info: WorkerInfo, stale: bool, now: datetime) -> tuple[str, ...]:
    return (
        info.worker_id,
        "stale" if stale else "active",
        f"{format_duration((now - info.last_heartbeat).total_seconds())} ago",
        format_instant(info.started_at),
        ",".join(info.shards) or "all",
        str(len(info.current_tasks)),
        str(info.tasks_completed),
        str(info.tasks_failed),
    )
