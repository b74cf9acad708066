"""Pins of jobs that work by changes: which two versions of an input are compared."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.change_range import range_to_read
from qo.core.pipeline.dag import Strategy
from qo.core.pipeline.plan import PlannedInput
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import change_tasks
from qo.dispatcher.tasks.rows import Row


def reads_changes(job: LiveJob, each: PlannedInput) -> bool:
    return each.trigger and job.job.execution_strategy is Strategy.PER_CHANGE


def pin_changes(
    tx: Tx, row: Row, job: LiveJob, each: PlannedInput, generation_id: str, latest: int
) -> dict[str, Any]:
    """Return the part of a pin that says which versions are compared."""
    position = change_tasks.position(tx, row["edition_id"], each.dataset_id)
    if position is not None and position.generation_id != generation_id:
        table = schema.generation_rows
        if tx.value(sa.select(table.c.collected_at).where(table.c.id == position.generation_id)) is not None:
            position = None  # Its files are gone: what was made from them is made anew.
    read = range_to_read(job.job.config, position, generation_id, latest)
    return {
        "revision": read.upto.revision,
        "changed_after": 0 if read.before is None else read.before.revision,
        "changed_generation": None if read.before is None else read.before.generation_id,
    }
