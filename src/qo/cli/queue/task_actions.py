"""qo replay, archive, unarchive, cancel: moving tasks, one or many at a time."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from qo.cli.session import Session, command, new_app
from qo.core.shard import validate_task_id
from qo.core.task import Task
from qo.errors import QoError
from qo.queue.options import check_text
from qo.queue.queue import Queue

app = new_app()

MOVES_AT_ONCE = 32

TaskIds = Annotated[list[str], typer.Argument(metavar="TASK...", help="The ids of the tasks.")]


@command(app, "replay")
def replay(session: Session, task_ids: TaskIds) -> int:
    """Run failed, cancelled or expired tasks again.

    Each becomes pending at once, with all its retries.
    """
    return _each(session, task_ids, lambda queue, task_id: queue.replay(task_id))


@command(app, "archive")
def archive(session: Session, task_ids: TaskIds) -> int:
    """Archive ended tasks: they are kept, but not listed."""
    return _each(session, task_ids, lambda queue, task_id: queue.archive(task_id))


@command(app, "unarchive")
def unarchive(session: Session, task_ids: TaskIds) -> int:
    """Take tasks out of the archive."""
    return _each(session, task_ids, lambda queue, task_id: queue.unarchive(task_id))


@command(app, "cancel")
def cancel(
    session: Session,
    task_ids: TaskIds,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept with the task.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Who; otherwise the name you are logged in with.")] = None,
) -> int:
    """Cancel pending tasks; ask running ones to stop.

    A worker hears of it within seconds. It stops a handler that can be stopped; others have to look for themselves.
    """
    check_text("--reason", reason)
    check_text("--by", by)
    who = by or login()
    return _each(session, task_ids, lambda queue, task_id: queue.cancel(task_id, by=who, reason=reason))


def login() -> str | None:
    """Who runs the command, if that is known."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None  # A container may run under a number that has no name.


def _each(session: Session, task_ids: list[str], move: Callable[[Queue, str], Awaitable[Task]]) -> int:
    """Move each task and say what became of it; the answer is the highest exit code among them.

    A malformed id stops everything before the first move: it is a slip of the whole command line.
    """
    wanted = list(dict.fromkeys(validate_task_id(task_id) for task_id in task_ids))

    async def all_of_them(queue: Queue) -> list[Task | QoError]:
        done: list[Task | QoError] = []
        for start in range(0, len(wanted), MOVES_AT_ONCE):
            batch = wanted[start : start + MOVES_AT_ONCE]
            done += await asyncio.gather(*(_outcome(move(queue, task_id)) for task_id in batch))
        return done

    outcomes = session.ask(all_of_them)
    told: list[dict[str, object]] = []
    worst = 0
    for task_id, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, Task):
            told.append({"id": task_id, "ok": True, "status": outcome.status})
            _say(session, f"{task_id}  {outcome.status}" + _still_running(outcome))
        else:
            told.append({"id": task_id, "ok": False, "error": str(outcome), "exit_code": outcome.exit_code})
            worst = max(worst, outcome.exit_code)
            sys.stderr.write(f"error: {outcome}\n")
    if session.json:
        session.output.document(told)
    return worst


async def _outcome(moved: Awaitable[Task]) -> Task | QoError:
    try:
        return await moved
    except QoError as error:
        return error


def _still_running(task: Task) -> str:
    return " (asked to stop)" if task.cancel_requested and not task.ended else ""


def _say(session: Session, text: str) -> None:
    if not session.json:
        session.output.line(text)
