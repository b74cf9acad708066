"""qo status, history, list, wait: show tasks."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.queue import task_view
from qo.core.durations import parse_duration_s
from qo.core.shard import validate_task_id
from qo.core.task import Status, Task
from qo.core.words import plural
from qo.errors import UsageError
from qo.queue.listing import SCAN_MAX, YOUNG_MAX, Filter, FoundTasks
from qo.queue.queue import Queue
from qo.queue.waiting import find_orphans, why_unclaimed

app = new_app()

# Validated while the command line is parsed: a typo must not open, and so create, a store.
TaskId = Annotated[
    str,
    typer.Argument(metavar="TASK", parser=validate_task_id, help="The task's id, as printed by qo submit."),
]


def _parse_subject(text: str) -> str:
    """Accept the id of a task, or the name of a pipeline. No name of a pipeline looks like an id."""
    return text if _PIPELINE.fullmatch(text) else validate_task_id(text)


_PIPELINE = re.compile(r"[a-z][a-z0-9_]{0,127}")


@command(app, "status")
def status(
    session: Session,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[TASK|PIPELINE]",
            parser=_parse_subject,
            help="The id of a task, or the name of a pipeline; unset: all pipelines.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Of pipelines: show it again every two seconds until all is done."),
    ] = False,
) -> None:
    """Show a task, or pipelines, as they are now."""
    if subject is None or _PIPELINE.fullmatch(subject):
        from qo.cli.pipelines import pipeline_status

        if subject is None:
            pipeline_status.show_pipelines(session, watch=watch)
        else:
            pipeline_status.show_pipeline(session, subject, watch=watch)
        return
    if watch:
        raise UsageError("--watch is for pipelines: use qo wait TASK")
    _show_task(session, subject)


def _show_task(session: Session, task_id: str) -> None:
    async def read_task(queue: Queue) -> tuple[Task, str | None]:
        task = await queue.payloads.fetch_values(await queue.get(task_id))
        return task, await why_unclaimed(queue, task)

    task, reason = session.ask(read_task)
    task_view.show(session, task)
    if reason is not None:
        session.output.note(reason)


@command(app, "history")
def history(session: Session, task_id: TaskId) -> None:
    """Show every state that a task has been in.

    The oldest comes first. With --json, an array of all stored versions of the task.
    """

    async def read_history(queue: Queue) -> list[Task]:
        return await queue.history(task_id)

    states = session.ask(read_history)
    if session.json:
        session.output.document(states)
    else:
        task_view.show_history(session, states)


@command(app, "list")
def list_(
    session: Session,
    shard: Annotated[str | None, typer.Option("--shard", help="Only this shard, for example a.")] = None,
    status: Annotated[Status | None, typer.Option("--status", help="Only tasks with this status.")] = None,
    type: Annotated[str | None, typer.Option("--type", "-t", help="Only tasks of this type.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DURATION", help="Only tasks that changed within this time, as 1h."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)] = 100,
    all_: Annotated[
        bool, typer.Option("--all", help=f"Look at every task, even if there are more than {SCAN_MAX:,}.")
    ] = False,
) -> None:
    """List tasks, newest first.

    All filters apply before the limit. Archived tasks are listed only with --status archived. If there are too many
    tasks to look at, an evenly spread part of them is listed, and all that wait or run as far as a page holds them. Of
    running tasks, those of the last seconds may be missing while many are due. Both are noted, and --all avoids both.
    """
    since_s = None if since is None else parse_duration_s(since, "--since")
    if limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}")

    async def read_list(queue: Queue) -> tuple[FoundTasks, list[str]]:
        changed = None if since_s is None else await queue.store.now() - timedelta(seconds=since_s)
        criteria = Filter(status=status, task_type=type, shard=shard, since=changed)
        bounds = (None, None) if all_ else (SCAN_MAX, YOUNG_MAX)
        matches = await queue.find(criteria, limit, scan_max=bounds[0], young_max=bounds[1])
        return matches, [] if session.json else await find_orphans(queue, matches.tasks)

    (tasks, complete), orphans = session.ask(read_list)
    if not complete and status is Status.RUNNING:
        session.output.note(
            f"more than {YOUNG_MAX:,} tasks are due, so some that began within the last seconds may be missing; choose "
            "a --shard, or read every due task with --all"
        )
    elif not complete:
        session.output.note(
            "there are too many tasks to look at all of them, so some of the newest may be missing; choose a --shard, "
            "or a --status of pending or running, or look at every task with --all"
        )
    if session.json:
        session.output.document(tasks)
        return
    task_view.show_list(session, tasks, frozenset(orphans))
    if orphans:
        session.output.note(
            f"no running worker has a handler for {', '.join(map(repr, orphans))}: start one whose app has it"
        )
    if len(tasks) == limit:
        session.output.note(f"stopped after {plural(limit, 'task')}; --limit shows more")


@command(app, "wait")
def wait(
    session: Session,
    task_id: TaskId,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Wait no longer than this.")
    ] = None,
) -> int:
    """Wait until a task has ended.

    Then shows it. Exits with 0 if it completed, with 8 if it failed, was cancelled or has not ended in time.
    """
    timeout_s = task_view.parse_wait_s(timeout, "--timeout")

    async def wait_for_task(queue: Queue) -> Task:
        return await task_view.wait_until_ended(queue, task_id, timeout_s)

    return task_view.show_ended(session, session.ask(wait_for_task))
