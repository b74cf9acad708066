"""What operators do with tasks: list, show, cancel and replay them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from qo.api.contract.task_view import AttemptView, CommitView, MovedAnswer, ReadView, TaskList, TaskRow, TaskView
from qo.core.lifecycle import Cancel, Command, Rejected, Replay
from qo.core.pipeline.topology import Topology
from qo.core.task import Status
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import failures, rows
from qo.dispatcher.tasks.rows import Row
from qo.errors import NotFound, Refused, UsageError

LIST_MAX = 500
SHOWN_MAX = 100  # Of the attempts, inputs and commits of one task.

STATUSES = (Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELLED)

_tasks = schema.tasks


def cancel(tx: Tx, task_id: str, by: str, reason: str | None = None) -> MovedAnswer:
    """Cancel a pending task, or ask the worker of a running one to stop. Raises Refused if it has ended, NotFound."""
    return _move(tx, task_id, Cancel(token=tx.ambient.token(), by=by, reason=reason))


def replay(tx: Tx, task_id: str, by: str) -> MovedAnswer:
    """Let a failed or cancelled task run again, with all its attempts.

    Raises Refused for tasks in other states and for one that no live version has, which would never be released;
    NotFound.
    """
    del by  # The log of the request names the caller; the task begins anew.
    _require_live(tx, task_id)
    return _move(tx, task_id, Replay(token=tx.ambient.token()))


def list_tasks(
    tx: Tx,
    *,
    dag: str | None = None,
    job: str | None = None,
    status: str | None = None,
    after: str | None = None,
    limit: int = 100,
    superseded: bool = False,
) -> TaskList:
    """Return tasks, newest first. ``after``: where the previous page ended.

    With status ``failed`` only open failures are listed, or with ``superseded`` all of them, marked as such.
    """
    if status is not None and status not in STATUSES:
        raise UsageError(f"{status!r} is no status of a task: write one of {', '.join(STATUSES)}")
    if job is not None and dag is None:
        raise UsageError("a job is known by its DAG: give both")
    limit = max(1, min(limit, LIST_MAX))
    live = topology.load(tx)
    if status == Status.FAILED and not superseded:
        return _open_failures(tx, live, dag, job, after, limit)
    query = sa.select(_tasks)
    if after is not None:
        moment, id_ = _place(after)
        place = sa.tuple_(sa.literal(moment, schema.Instant()), sa.literal(id_))
        query = query.where(sa.tuple_(_tasks.c.created_at, _tasks.c.id) < place)
    statuses = STATUSES if status is None else (status,)
    if dag is None:
        task_rows = _newest(tx, [query], statuses, limit + 1)
    elif job is None:
        task_rows = _newest(tx, [query.where(_tasks.c.dag == dag)], statuses, limit + 1)
    else:
        editions = _editions(tx, dag, job)
        task_rows = _newest(
            tx, [query.where(_tasks.c.edition_id == each) for each in editions], statuses, limit + 1
        )
    page = task_rows[:limit]
    more = _after((page[-1]["created_at"], page[-1]["id"])) if len(task_rows) > limit else None
    return TaskList(tasks=_lines(tx, live, page), after=more)


def _open_failures(
    tx: Tx, live: Topology, dag: str | None, job: str | None, after: str | None, limit: int
) -> TaskList:
    jobs = live.jobs.values() if dag is None else live.of_dag(dag)
    editions = [each.edition_id for each in jobs if job in (None, each.job.name)]
    page = failures.open_page(tx, live, editions, None if after is None else _place(after), limit)
    rows_by_id = rows.load_all(tx, [id_ for _, id_ in page.places], lock=False)
    tasks = [TaskRow.model_validate(_line(rows_by_id[id_])) for _, id_ in page.places]
    return TaskList(tasks=tasks, after=None if page.after is None else _after(page.after))


def _lines(tx: Tx, live: Topology, task_rows: Sequence[Row]) -> list[TaskRow]:
    why = failures.superseded(tx, live, task_rows)
    return [TaskRow.model_validate({**_line(each), "superseded": why.get(each["id"])}) for each in task_rows]


def show_task(tx: Tx, task_id: str) -> TaskView:
    """Return one task with its attempts, what it read and what it committed. Raises NotFound."""
    if tx.one(sa.select(schema.events.c.seq).where(schema.events.c.id == task_id)) is not None:
        raise NotFound(f"{task_id} is no task, it is an event: see qo why {task_id}")
    row = rows.load(tx, task_id, lock=False)
    attempts, inputs, commits = schema.attempts, schema.task_inputs, schema.commits
    own = {name: row[name] for name in TaskView.model_fields if name in row}
    tried = sa.select(attempts).where(attempts.c.task_id == task_id).order_by(attempts.c.attempt.desc())
    read = sa.select(inputs).where(inputs.c.task_id == task_id).order_by(inputs.c.position)
    committed = schema.select_commits().where(commits.c.task_id == task_id).order_by(commits.c.revision)
    beside: dict[str, Any] = {
        "attempts": [AttemptView.model_validate(dict(each)) for each in reversed(tx.all(tried.limit(SHOWN_MAX)))],
        "inputs": [_read_view(each) for each in tx.all(read.limit(SHOWN_MAX))],
        "commits": [CommitView.model_validate(dict(each)) for each in tx.all(committed.limit(SHOWN_MAX))],
    }
    again = rows.rescheduled(tx, row)
    if again is not None:
        beside |= {"rescheduled": again.times, "reschedule_reason": again.reason}
    why = failures.superseded(tx, topology.load(tx), [row]).get(task_id)
    return TaskView.model_validate({**own, **_line(row), **_code(tx, row), **beside, "superseded": why})


def _code(tx: Tx, row: Row) -> dict[str, Any]:
    """Return the bundle and the fingerprint of the code that its job runs."""
    jobs = schema.jobs
    job = tx.one(sa.select(jobs.c.bundle, jobs.c.definition).where(jobs.c.id == row["job_id"]))
    return {} if job is None else {"bundle": job["bundle"], "code": job["definition"].get("code")}


def _read_view(pin: sa.RowMapping) -> ReadView:
    values: dict[str, Any] = {name: pin[name] for name in ReadView.model_fields}
    return ReadView.model_validate(values | {"partition_key": pin["partition_key"] or None})


def _require_live(tx: Tx, task_id: str) -> None:
    """Raise Refused for a task of an edition that no live version has, NotFound."""
    live = topology.load(tx)  # Before the task is locked.
    row = rows.load(tx, task_id, lock=False)
    if row["edition_id"] in live.jobs:
        return
    last = failures.last_version(tx, row["edition_id"])
    name = f"{row['dag']}.{row['job']}"
    which = f"version {last.version} was {last.ended_as}" if last is not None else "its version is gone"
    raise Refused(
        f"task {task_id} of {name} is not run again: no live version has its job as it was ({which}); what is live "
        f"now has tasks of its own, see qo run list {name}, or deploy the file of that version again"
    )


def _move(tx: Tx, task_id: str, command: Command) -> MovedAnswer:
    moved = rows.move(tx, rows.load(tx, task_id), command)
    if isinstance(moved, Rejected):
        raise Refused(moved.detail)
    return MovedAnswer(task_id=task_id, status=moved.row["status"], changed=moved.changed)


def _line(row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {name: row[name] for name in TaskRow.model_fields if name in row}
    return line | {"released": row["status"] == Status.PENDING and row["released_at"] is not None}


def _newest(
    tx: Tx, queries: Iterable[sa.Select[*tuple[Any, ...]]], statuses: Iterable[str], limit: int
) -> list[Row]:
    """Return the newest rows, queried status by status as the indexes are: there may be a million tasks."""
    newest: list[Row] = []
    for query in queries:
        for status in statuses:
            of_status = query.where(_tasks.c.status == str(status))
            ordered = of_status.order_by(_tasks.c.created_at.desc(), _tasks.c.id.desc())
            newest += [dict(each) for each in tx.all(ordered.limit(limit))]
    return sorted(newest, key=lambda row: (row["created_at"], row["id"]), reverse=True)[:limit]


def _editions(tx: Tx, dag: str, job: str) -> Sequence[str]:
    jobs = schema.jobs
    is_job = sa.and_(jobs.c.dag == dag, jobs.c.name == job)
    return tx.execute(sa.select(jobs.c.edition_id).where(is_job).distinct()).scalars().all()


def _after(place: failures.Place) -> str:
    return f"{place[0].isoformat()}/{place[1]}"


def _place(after: str) -> failures.Place:
    moment, _, id_ = after.partition("/")
    try:
        return datetime.fromisoformat(moment).astimezone(UTC), id_
    except (ValueError, OverflowError):
        raise UsageError(f"{after!r} is no place in a list of tasks: pass on what the last answer gave") from None
