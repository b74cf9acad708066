"""The newest tasks of a pipeline with the times that each waited and ran."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import sqlalchemy as sa

from qo.api.contract.first_pages import TimelineAnswer, TimelineAttempt, TimelineTask
from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.versions import overview

ATTEMPTS_MAX = 20  # Of one task, the newest: one that polls may have thousands.

_tasks, _attempts = schema.tasks, schema.attempts
_COLUMNS = (
    _tasks.c.id,
    _tasks.c.job,
    _tasks.c.status,
    _tasks.c.attempt,
    _tasks.c.partition_key,
    _tasks.c.cursor,
    _tasks.c.created_at,
    _tasks.c.available_at,
    _tasks.c.completed_at,
)


def list_timeline(
    tx: Tx, dag: str, *, job: str | None = None, before: datetime | None = None, limit: int = 200
) -> TimelineAnswer:
    """List the tasks that were created last, newest first. Raises NotFound."""
    overview.require(tx, dag, job)
    rows = _newest(tx, dag, job, before, limit + 1)
    page = rows[:limit]
    attempts = _attempts_of(tx, page)
    return TimelineAnswer(
        now=tx.now,
        tasks=[
            TimelineTask(
                **{
                    name: row[name]
                    for name in ("id", "job", "status", "partition_key", "cursor", "created_at", "available_at")
                },
                completed_at=row["completed_at"],
                attempts=attempts.get(row["id"], []),
            )
            for row in page
        ],
        before=page[-1]["created_at"] if len(rows) > limit else None,
    )


def _newest(tx: Tx, dag: str, job: str | None, before: datetime | None, limit: int) -> list[sa.RowMapping]:
    """Merge the newest tasks of each status: an index leads to each of these, and to no other tasks."""
    rows: list[sa.RowMapping] = []
    for status in Status:
        for edition in [None] if job is None else list_editions(tx, dag, job):
            query = sa.select(*_COLUMNS).where(_tasks.c.status == status)
            query = query.where(_tasks.c.dag == dag if edition is None else _tasks.c.edition_id == edition)
            if before is not None:
                query = query.where(_tasks.c.created_at < before)
            rows += tx.all(query.order_by(_tasks.c.created_at.desc()).limit(limit))
    return sorted(rows, key=lambda row: (row["created_at"], row["id"]), reverse=True)[:limit]


def list_editions(tx: Tx, dag: str, job: str) -> list[str]:
    """Return the editions that a job has had, the last ten of them."""
    jobs, versions = schema.jobs, schema.dag_versions
    query = (
        sa.select(jobs.c.edition_id)
        .join(versions, versions.c.id == jobs.c.version_id)
        .where(versions.c.dag == dag, jobs.c.name == job)
        .group_by(jobs.c.edition_id)
        .order_by(sa.func.max(versions.c.number).desc())
        .limit(10)
    )
    return list(tx.execute(query).scalars())


def _attempts_of(tx: Tx, tasks: Iterable[sa.RowMapping]) -> dict[str, list[TimelineAttempt]]:
    newest = {row["id"]: row["attempt"] for row in tasks}
    attempts: dict[str, list[TimelineAttempt]] = {}
    for some in batches(newest):
        is_recent = _attempts.c.attempt > _tasks.c.attempt - ATTEMPTS_MAX
        query = (
            sa.select(_attempts)
            .join(_tasks, _tasks.c.id == _attempts.c.task_id)
            .where(_attempts.c.task_id.in_(some), is_recent)
            .order_by(_attempts.c.task_id, _attempts.c.attempt)
        )
        for row in tx.all(query):
            attempts.setdefault(row["task_id"], []).append(
                TimelineAttempt(
                    attempt=row["attempt"],
                    started_at=row["started_at"],
                    ended_at=row["ended_at"],
                    outcome=row["outcome"],
                    worker_id=row["worker_id"],
                )
            )
    return attempts
