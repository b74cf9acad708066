"""Tasks that are created completed: whatever they stand for has happened, such as the emission of a source.

Each has the row, and the attempt, that a worker would have left: both are written once, as they are in the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qo.core.lifecycle import Claim, Complete, Rejected
from qo.core.pipeline.plan import derive_id
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.schema import attempts, tasks
from qo.dispatcher.tasks.creation import NewTask, new_row
from qo.dispatcher.tasks.rows import Change, Move, Row, attempt_end, attempt_row, decide

_EMPTY: Row = {column.name: None for column in tasks.c}


@dataclass(frozen=True, slots=True)
class CompletedTask:
    new: NewTask
    worker_id: str
    output: Mapping[str, Any]


def create_completed(tx: Tx, completed: Sequence[CompletedTask]) -> list[Row]:
    """Create the tasks that do not exist yet, and return the rows of those, in order of their ids."""
    pairs = [_rows(tx, each) for each in sorted(completed, key=lambda each: each.new.task_id)]
    new = tx.insert_absent(tasks, [row for row, _ in pairs], returning=tasks.c.id)
    tx.insert(attempts, [attempt for row, attempt in pairs if row["id"] in new])
    return [row for row, _ in pairs if row["id"] in new]


def _rows(tx: Tx, completed: CompletedTask) -> tuple[Row, dict[str, Any]]:
    """Return the rows of the task and of its only attempt."""
    row: Row = {**_EMPTY, **new_row(tx, completed.new)}
    lease_id = derive_id("lease", row["id"], 1)
    beginning = _decide(tx, Move(row, Claim(tx.ambient.token(), lease_id=lease_id, worker_id=completed.worker_id)))
    row = {**row, **beginning.values}
    report = Move(row, Complete(tx.ambient.token(), lease_id=lease_id, output=dict(completed.output)))
    ending = _decide(tx, report)
    return {**row, **ending.values}, attempt_row(tx, beginning) | attempt_end(tx, ending, report)


def _decide(tx: Tx, move: Move) -> Change:
    change = decide(tx, move)
    if isinstance(change, Rejected):
        raise AssertionError(change.detail)  # Nobody else knows the task.
    return change
