"""Where tasks run: the runtime and the queue of each, for callers that may have the tasks of some only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx


def task_places(tx: Tx, task_ids: Sequence[str]) -> Mapping[str, tuple[str, str]]:
    """Return runtime and queue of each task that exists.

    The queue is the one that its wake-up is in, or was. That is not the queue of its job while the job is being moved.
    """
    tasks, jobs = schema.tasks.c, schema.jobs.c
    rows = tx.execute(
        sa.select(tasks.id, tasks.queue, jobs.definition)
        .join(schema.jobs, jobs.id == tasks.job_id)
        .where(tasks.id.in_(task_ids))
    )
    return {id_: (definition["runtime"], queue) for id_, queue, definition in rows}
