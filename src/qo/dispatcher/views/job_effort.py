"""How long the last tasks of a job ran and waited, and what worker time they took, over time. Read-only."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from qo.api.contract.first_pages import EffortAnswer, EffortPeriod
from qo.core.pipeline.effort import Period, TaskEffort, split_periods
from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.versions import overview
from qo.dispatcher.views.run_timeline import ATTEMPTS_MAX, list_editions

TASKS_MAX = 1_000

_tasks, _attempts = schema.tasks, schema.attempts


def show_effort(tx: Tx, dag: str, job: str, limit: int = TASKS_MAX) -> EffortAnswer:
    """Show what the tasks of a job took that were created last and have ended. Raises NotFound."""
    overview.require(tx, dag, job)
    rows = _ended(tx, dag, job, limit + 1)
    page = rows[:limit]
    length, periods = split_periods(_measure(tx, page))
    return EffortAnswer(
        dag=dag,
        job=job,
        period_s=length,
        tasks=len(page),
        more=len(rows) > limit,
        periods=[_period(each) for each in periods],
    )


def _ended(tx: Tx, dag: str, job: str, most: int) -> list[sa.RowMapping]:
    rows: list[sa.RowMapping] = []
    names = ("id", "status", "attempt", "created_at", "started_at", "completed_at")
    columns = [_tasks.c[name] for name in names]
    for edition in list_editions(tx, dag, job):
        for status in (Status.COMPLETED, Status.FAILED):
            query = sa.select(*columns).where(_tasks.c.edition_id == edition, _tasks.c.status == status)
            rows += tx.all(query.order_by(_tasks.c.created_at.desc()).limit(most))
    return sorted(rows, key=lambda row: (row["created_at"], row["id"]), reverse=True)


def _measure(tx: Tx, tasks: list[sa.RowMapping]) -> list[TaskEffort]:
    """Measure tasks by their attempts; one that was tried very often, by its last attempt alone."""
    attempts = _attempts_of(tx, [row["id"] for row in tasks if row["attempt"] <= ATTEMPTS_MAX])
    efforts: list[TaskEffort] = []
    for row in tasks:
        last = [(row["started_at"], row["completed_at"])] if row["started_at"] and row["completed_at"] else []
        own = attempts.get(row["id"], last)
        if not own:
            continue
        first, last_end = min(begin for begin, _ in own), max(end for _, end in own)
        efforts.append(
            TaskEffort(
                ended_at=(row["completed_at"] or last_end).timestamp(),
                has_failed=row["status"] == Status.FAILED,
                attempts=row["attempt"],
                ran_s=sum(max(0.0, (end - begin).total_seconds()) for begin, end in own),
                waited_s=max(0.0, (first - row["created_at"]).total_seconds()),
            )
        )
    return efforts


def _attempts_of(tx: Tx, task_ids: list[str]) -> dict[str, list[tuple[datetime, datetime]]]:
    attempts: dict[str, list[tuple[datetime, datetime]]] = {}
    for some in batches(task_ids):
        query = sa.select(_attempts.c.task_id, _attempts.c.started_at, _attempts.c.ended_at)
        query = query.where(_attempts.c.task_id.in_(some), _attempts.c.ended_at.is_not(None))
        for task_id, started_at, ended_at in tx.execute(query):
            attempts.setdefault(task_id, []).append((started_at, ended_at))
    return attempts


def _period(period: Period) -> EffortPeriod:
    return EffortPeriod(
        begin=datetime.fromtimestamp(period.begin, UTC),
        tasks=len(period.tasks),
        failed=period.failed,
        attempts=period.attempts,
        median_s=period.ran_s(0.5),
        p95_s=period.ran_s(0.95),
        waited_s=period.waited_s,
        worker_s=period.worker_s,
    )
