"""qo worker list."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
import typer

from qo.cli.invocation import Runtime, Session, setting_option
from qo.cli.output import one_line
from qo.cli.queue.control import describe_pauses
from qo.config.settings import Settings
from qo.core.durations import format_duration
from qo.errors import CorruptRecord
from qo.queue import control, roster
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo

HEADERS = ("worker", "state", "heard", "up", "running", "completed", "failed", "lost", "shards")
SHARDS_NAMED_MAX = 4


def list_workers(
    session: Session,
    worker_health_threshold_s: Annotated[str | None, setting_option("monitor.worker_health_threshold_s")] = None,
    only_stale: Annotated[bool, typer.Option("--stale", help="Only stale workers.")] = False,
    runtime: Runtime = None,
) -> None:
    """List the workers, and whether they are alive.

    A killed worker stays on the list as stale for a day; one that stops in order removes itself. Pauses are noted below
    the list. Use --runtime to list the workers of pipelines.
    """
    settings = session.settings({"monitor.worker_health_threshold_s": worker_health_threshold_s})

    async def read_roster(queue: Queue) -> tuple[list[WorkerInfo], list[str], datetime]:
        return await roster.workers(queue.store), await _read_pauses(queue), await queue.store.now()

    workers, pauses, now = session.ask(read_roster, runtime)
    states = [(info, info.is_stale(now, settings.monitor.worker_health_threshold_s)) for info in workers]
    listed = [(info, stale) for info, stale in states if stale or not only_stale]
    if session.json:
        session.output.document([{**msgspec.to_builtins(info), "stale": stale} for info, stale in listed])
        return
    session.output.table(HEADERS, [_row(info, stale, now) for info, stale in listed])
    for pause in pauses:
        session.output.note(one_line(pause))
    if not workers and runtime is None:
        session.output.note(f"no workers of tasks; to list those of pipelines: {_runtime_commands(settings)}")


def _runtime_commands(settings: Settings) -> str:
    from qo.pipeline.registry import Launcher, configured_registry

    runtimes = configured_registry(settings.runtimes).runtimes
    places = sorted(
        each.name if queue == each.queues[0] else f"{each.name}/{queue}"
        for each in runtimes.values()
        if each.launcher is Launcher.QUEUE
        for queue in each.queues
    )
    return ", ".join(f"qo worker list --runtime {place}" for place in places)


async def _read_pauses(queue: Queue) -> list[str]:
    try:
        return describe_pauses(await control.read(queue.store))
    except CorruptRecord as error:
        return [str(error)]  # The list of workers is still good.


def _row(info: WorkerInfo, stale: bool, now: datetime) -> tuple[str, ...]:
    running = str(len(info.current_tasks))
    return (
        info.worker_id,
        "stale" if stale else _state(info),
        f"{format_duration((now - info.last_heartbeat).total_seconds())} ago",
        format_duration((now - info.started_at).total_seconds()),
        f"{running}/{info.slots}" if info.slots else running,
        str(info.tasks_completed),
        str(info.tasks_failed),
        str(info.lost),
        _shards(info),
    )


def _state(info: WorkerInfo) -> str:
    return "active" if info.state == "running" else info.state


def _shards(info: WorkerInfo) -> str:
    shards = info.shards
    if not shards:
        return "none" if info.leasing else "all"
    if len(shards) <= SHARDS_NAMED_MAX:
        return ",".join(shards)
    return f"{','.join(shards[: SHARDS_NAMED_MAX - 1])} +{len(shards) - SHARDS_NAMED_MAX + 1}"
