"""qo run list, show, logs, cancel, replay: the tasks of pipelines."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.output import one_line
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages, route
from qo.cli.pipelines.emit import split
from qo.cli.pipelines.formatting import (
    format_bytes,
    format_count,
    format_data_access,
    format_extent,
    format_timestamp,
)
from qo.core.task import Status
from qo.core.words import plural
from qo.errors import QoError, UsageError

if TYPE_CHECKING:
    from qo.api.public_client import UserClient

app = new_app()
run = new_group(app, "run", "List, show, cancel and replay tasks of pipelines; show logs.")

TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")]
TaskIds = Annotated[list[str], typer.Argument(metavar="TASK...", help="The ids of the tasks.")]


@command(run, "list")
def list_(
    session: Session,
    of: Annotated[
        str | None,
        typer.Argument(metavar="[DAG[.JOB]]", help="Only those of this DAG or job.", show_default=False),
    ] = None,
    status: Annotated[Status | None, typer.Option("--status", help="Only tasks with this status.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="With --status failed: also superseded failures, and why they are.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)] = 100,
) -> None:
    """List the tasks of pipelines, newest first.

    A failed task is superseded, and left out of --status failed, once another task has committed its partition or
    range, or when no live version has its job as it was.
    """
    check_limit(limit)
    if everything and status is not Status.FAILED:
        raise UsageError("--all needs --status failed: every other list has all tasks already")
    dag, job = (None, None) if of is None else split(of) if "." in of else (of, None)
    query: dict[str, Any] = {"dag": dag, "job": job, "status": None if status is None else str(status)}
    query |= {"superseded": "true"} if everything else {}
    tasks, more = ask(session, lambda client: pages(client, "/v1/tasks", "tasks", limit, **query))
    if session.json:
        session.output.document(tasks)
        return
    headers = ("id", "status", "job", "what", "attempt", "updated", "worker", "error")
    session.output.table(headers, [_row(each) for each in tasks])
    if more:
        session.output.note(f"stopped after {plural(limit, 'task')}; --limit shows more")
    if status is Status.FAILED and not everything:
        session.output.note("superseded failures are left out; --all shows them")


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        each["id"],
        each["status"],
        f"{each['dag']}.{each['job']}",
        format_extent(each),
        str(each["attempt"]),
        format_timestamp(each["updated_at"]),
        each["worker_id"] or "",
        _superseded(each) or (each["last_error"] or "").partition("\n")[0][:80],
    )


def _superseded(each: Mapping[str, Any]) -> str:
    return f"superseded: {each['superseded']['text']}" if each["superseded"] else ""


@command(run, "show")
def show(session: Session, task_id: TaskId) -> None:
    """Show a task of a pipeline: its attempts, what it read and what it made."""
    answer = ask(session, lambda client: client.get(route("tasks", task_id)))
    if session.json:
        session.output.document(answer)
        return
    session.output.record(_record(answer))
    attempts = [
        (
            str(each["attempt"]),
            each["outcome"] or "running",
            _span(each),
            each["worker_id"] or "",
            each["error"] or "",
        )
        for each in answer["attempts"]
    ]
    if attempts:
        session.output.line("")
        session.output.table(("attempt", "outcome", "when", "worker", "error"), attempts)
    for each in answer["attempts"]:
        if (how := format_data_access(each.get("data_access"))) is not None:
            session.output.line(f"attempt {each['attempt']} read and wrote {how}")
    for each in answer["attempts"]:
        for difference in each["packages"] or ():
            session.output.note(
                f"attempt {each['attempt']} ran with a package that differs from the deployed one: {difference}"
            )
    commits = [
        (str(each["revision"]), format_extent(each), format_count(each["rows"]), format_bytes(each["bytes"]))
        for each in answer["commits"]
    ]
    if commits:
        session.output.line("")
        session.output.table(("revision", "committed", "rows", "bytes"), commits)


def _record(answer: Mapping[str, Any]) -> dict[str, str]:
    pending, running = answer["status"] == "pending", answer["status"] == "running"
    released = "on its way" if answer["released"] else "withheld: see qo why " + answer["id"]
    return {
        "id": answer["id"],
        "job": f"{answer['dag']}.{answer['job']}",
        "status": answer["status"],
        "superseded": answer["superseded"]["text"] if answer["superseded"] else "",
        "wake-up": released if pending else "",
        "what": format_extent(answer),
        "operator": answer["operator"],
        "code": _describe_code(answer),
        "queue": answer["queue"],
        "attempt": str(answer["attempt"] or ""),
        "rescheduled": _describe_reschedules(answer),
        "retries": f"{answer['retry_count']} of {answer['max_retries']}" if answer["retry_count"] else "",
        "created": format_timestamp(answer["created_at"]),
        "updated": format_timestamp(answer["updated_at"]),
        "due": format_timestamp(answer["available_at"]) if pending else "",
        "ended": format_timestamp(answer["completed_at"]),
        "worker": answer["worker_id"] or "",
        "lease until": format_timestamp(answer["lease_expires_at"]) if running else "",
        "cancel": "requested" if answer["cancel_requested"] else "",
        "progress": "" if answer["progress"] is None else json.dumps(answer["progress"]),
        "result": "" if answer["output"] is None else json.dumps(answer["output"]),
        "error": answer["last_error"] or "",
        "traceback": (answer["traceback"] or "").rstrip(),
    }


def _describe_code(answer: Mapping[str, Any]) -> str:
    """Return which code a task runs; empty for the operators of qo itself."""
    if ":" not in answer["operator"]:
        return ""
    if answer["bundle"] is None:
        pinned = "" if answer["code"] is None else f", pinned as {answer['code']}"
        return f"the worker's own{pinned}"
    return f"{answer['code']}, in bundle {answer['bundle'][:12]}"


def _describe_reschedules(answer: Mapping[str, Any]) -> str:
    if not answer["rescheduled"]:
        return ""
    return f"{plural(answer['rescheduled'], 'time')}, last: {answer['reschedule_reason'] or 'without a reason'}"


def _span(each: Mapping[str, Any]) -> str:
    end = format_timestamp(each["ended_at"])
    return format_timestamp(each["started_at"]) + (f" to {end}" if end else "")


@command(run, "logs")
def logs(
    session: Session,
    task_id: TaskId,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", min=1, help="The log of this attempt [the last one].", show_default=False),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on printing while it runs, also its next attempts.")
    ] = False,
    last: Annotated[
        int | None,
        typer.Option(
            "--last", min=1, max=5000, help="Begin with this many lines from the end.", show_default=False
        ),
    ] = None,
) -> None:
    """Print what an attempt at a task has printed and logged.

    Times are UTC. With --follow and --json each line is a JSON document.
    """
    from qo.cli.pipelines.run_log import LogPrinter

    printer = LogPrinter(session, task_id, attempt, last)
    ask(session, printer.follow if follow else printer.print_all)


@command(run, "cancel")
def cancel(
    session: Session,
    task_ids: TaskIds,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept with the task.")] = None,
) -> int:
    """Cancel pending tasks; ask running ones to stop."""
    body = {} if reason is None else {"reason": reason}
    return _move_each(session, task_ids, lambda client, id_: client.post(route("tasks", id_, "cancel"), body))


@command(run, "replay")
def replay(session: Session, task_ids: TaskIds) -> int:
    """Run failed or cancelled tasks again, with all their attempts."""
    return _move_each(
        session, task_ids, lambda client, id_: client.post(route("tasks", id_, "replay"), repeatable=False)
    )


def _move_each(session: Session, task_ids: list[str], move: Callable[[UserClient, str], Awaitable[Any]]) -> int:
    """Call ``move`` for each task and print its outcome; return the highest exit code."""
    unique_ids = list(dict.fromkeys(task_ids))

    async def move_all(client: UserClient) -> list[Any]:
        outcomes: list[Any] = []
        for id_ in unique_ids:
            try:
                outcomes.append(await move(client, id_))
            except QoError as error:
                outcomes.append(error)
        return outcomes

    documents: list[dict[str, object]] = []
    worst = 0
    for id_, outcome in zip(unique_ids, ask(session, move_all), strict=True):
        if isinstance(outcome, QoError):
            documents.append({"id": id_, "ok": False, "error": str(outcome), "exit_code": outcome.exit_code})
            worst = max(worst, outcome.exit_code)
            sys.stderr.write(f"error: {outcome}\n")
            continue
        documents.append({"id": id_, "ok": True, "status": outcome["status"]})
        if not session.json:
            suffix = " (asked to stop)" if outcome["status"] == "running" else ""
            session.output.line(one_line(f"{id_}  {outcome['status']}{suffix}"))
    if session.json:
        session.output.document(documents)
    return worst
