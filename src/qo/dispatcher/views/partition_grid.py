"""Partitions over jobs: for each key of a pipeline, how far every job has come with it.

Committed partitions come from the pointers, open work from tasks that are pending, running or failed. Every query reads
a bounded number of rows by an index, whatever the dataset's size.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from qo.api.contract.first_pages import GridAnswer, GridCell, GridRow
from qo.core.pipeline.topology import LiveJob
from qo.core.task import Status
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import backlog, failures
from qo.dispatcher.versions import records

JOBS_MAX = 200
_OPEN = (Status.PENDING, Status.RUNNING, Status.FAILED)
_STATES = {Status.PENDING: "waiting", Status.RUNNING: "running", Status.FAILED: "failed"}
_RANK = {
    "failed": 0,
    "running": 1,
    "waiting": 2,
    "done": 3,
}  # Of two tasks for one key, people must see the first.

_tasks, _partitions = schema.tasks, schema.partitions


def show_grid(
    tx: Tx,
    dag: str,
    *,
    version: int | None = None,
    from_key: str | None = None,
    before: str | None = None,
    limit: int = 60,
) -> GridAnswer:
    """Show the newest keys of a live version, or those from a key on, or before one. Raises NotFound."""
    row, members = list_jobs(tx, dag, version)
    first = members[:JOBS_MAX]
    keys = _newest_keys(tx, first, from_key, before, limit + 1)
    columns = keys[:limit]
    rows = [GridRow(job=job.job.name, edition_id=job.edition_id, cells=_cells(tx, job, columns)) for job in first]
    return GridAnswer(
        dag=dag,
        version=row["number"],
        keys=columns,
        rows=[row for row in rows if row.cells],
        before=columns[-1] if len(keys) > limit else None,
        more_jobs=len(members) > JOBS_MAX,
    )


def list_jobs(tx: Tx, dag: str, version: int | None) -> tuple[sa.RowMapping, list[LiveJob]]:
    """Return a live version, or the active one, and its jobs, each after those that it reads. Raises NotFound."""
    live = topology.load(tx)
    row = records.find_live(tx, dag, version)
    members = [live.jobs[each] for each in backlog.editions(tx, row["id"]) if each in live.jobs]
    return row, sorted(members, key=lambda job: (live.depth[job.edition_id], job.job.name))


def _newest_keys(
    tx: Tx, jobs: Collection[LiveJob], from_key: str | None, before: str | None, limit: int
) -> list[str]:
    keys: set[str] = set()
    for job in jobs:
        committed = [
            sa.select(_partitions.c.partition_key).where(
                _partitions.c.dataset_id == output.dataset_id, _partitions.c.generation_id == output.generation_id
            )
            for output in job.outputs[:1]
        ]
        worked_on = (
            sa.select(_tasks.c.partition_key)
            .where(_tasks.c.edition_id == job.edition_id, _tasks.c.partition_key.is_not(None))
            .distinct()
        )
        for query in (*committed, worked_on):
            key = query.selected_columns[0]
            some = query if before is None else query.where(key < before)
            some = some if from_key is None else some.where(key >= from_key)
            keys.update(tx.execute(some.order_by(key.desc()).limit(limit)).scalars())
    return _sort_descending(tx, keys)[:limit]


def _sort_descending(tx: Tx, keys: Collection[str]) -> list[str]:
    """Sort by the order of the database, in which the next page begins where this one ends."""
    rows = "json_array_elements_text(CAST(:keys AS json))" if tx.on_postgres else "json_each(:keys)"
    query = sa.text(f"SELECT value FROM {rows} ORDER BY value DESC").bindparams(keys=json.dumps(sorted(keys)))
    return list(tx.execute(query).scalars())


def _cells(tx: Tx, job: LiveJob, keys: Collection[str]) -> list[GridCell]:
    cells = _committed(tx, job, keys)
    for key, cell in _open_work(tx, job, keys, cells).items():
        cells[key] = cell
    return [cells[key] for key in keys if key in cells]


def _committed(tx: Tx, job: LiveJob, keys: Collection[str]) -> dict[str, GridCell]:
    cells: dict[str, GridCell] = {}
    for output in job.outputs[:1]:
        for some in batches(keys):
            query = sa.select(_partitions).where(
                _partitions.c.dataset_id == output.dataset_id,
                _partitions.c.generation_id == output.generation_id,
                _partitions.c.partition_key.in_(some),
            )
            cells |= {
                row["partition_key"]: GridCell(
                    key=row["partition_key"],
                    state="done",
                    committed_at=row["committed_at"],
                    rows=row["rows"],
                    task_id=row["task_id"],
                )
                for row in tx.all(query)
            }
    return cells


def _open_work(
    tx: Tx, job: LiveJob, keys: Collection[str], committed: Mapping[str, GridCell]
) -> dict[str, GridCell]:
    live = topology.load(tx)
    cells: dict[str, GridCell] = {}
    for some in batches(keys):
        query = sa.select(_tasks).where(
            _tasks.c.edition_id == job.edition_id,
            _tasks.c.partition_key.in_(some),
            _tasks.c.status.in_(_OPEN) if job.outputs else sa.true(),
        )
        rows = tx.all(query)
        superseded = failures.superseded(tx, live, rows)
        for row in rows:
            state = _STATES.get(row["status"], "done" if row["status"] == Status.COMPLETED else None)
            if state is None or row["id"] in superseded:
                continue
            key = row["partition_key"]
            if key in cells and _RANK[cells[key].state] <= _RANK[state]:
                continue
            before = committed.get(key)
            cells[key] = GridCell(
                key=key,
                state=state,
                committed_at=before.committed_at if before is not None else None,
                rows=before.rows if before is not None else None,
                task_id=row["id"],
                since=row["started_at"] if row["status"] == Status.RUNNING else row["created_at"],
            )
    return cells
