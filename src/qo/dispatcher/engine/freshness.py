"""Whether what a job has made of a partition was made of what the partition is now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.dag import UpdateStrategy
from qo.core.task import Status
from qo.dispatcher.engine.marks import Input
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Values

_tasks, _commits, _pins = schema.tasks, schema.commits, schema.task_inputs

_Row = sa.RowMapping | Values
_Rows = Mapping[str, _Row]  # By partition.


def stale(tx: Tx, each: Input, partitions: Sequence[Values]) -> list[tuple[str, int, int]]:
    """Partitions of the input of which the job has made something out of date, and does not make it anew already.

    Each with the revision of what it has made and that of what it should be made of.
    """
    now = {row["partition_key"]: row for row in partitions}
    if not now or not each.job.outputs:
        return []
    standing = {
        key: row for key, row in _standing(tx, each, sorted(now)).items() if not _read(each, row, now[key])
    }
    covered = _covered(tx, each, now, standing) if standing else set[str]()
    return [(key, row["made"], now[key]["revision"]) for key, row in standing.items() if key not in covered]


def _standing(tx: Tx, each: Input, keys: Sequence[str]) -> _Rows:
    """The last commit that stands of what the job has made of each, and what of this input its task had read."""
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
        # Each of its inputs has added its own part.
        query = query.where(_tasks.c.dataset_id == each.planned.dataset_id)
    return {row["partition_key"]: row for row in tx.all(query.order_by(_commits.c.revision))}


def _covered(tx: Tx, each: Input, now: _Rows, standing: _Rows) -> set[str]:
    """Those that an open task will make anew, or that one was made for which failed or was cancelled."""
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
            _tasks.c.partition_key.in_(sorted(standing)),
            _tasks.c.status != Status.COMPLETED,
        )
    )
    return {
        key
        for task in tx.all(query)
        if _will_do(each, task, now[key := task["partition_key"]], standing[key]["committed_at"])
    }


def _will_do(each: Input, task: _Row, now: _Row, made_at: Any) -> bool:
    follows = task["dataset_id"] != each.planned.dataset_id or task["generation_id"] == each.generation_id
    if task["status"] in (Status.FAILED, Status.CANCELLED):
        # It was tried with what is there now. Whether to try again is for people to say.
        return follows and task["created_at"] >= max(now["committed_at"], made_at)
    if task["status"] == Status.RUNNING or task["late_lease_id"] is not None:
        return _read(each, task, now)  # It has decided what it reads, and may yet commit what it makes of that.
    return follows


def _read(each: Input, row: _Row, now: _Row) -> bool:
    """Whether a task has read the partition as it is now."""
    return row["read_generation"] == each.generation_id and (row["read_revision"] or 0) >= now["revision"]


def _pinned(each: Input) -> sa.ColumnElement[bool]:
    return sa.and_(_pins.c.task_id == _tasks.c.id, _pins.c.position == each.position)
