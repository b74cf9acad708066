"""qo schedule create, update, list, show, enable, disable, delete, trigger, run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.queue.submission import read_input
from qo.core import wire
from qo.core.durations import format_instant, parse_duration_s
from qo.core.schedule import CatchUp, Overlap, Schedule, next_run
from qo.core.task import Task
from qo.errors import UsageError
from qo.queue.queue import Queue
from qo.queue.schedule_runner import INTERVAL_S, Report, Scheduler
from qo.queue.schedules import Changes, Schedules, Settings
from qo.worker.shutdown import stop_on_signals

app = new_app()
schedule = new_group(app, "schedule", "Submit tasks by cron expression.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Cron = Annotated[str, typer.Option("--cron", metavar="EXPR", help="Five fields, as '0 9 * * mon-fri'.")]
Input = Annotated[
    str | None, typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="The input of each task.")
]
Timezone = Annotated[
    str | None, typer.Option("--timezone", help="The IANA time zone the expression is read in [UTC].")
]
Missed = Annotated[
    CatchUp | None, typer.Option("--catch-up", help="Missed runs to make up for: none, last or all [last].")
]
Overlapping = Annotated[
    Overlap | None, typer.Option("--overlap", help="If the run before has not ended: allow or skip [allow].")
]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", metavar="DURATION", help="Of one attempt [as the handler says, else 5m]."),
]
Retries = Annotated[int | None, typer.Option("--retries", help="Attempts after the first [3].")]
Priority = Annotated[int | None, typer.Option("--priority", help="0 to 9; 9 goes first [0].")]


@command(schedule, "create")
def create(
    session: Session,
    name: Name,
    type: Annotated[str, typer.Option("--type", "-t", help="The type of the tasks.")],
    cron: Cron,
    input: Input = None,
    timezone: Timezone = None,
    catch_up: Missed = None,
    overlap: Overlapping = None,
    timeout: Timeout = None,
    retries: Retries = None,
    priority: Priority = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Create it, but do not run it yet.")] = False,
) -> None:
    """Create a schedule; it first runs at the next time that its cron expression names."""
    options = _read_options(input, timezone, catch_up, overlap, timeout, retries, priority)
    if disabled:
        options["enabled"] = False
    created = session.ask(lambda queue: Schedules(queue).create(name, task_type=type, cron=cron, **options))
    _show(session, created, None)


@command(schedule, "update")
def update(
    session: Session,
    name: Name,
    type: Annotated[str | None, typer.Option("--type", "-t", help="The type of the tasks.")] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="EXPR", help="Five fields, as '0 9 * * mon-fri'.")
    ] = None,
    input: Input = None,
    timezone: Timezone = None,
    catch_up: Missed = None,
    overlap: Overlapping = None,
    timeout: Timeout = None,
    retries: Retries = None,
    priority: Priority = None,
) -> None:
    """Change a schedule; options that are not given keep their value. A new cron expression counts from now."""
    changes: Changes = {**_read_options(input, timezone, catch_up, overlap, timeout, retries, priority)}
    if type is not None:
        changes["task_type"] = type
    if cron is not None:
        changes["cron"] = cron
    if not changes:
        raise UsageError("nothing to change: give at least one option")
    _show(session, session.ask(lambda queue: Schedules(queue).update(name, **changes)), None)


def _read_options(
    input: str | None,
    timezone: str | None,
    catch_up: CatchUp | None,
    overlap: Overlap | None,
    timeout: str | None,
    retries: int | None,
    priority: int | None,
) -> Settings:
    options: Settings = {}
    if input is not None:
        options["input"] = read_input(input)
    if timezone is not None:
        options["timezone"] = timezone
    if catch_up is not None:
        options["catch_up"] = catch_up
    if overlap is not None:
        options["overlap"] = overlap
    if timeout is not None:
        options["timeout_s"] = parse_duration_s(timeout, "--timeout")
    if retries is not None:
        options["max_retries"] = retries
    if priority is not None:
        options["priority"] = priority
    return options


@command(schedule, "list")
def list_(session: Session) -> None:
    """List all schedules."""

    async def read_schedules(queue: Queue) -> tuple[list[Schedule], datetime]:
        return await Schedules(queue).list(), await queue.store.now()

    schedules, now = session.ask(read_schedules)
    if session.json:
        session.output.document([_document(each, now) for each in schedules])
        return
    headers = ("name", "state", "cron", "timezone", "type", "next run", "last run", "last task")
    session.output.table(headers, [_row(each, now) for each in schedules])


def _row(each: Schedule, now: datetime) -> tuple[str, ...]:
    return (
        each.name,
        "enabled" if each.enabled else "disabled",
        each.cron,
        each.timezone,
        each.task_type,
        format_instant(next_run(each, now)),
        format_instant(each.last_run_at),
        each.last_task_id or "",
    )


@command(schedule, "show")
def show(session: Session, name: Name) -> None:
    """Show a schedule."""

    async def read_schedule(queue: Queue) -> tuple[Schedule, datetime]:
        return await Schedules(queue).get(name), await queue.store.now()

    _show(session, *session.ask(read_schedule))


@command(schedule, "enable")
def enable(session: Session, name: Name) -> None:
    """Enable a schedule; it runs again from now on."""
    _show(session, session.ask(lambda queue: Schedules(queue).enable(name)), None)


@command(schedule, "disable")
def disable(session: Session, name: Name) -> None:
    """Disable a schedule; it submits no more tasks."""
    _show(session, session.ask(lambda queue: Schedules(queue).disable(name)), None)


@command(schedule, "delete")
def delete(session: Session, name: Name) -> None:
    """Delete a schedule; the tasks that it submitted stay."""
    session.ask(lambda queue: Schedules(queue).delete(name))
    if session.json:
        session.output.document({"name": name, "deleted": True})
    else:
        session.output.line(f"deleted {name}")


@command(schedule, "trigger")
def trigger(session: Session, name: Name) -> None:
    """Submit the task of a schedule once, now, in addition to its planned runs."""
    task: Task = session.ask(lambda queue: Schedules(queue).trigger(name))
    if session.json:
        session.output.document(task)
    else:
        session.output.line(task.id)


@command(schedule, "run")
def run(
    session: Session,
    interval: Annotated[
        str,
        typer.Option(
            "--interval", metavar="DURATION", help="How often to look for due runs [15s].", show_default=False
        ),
    ] = f"{INTERVAL_S:g}s",
    once: Annotated[bool, typer.Option("--once", help="Submit what is due now, and stop.")] = False,
) -> int | None:
    """Run the scheduler of the queue: submit the tasks of schedules when they are due.

    Runs until SIGTERM, SIGINT or SIGHUP. Several may run at once; each planned run is submitted once.
    """
    interval_s = parse_duration_s(interval, "--interval")
    if interval_s <= 0:
        raise UsageError("--interval must be more than 0")
    settings = session.settings()
    if not once:
        session.run(settings, _forever(interval_s))
        return None
    report: Report = session.run(settings, lambda queue: Scheduler(queue).tick())
    if session.json:
        session.output.document(report)
    else:
        failed = f", failed {len(report.failures)}" if report.failures else ""
        session.output.line(
            f"schedules {report.schedules}, submitted {report.fired}, skipped {report.skipped}{failed}"
        )
    return 1 if report.failures else None


def _forever(interval_s: float) -> Callable[[Queue], Awaitable[None]]:
    async def work(queue: Queue) -> None:
        stop = asyncio.Event()
        restore = stop_on_signals(stop)
        try:
            await Scheduler(queue).run(stop, interval_s=interval_s)
        finally:
            restore()

    return work


def _show(session: Session, each: Schedule, now: datetime | None) -> None:
    if session.json:
        session.output.document(_document(each, now or each.updated_at))
        return
    record = {
        "name": each.name,
        "state": "enabled" if each.enabled else "disabled",
        "type": each.task_type,
        "cron": each.cron,
        "timezone": each.timezone,
        "next run": format_instant(next_run(each, now or each.updated_at)),
        "last run": format_instant(each.last_run_at),
        "last task": each.last_task_id or "",
        "catch up": str(each.catch_up),
        "overlap": str(each.overlap),
        "input": "" if each.input is None else wire.encode(each.input).decode(),
    }
    session.output.record(record)


def _document(each: Schedule, now: datetime) -> dict[str, object]:
    return {**msgspec.to_builtins(each), "next_run_at": next_run(each, now)}
