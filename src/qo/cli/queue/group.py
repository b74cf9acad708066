"""qo group list, skip: the lines of groups."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.queue import task_view
from qo.cli.queue.task_actions import login
from qo.core.durations import format_instant
from qo.core.task import Task
from qo.errors import NotFound
from qo.queue.queue import Queue

app = new_app()
group = new_group(app, "group", "Show the lines of groups, and skip the task that blocks one.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the group, as in qo submit --group.")]


@command(group, "list")
def list_(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this group, task by task.")] = None,
) -> None:
    """List the groups that have tasks in line, or the tasks of one group.

    The first task is the one whose turn it is; the others wait for it, also while it is not due yet.
    """
    if name is not None:
        tasks = session.ask(lambda queue: queue.groups.line(name))
        if session.json:
            session.output.document(tasks)
        else:
            task_view.show_list(session, tasks)
        return

    async def read_lines(queue: Queue) -> dict[str, list[Task]]:
        lines = {each: await queue.groups.line(each) async for each in queue.groups.names()}
        return {each: line for each, line in sorted(lines.items()) if line}

    lines = session.ask(read_lines)
    if session.json:
        documents = [
            {
                "group": each,
                "length": len(line),
                "first": line[0].id,
                "status": str(line[0].status),
                "due": line[0].available_at,
            }
            for each, line in lines.items()
        ]
        session.output.document(documents)
        return
    rows = [
        (each, str(len(line)), line[0].id, str(line[0].status), format_instant(line[0].available_at))
        for each, line in lines.items()
    ]
    session.output.table(("group", "length", "first", "status", "due"), rows)


@command(group, "skip")
def skip(
    session: Session,
    name: Name,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept with the task.")] = None,
) -> None:
    """Cancel the task whose turn it is, so that the next one can start.

    A running task is asked to stop; the next one starts when it has.
    """
    by = login()

    async def skip_first(queue: Queue) -> Task:
        line = await queue.groups.line(name)
        if not line:
            raise NotFound(f"the group {name!r} has no task in line")
        return await queue.cancel(line[0].id, by=by, reason=reason or f"skipped in group {name}")

    task = session.ask(skip_first)
    if session.json:
        session.output.document(task)
    else:
        session.output.line(f"{task.id}  {task.status}" + ("" if task.ended else " (asked to stop)"))
