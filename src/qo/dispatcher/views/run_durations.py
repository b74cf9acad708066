"""How long the last tasks of each job took: what estimates of further tasks are made of."""

from __future__ import annotations

import sqlalchemy as sa

from qo.api.contract.first_pages import DurationsAnswer, JobDurations
from qo.core.task import Status
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.versions import overview

TASKS_MAX = 100  # Of each job.
JOBS_MAX = 1_000

_tasks = schema.tasks


def list_durations(tx: Tx, dag: str) -> DurationsAnswer:
    """Return the durations of the jobs of a pipeline's active version. Raises NotFound."""
    overview.require(tx, dag)
    live = topology.load(tx)
    jobs = sorted(live.of_dag(dag), key=lambda job: -job.version_number)
    editions = {job.job.name: job.edition_id for job in jobs}  # The active version's, if two have an own edition.
    return DurationsAnswer(
        dag=dag,
        jobs=[_describe(tx, job, edition) for job, edition in sorted(editions.items())[:JOBS_MAX]],
    )


def _describe(tx: Tx, job: str, edition: str) -> JobDurations:
    query = (
        sa.select(_tasks.c.started_at, _tasks.c.completed_at)
        .where(_tasks.c.edition_id == edition, _tasks.c.status == Status.COMPLETED)
        .order_by(_tasks.c.created_at.desc())
        .limit(TASKS_MAX)
    )
    spans = sorted(
        (row.completed_at - row.started_at).total_seconds()
        for row in tx.execute(query)
        if row.started_at is not None and row.completed_at is not None
    )
    if not spans:
        return JobDurations(job=job, tasks=0)
    p95 = spans[min(len(spans) - 1, int(0.95 * len(spans)))]
    return JobDurations(job=job, tasks=len(spans), mean_s=sum(spans) / len(spans), p95_s=p95)
