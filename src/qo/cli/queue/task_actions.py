"""qo replay, archive, unarchive, cancel: change the state of one or many tasks."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.queue.bulk_actions import (
    AfterOption,
    DryRunOption,
    ErrorOption,
    LimitOption,
    OlderOption,
    Selection,
    ShardOption,
    SinceOption,
    StatusOption,
    TypeOption,
    YesOption,
    act_on_selection,
    require_one_way,
)
from qo.core.shard import validate_task_id
from qo.core.task import Task
from qo.errors import QoError
from qo.queue.bulk import Action
from qo.queue.options import check_text
from qo.queue.queue import Queue

app = new_app()

CONCURRENT_MOVES = 32

TaskIds = Annotated[list[str], typer.Argument(metavar="TASK...", help="The ids of the tasks.")]
OptionalTaskIds = Annotated[
    list[str] | None, typer.Argument(metavar="[TASK...]", help="The ids of the tasks.", show_default=False)
]


@command(app, "replay")
def replay(
    session: Session,
    task_ids: OptionalTaskIds = None,
    status: StatusOption = None,
    type: TypeOption = None,
    shard: ShardOption = None,
    since: SinceOption = None,
    older_than: OlderOption = None,
    error: ErrorOption = None,
    limit: LimitOption = None,
    after: AfterOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    dependents: Annotated[
        bool,
        typer.Option("--dependents", help="Also revive tasks that were cancelled because these did not complete."),
    ] = False,
) -> int:
    """Run failed, cancelled or expired tasks again.

    Each becomes pending at once, with all its retries, and waits for its dependencies no more. Give ids, or a filter:
    then the command shows which tasks match, and asks; without a terminal it changes nothing unless you say --yes.
    """
    selection = Selection(
        status=status,
        task_type=type,
        shard=shard,
        since=since,
        older_than=older_than,
        error=error,
        limit=limit,
        after=after,
        dry_run=dry_run,
        yes=yes,
    )
    if require_one_way(selection, task_ids or []):
        return act_on_selection(
            session, Action.REPLAY, selection, lambda queue: partial(queue.replay, dependents=dependents)
        )
    return _move_each(session, task_ids or [], lambda queue, task_id: queue.replay(task_id, dependents=dependents))


@command(app, "archive")
def archive(
    session: Session,
    task_ids: OptionalTaskIds = None,
    status: StatusOption = None,
    type: TypeOption = None,
    shard: ShardOption = None,
    since: SinceOption = None,
    older_than: OlderOption = None,
    error: ErrorOption = None,
    limit: LimitOption = None,
    after: AfterOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> int:
    """Archive ended tasks: they are kept, but not listed.

    Give ids, or a filter: then the command shows which tasks match, and asks; without a terminal it changes nothing
    unless you say --yes.
    """
    selection = Selection(
        status=status,
        task_type=type,
        shard=shard,
        since=since,
        older_than=older_than,
        error=error,
        limit=limit,
        after=after,
        dry_run=dry_run,
        yes=yes,
    )
    if require_one_way(selection, task_ids or []):
        return act_on_selection(session, Action.ARCHIVE, selection, lambda queue: queue.archive)
    return _move_each(session, task_ids or [], lambda queue, task_id: queue.archive(task_id))


@command(app, "unarchive")
def unarchive(session: Session, task_ids: TaskIds) -> int:
    """Take tasks out of the archive."""
    return _move_each(session, task_ids, lambda queue, task_id: queue.unarchive(task_id))


@command(app, "cancel")
def cancel(
    session: Session,
    task_ids: OptionalTaskIds = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept with the task.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Who cancels them [your login name].")] = None,
    status: StatusOption = None,
    type: TypeOption = None,
    shard: ShardOption = None,
    since: SinceOption = None,
    older_than: OlderOption = None,
    limit: LimitOption = None,
    after: AfterOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> int:
    """Cancel pending tasks; ask running ones to stop.

    Workers notice within seconds. They stop handlers that can be stopped; other handlers have to check for it. Give
    ids, or a filter: then the command shows which tasks match, and asks; without a terminal it changes nothing unless
    you say --yes.
    """
    check_text("--reason", reason)
    check_text("--by", by)
    who = by or login()
    selection = Selection(
        status=status,
        task_type=type,
        shard=shard,
        since=since,
        older_than=older_than,
        limit=limit,
        after=after,
        dry_run=dry_run,
        yes=yes,
    )
    if require_one_way(selection, task_ids or []):
        return act_on_selection(
            session,
            Action.CANCEL,
            selection,
            lambda queue: lambda task_id: queue.cancel(task_id, by=who, reason=reason),
        )
    return _move_each(session, task_ids or [], lambda queue, task_id: queue.cancel(task_id, by=who, reason=reason))


def login() -> str | None:
    """Return the login name of the user who runs the command, or None if there is none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None  # A container may run under a user id that has no name.


def _move_each(session: Session, task_ids: list[str], move: Callable[[Queue, str], Awaitable[Task]]) -> int:
    """Call ``move`` for each task and print its outcome; return the highest exit code.

    A malformed id is a mistake in the command line, and stops everything before the first move.
    """
    unique_ids = list(dict.fromkeys(validate_task_id(task_id) for task_id in task_ids))

    async def move_all(queue: Queue) -> list[Task | QoError]:
        results: list[Task | QoError] = []
        for start in range(0, len(unique_ids), CONCURRENT_MOVES):
            batch = unique_ids[start : start + CONCURRENT_MOVES]
            results += await asyncio.gather(*(_catch_error(move(queue, task_id)) for task_id in batch))
        return results

    outcomes = session.ask(move_all)
    documents: list[dict[str, object]] = []
    worst = 0
    for task_id, outcome in zip(unique_ids, outcomes, strict=True):
        if isinstance(outcome, Task):
            documents.append({"id": task_id, "ok": True, "status": outcome.status})
            _print_line(session, f"{task_id}  {outcome.status}" + _running_suffix(outcome))
        else:
            documents.append({"id": task_id, "ok": False, "error": str(outcome), "exit_code": outcome.exit_code})
            worst = max(worst, outcome.exit_code)
            sys.stderr.write(f"error: {outcome}\n")
    if session.json:
        session.output.document(documents)
    return worst


async def _catch_error(move: Awaitable[Task]) -> Task | QoError:
    try:
        return await move
    except QoError as error:
        return error


def _running_suffix(task: Task) -> str:
    return " (asked to stop)" if task.cancel_requested and not task.ended else ""


def _print_line(session: Session, text: str) -> None:
    if not session.json:
        session.output.line(text)
