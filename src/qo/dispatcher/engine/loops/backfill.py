"""The backfill loop creates the next tasks of each backfill, up to its limit, and completes backfills without any."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.states import BackfillState
from qo.core.pipeline.topology import Topology
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import ROWS_MAX, State, Tx
from qo.dispatcher.tasks import creation
from qo.dispatcher.versions import backfills

_rows = schema.backfills
# A constant, not a parameter: only then can the database use its partial index of running backfills.
_OPEN: sa.ColumnElement[bool] = _rows.c.state == inline(BackfillState.RUNNING)

_WAITING = sa.select(_rows.c.id).where(_OPEN).order_by(_rows.c.created_at).limit(sa.bindparam("most"))


def tick(state: State, limit: int = 100) -> int:
    """Advance each running backfill by one step. Return how many tasks were created or backfills completed."""
    with state.read() as tx:
        waiting = list(tx.execute(_WAITING, {"most": limit}).scalars())
        live = topology.load(tx) if waiting else None
        due = [] if live is None else [id_ for id_ in waiting if _is_due(tx, live, id_)]
    did = 0
    for id_ in due:
        # One transaction each, so that other writers wait for one step at most.
        with state.write() as tx:
            did += step(tx, id_)
    return did


def step(tx: Tx, id_: str) -> int:
    """Create the next tasks of a backfill. Return 0 if it has as many as it may have, or does not run."""
    row = tx.one(tx.lock(sa.select(_rows).where(_rows.c.id == id_, _OPEN), skip=True))
    live = topology.load(tx)
    job = live.jobs.get(row["edition_id"]) if row is not None else None
    if row is None or job is None:
        return 0
    open_ = backfills.open_tasks(tx, row)
    room = min(row["at_once"] - open_, ROWS_MAX)
    if room <= 0:
        return 0
    partitions = backfills.candidates(tx, live, job, row, limit=room, after=row["after_key"])
    if not partitions:
        return 0 if open_ else _update(tx, id_, state=BackfillState.DONE, ended_at=tx.now)
    # Creating a task twice is harmless: its id is derived from the backfill and the partition.
    creation.create(tx, backfills.tasks_for(tx, live, job, id_, partitions))
    _update(tx, id_, after_key=partitions[-1]["partition_key"], made=row["made"] + len(partitions))
    return len(partitions)


def _is_due(tx: Tx, live: Topology, id_: str) -> bool:
    """Tell whether a step may change something; without this check it would keep other writers waiting for nothing."""
    row = tx.one(sa.select(_rows).where(_rows.c.id == id_))
    if row is None or row["edition_id"] not in live.jobs:
        return False
    open_ = backfills.open_tasks(tx, row)
    if open_ >= row["at_once"]:
        return False
    job = live.jobs[row["edition_id"]]
    return open_ == 0 or bool(backfills.candidates(tx, live, job, row, limit=1, after=row["after_key"]))


def _update(tx: Tx, id_: str, **values: Any) -> int:
    tx.execute(sa.update(_rows).where(_rows.c.id == id_).values(**values))
    return 1
