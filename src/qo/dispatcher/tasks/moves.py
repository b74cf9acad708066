"""What people do with tasks: look at them, cancel them, let them run once more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from qo.core.lifecycle import Cancel, Command, Rejected, Replay
from qo.core.task import Status
from qo.dispatcher.contract.task_view import (
    AttemptView,
    CommitView,
    MovedAnswer,
    ReadView,
    TaskList,
    TaskRow,
    TaskView,
)
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import rows
from qo.dispatcher.tasks.rows import Row
from qo.errors import NotFound, Refused, UsageError

LIST_MAX = 500
SHOWN_MAX = 100  # Of the attempts, inputs and commits of one task.

STATUSES = (Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELLED)

_tasks = schema.tasks


def cancel(tx: Tx, task_id: str, by: str, reason: str | None = None) -> MovedAnswer:
    """End a task that waits; ask the worker of one that runs to stop. Raises Refused if it has ended, NotFound."""
    return _move(tx, task_id, Cancel(token=tx.ambient.token(), by=by, reason=reason))


def replay(tx: Tx, task_id: str, by: str) -> MovedAnswer:
    """Let a failed or cancelled task run once more, with all its attempts. Raises Refused for others, NotFound."""
    del by  # Who asked is in the log of the request; the task begins anew.
    return _move(tx, task_id, Replay(token=tx.ambient.token()))


def list_tasks(
    tx: Tx,
    *,
    dag: str | None = None,
    job: str | None = None,
    status: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> TaskList:
    """The newest first. ``after``: where the last answer ended."""
    if status is not None and status not in STATUSES:
        raise UsageError(f"{status!r} is no status of a task: write one of {', '.join(STATUSES)}")
    if job is not None and dag is None:
        raise UsageError("a job is known by its DAG: give both")
    limit = max(1, min(limit, LIST_MAX))
    query = sa.select(_tasks)
    if after is not None:
        query = query.where(sa.tuple_(_tasks.c.created_at, _tasks.c.id) < _place(after))
    wanted = STATUSES if status is None else (status,)
    if dag is None:
        found = _newest(tx, [query], wanted, limit + 1)
    elif job is None:
        found = _newest(tx, [query.where(_tasks.c.dag == dag)], wanted, limit + 1)
    else:
        editions = _editions(tx, dag, job)
        found = _newest(tx, [query.where(_tasks.c.edition_id == each) for each in editions], wanted, limit + 1)
    shown = found[:limit]
    more = f"{shown[-1]['created_at'].isoformat()}/{shown[-1]['id']}" if len(found) > limit else None
    return TaskList(tasks=[TaskRow.model_validate(_line(each)) for each in shown], after=more)


def show_task(tx: Tx, task_id: str) -> TaskView:
    """One task with its attempts, what it read and what it committed. Raises NotFound."""
    if tx.one(sa.select(schema.events.c.seq).where(schema.events.c.id == task_id)) is not None:
        raise NotFound(f"{task_id} is no task, it is an event: see qo why {task_id}")
    row = rows.load(tx, task_id, lock=False)
    attempts, inputs, commits = schema.attempts, schema.task_inputs, schema.commits
    own = {name: row[name] for name in TaskView.model_fields if name in row}
    tried = sa.select(attempts).where(attempts.c.task_id == task_id).order_by(attempts.c.attempt.desc())
    read = sa.select(inputs).where(inputs.c.task_id == task_id).order_by(inputs.c.position)
    made = sa.select(commits).where(commits.c.task_id == task_id).order_by(commits.c.revision)
    beside = {
        "attempts": [AttemptView.model_validate(dict(each)) for each in reversed(tx.all(tried.limit(SHOWN_MAX)))],
        "inputs": [_read_view(each) for each in tx.all(read.limit(SHOWN_MAX))],
        "commits": [CommitView.model_validate(dict(each)) for each in tx.all(made.limit(SHOWN_MAX))],
    }
    return TaskView.model_validate({**own, **_line(row), **_code(tx, row), **beside})


def _code(tx: Tx, row: Row) -> dict[str, Any]:
    """What its job runs."""
    jobs = schema.jobs
    found = tx.one(sa.select(jobs.c.bundle, jobs.c.definition).where(jobs.c.id == row["job_id"]))
    return {} if found is None else {"bundle": found["bundle"], "code": found["definition"].get("code")}


def _read_view(pin: sa.RowMapping) -> ReadView:
    values: dict[str, Any] = {name: pin[name] for name in ReadView.model_fields}
    return ReadView.model_validate(values | {"partition_key": pin["partition_key"] or None})


def _move(tx: Tx, task_id: str, command: Command) -> MovedAnswer:
    moved = rows.move(tx, rows.load(tx, task_id), command)
    if isinstance(moved, Rejected):
        raise Refused(moved.detail)
    return MovedAnswer(task_id=task_id, status=moved.row["status"], changed=moved.changed)


def _line(row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {name: row[name] for name in TaskRow.model_fields if name != "released"}
    return line | {"released": row["status"] == Status.PENDING and row["released_at"] is not None}


def _newest(
    tx: Tx, queries: Iterable[sa.Select[*tuple[Any, ...]]], statuses: Iterable[str], limit: int
) -> list[Row]:
    """Status by status, as the indexes have them: there may be a million tasks."""
    found: list[Row] = []
    for query in queries:
        for status in statuses:
            chosen = query.where(_tasks.c.status == str(status))
            ordered = chosen.order_by(_tasks.c.created_at.desc(), _tasks.c.id.desc())
            found += [dict(each) for each in tx.all(ordered.limit(limit))]
    return sorted(found, key=lambda row: (row["created_at"], row["id"]), reverse=True)[:limit]


def _editions(tx: Tx, dag: str, job: str) -> Sequence[str]:
    jobs = schema.jobs
    named = sa.and_(jobs.c.dag == dag, jobs.c.name == job)
    return tx.execute(sa.select(jobs.c.edition_id).where(named).distinct()).scalars().all()


def _place(after: str) -> sa.Tuple:
    moment, _, id_ = after.partition("/")
    try:
        at = datetime.fromisoformat(moment).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(f"{after!r} is no place in a list of tasks: pass on what the last answer gave") from None
    return sa.tuple_(sa.literal(at, schema.Instant()), sa.literal(id_))
