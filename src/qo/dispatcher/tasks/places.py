"""Where tasks run: the runtime and the queue of each, for callers that may have the tasks of some only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx


def task_places(tx: Tx, task_ids: Sequence[str]) -> Mapping[str, tuple[str, str]]:
    """Return runtime and queue of each task that exists; of a job that no live version has, as it was deployed."""
    tasks, jobs = schema.tasks.c, schema.jobs.c
    live = topology.load(tx).jobs
    rows = tx.execute(
        sa.select(tasks.id, tasks.edition_id, jobs.queue, jobs.definition)
        .join(schema.jobs, jobs.id == tasks.job_id)
        .where(tasks.id.in_(task_ids))
    )
    places: dict[str, tuple[str, str]] = {}
    for id_, edition_id, queue, definition in rows:
        job = live.get(edition_id)
        places[id_] = (definition["runtime"], queue) if job is None else (job.job.runtime, job.queue)
    return places
