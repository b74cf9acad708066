"""Freshness: whether the output of a job for a partition was made from the partition's current state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.dag import UpdateStrategy
from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Values
from qo.dispatcher.versions.marks import Input

_tasks, _commits, _pins = schema.tasks, schema.commits, schema.task_inputs

_Row = sa.RowMapping | Values
_Rows = Mapping[str, _Row]  # By partition.


def stale_partitions(tx: Tx, each: Input, partitions: Sequence[Values]) -> list[tuple[str, int, int]]:
    """Return the partitions of an input for which the job has stale output, and no task that will refresh it.

    Each comes with the revision of the output and the current revision of the input.
    """
    now = {row["partition_key"]: row for row in partitions}
    if not now or not each.job.outputs:
        return []
    stale = {
        key: row
        for key, row in _current_commits(tx, each, sorted(now)).items()
        if not _has_read_current(each, row, now[key])
    }
    covered = _covered(tx, each, now, stale) if stale else set[str]()
    return [(key, row["made"], now[key]["revision"]) for key, row in stale.items() if key not in covered]


def _current_commits(tx: Tx, each: Input, keys: Sequence[str]) -> _Rows:
    """Return the last current commit of the job for each partition, and what its task had read of this input."""
    query = (
        sa.select(
            _tasks.c.partition_key,
            _commits.c.revision.label("made"),
            _commits.c.committed_at,
            _pins.c.generation_id.label("read_generation"),
            _pins.c.revision.label("read_revision"),
        )
        .join(_commits, _commits.c.task_id == _tasks.c.id)
        .outerjoin(_pins, _pinned(each))
        .where(
            _tasks.c.edition_id == each.job.edition_id,
            _tasks.c.partition_key.in_(keys),
            _tasks.c.status == Status.COMPLETED,
            _commits.c.replaced_by.is_(None),
        )
    )
    if each.job.job.update_strategy is UpdateStrategy.APPEND:
        # Each input has appended its own part.
        query = query.where(_tasks.c.dataset_id == each.planned.dataset_id)
    return {row["partition_key"]: row for row in tx.all(query.order_by(_commits.c.revision))}


def _covered(tx: Tx, each: Input, now: _Rows, stale: _Rows) -> set[str]:
    """Return the partitions that an open task will refresh, or whose refresh failed or was cancelled."""
    query = (
        sa.select(
            _tasks.c.partition_key,
            _tasks.c.status,
            _tasks.c.dataset_id,
            _tasks.c.generation_id,
            _tasks.c.late_lease_id,
            _tasks.c.created_at,
            _pins.c.generation_id.label("read_generation"),
            _pins.c.revision.label("read_revision"),
        )
        .outerjoin(_pins, _pinned(each))
        .where(
            _tasks.c.edition_id == each.job.edition_id,
            _tasks.c.partition_key.in_(sorted(stale)),
            _tasks.c.status != Status.COMPLETED,
        )
    )
    return {
        key
        for task in tx.all(query)
        if _will_refresh(each, task, now[key := task["partition_key"]], stale[key]["committed_at"])
    }


def _will_refresh(each: Input, task: _Row, now: _Row, made_at: Any) -> bool:
    follows = task["dataset_id"] != each.planned.dataset_id or task["generation_id"] == each.generation_id
    if task["status"] in (Status.FAILED, Status.CANCELLED):
        # The current input was tried. People decide whether to try again.
        return follows and task["created_at"] >= max(now["committed_at"], made_at)
    if task["status"] == Status.RUNNING or task["late_lease_id"] is not None:
        return _has_read_current(each, task, now)  # Its inputs are fixed, and it may still commit.
    return follows


def _has_read_current(each: Input, row: _Row, now: _Row) -> bool:
    """Tell whether a task has read the current state of the partition."""
    return row["read_generation"] == each.generation_id and (row["read_revision"] or 0) >= now["revision"]


def _pinned(each: Input) -> sa.ColumnElement[bool]:
    return sa.and_(_pins.c.task_id == _tasks.c.id, _pins.c.position == each.position)
