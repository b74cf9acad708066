"""Gives backfills their next tasks, so many as may be open at a time, and ends those that are through."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.states import BackfillState
from qo.core.pipeline.topology import Topology
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.columns import inline
from qo.dispatcher.state.database import ROWS_MAX, State, Tx
from qo.dispatcher.tasks import creation
from qo.dispatcher.versions import backfills

_rows = schema.backfills
# A constant and no parameter: only so does a database know that its index of open ones will do.
_OPEN: sa.ColumnElement[bool] = _rows.c.state == inline(BackfillState.RUNNING)

_WAITING = (
    sa.select(_rows.c.id).where(_OPEN).order_by(_rows.c.created_at).limit(sa.bindparam("most"))
)  # Built once.


def tick(state: State, limit: int = 100) -> int:
    """Take each open backfill one step on; how many tasks were made, or backfills ended."""
    with state.read() as tx:
        waiting = list(tx.execute(_WAITING, {"most": limit}).scalars())
        live = topology.load(tx) if waiting else None
        due = [] if live is None else [id_ for id_ in waiting if _due(tx, live, id_)]
    did = 0
    for id_ in due:
        # A transaction each: nobody waits for longer than one of them takes.
        with state.write() as tx:
            did += step(tx, id_)
    return did


def step(tx: Tx, id_: str) -> int:
    """Make the next tasks of one; 0: it has as many as may be, or does not run."""
    row = tx.one(tx.lock(sa.select(_rows).where(_rows.c.id == id_, _OPEN), skip=True))
    live = topology.load(tx)
    job = live.jobs.get(row["edition_id"]) if row is not None else None
    if row is None or job is None:
        return 0
    open_ = backfills.open_tasks(tx, row)
    room = min(row["at_once"] - open_, ROWS_MAX)
    if room <= 0:
        return 0
    found = backfills.candidates(tx, live, job, row, limit=room, after=row["after_key"])
    if not found:
        return 0 if open_ else _change(tx, id_, state=BackfillState.DONE, ended_at=tx.now)
    # Made twice, it is made once: the id of a task follows from the backfill and the partition.
    creation.create(tx, backfills.tasks_for(tx, live, job, id_, found))
    made = row["made"] + len(found)
    _change(tx, id_, after_key=found[-1]["partition_key"], made=made)
    return len(found)


def _due(tx: Tx, live: Topology, id_: str) -> bool:
    """Whether there may be something to do: who has nothing to change keeps no writer waiting."""
    row = tx.one(sa.select(_rows).where(_rows.c.id == id_))
    if row is None or row["edition_id"] not in live.jobs:
        return False
    open_ = backfills.open_tasks(tx, row)
    if open_ >= row["at_once"]:
        return False
    job = live.jobs[row["edition_id"]]
    return open_ == 0 or bool(backfills.candidates(tx, live, job, row, limit=1, after=row["after_key"]))


def _change(tx: Tx, id_: str, **values: Any) -> int:
    tx.execute(sa.update(_rows).where(_rows.c.id == id_).values(**values))
    return 1
