"""The changes of an input that an attempt has read, and whether what it made of them may be committed."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from qo.core.pipeline.change_range import ChangeRange, Turn, Version, judge
from qo.core.pipeline.dag import Job
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import change_tasks
from qo.dispatcher.tasks.rows import Row

_inputs = schema.task_inputs


@dataclass(frozen=True, slots=True)
class ChangesRead:
    edition_id: str
    dataset_id: str
    upto: Version
    turn: Turn

    def move_position(self, tx: Tx) -> None:
        """Have the job go on from here. Whatever it made of the changes is committed in the same transaction."""
        if self.upto.revision:
            change_tasks.move(tx, self.edition_id, self.dataset_id, self.upto)


def load(tx: Tx, row: Row, job: Job) -> ChangesRead | None:
    """Return what the attempt has read; None if its job does not work by changes. The outputs of the job are locked."""
    if row["cursor"] is None:
        return None  # Tasks of changes have the revision there that they were created for.
    query = sa.select(_inputs).where(_inputs.c.task_id == row["id"], _inputs.c.changed_after.is_not(None))
    pin = tx.one(query)
    if pin is None:
        return None
    before = pin["changed_generation"]
    read = ChangeRange(
        None if before is None else Version(before, pin["changed_after"]),
        Version(pin["generation_id"], pin["revision"] or 0),
    )
    position = change_tasks.position(tx, row["edition_id"], pin["dataset_id"])
    return ChangesRead(row["edition_id"], pin["dataset_id"], read.upto, judge(job.config, read, position))
