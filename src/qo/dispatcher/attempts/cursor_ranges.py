"""Which cursors a task reads that follows them: after those that its job has read, up to its own."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.effects import external_effects
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks.rows import Row

_commits = schema.commits


def cursor_range(tx: Tx, row: Row, job: LiveJob, generation_id: str) -> tuple[int | None, int]:
    """Return the cursor after which the task reads, None for the beginning, and the last that it reads."""
    if row["invalidation_id"] is not None:
        # The range is read again, whatever has been read since.
        return (row["start"] - 1 if row["start"] else None), row["cursor"]
    cursors = schema.cursors
    last = tx.value(
        sa.select(cursors.c.value).where(
            cursors.c.edition_id == row["edition_id"], cursors.c.generation_id == generation_id
        )
    )
    if job.job.outputs == 0:
        # Effects outside are made neither for history nor twice.
        effects_upto = external_effects.read_upto(tx, job, row["dataset_id"], generation_id)
        before = _before(tx, job.edition_id, generation_id) if last is None else None
        last = max((each for each in (last, effects_upto, before) if each is not None), default=None)
    return last, row["cursor"]


def _before(tx: Tx, edition_id: str, generation_id: str) -> int | None:
    """Return the cursor of a generation when the edition was first deployed: history has no effects outside."""
    return tx.value(
        sa.select(sa.func.max(_commits.c.cursor)).where(
            _commits.c.generation_id == generation_id,
            _commits.c.cursor.is_not(None),
            _commits.c.committed_at < first_deployed(tx, edition_id),
        )
    )


def first_deployed(tx: Tx, edition_id: str) -> Any:
    """Return when the first version with the edition was deployed."""
    versions, jobs = schema.dag_versions, schema.jobs
    return tx.value(
        sa.select(sa.func.min(versions.c.created_at))
        .join(jobs, jobs.c.version_id == versions.c.id)
        .where(jobs.c.edition_id == edition_id)
    )
