"""The reaper: a running task whose lease has run out is taken back, for another attempt or as failed.

Its holder may have died, or may only be late: until the next attempt begins, what it reports still counts.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa

from qo.core.lifecycle import Lapse, Rejected
from qo.dispatcher.state import scans
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.schema import tasks
from qo.dispatcher.tasks import rows

log = logging.getLogger(__name__)


def tick(state: State, limit: int = 100) -> int:
    """Take back up to ``limit`` tasks; how many."""
    with state.read() as tx:
        if tx.one(_lapsed(tx, 1)) is None:
            return 0
    with state.write() as tx:
        return reap(tx, limit)


def reap(tx: Tx, limit: int) -> int:
    """As ``tick``, in the caller's transaction. Two reapers at once take different tasks."""
    reaped = 0
    for row in tx.all(tx.lock(_lapsed(tx, limit), skip=True)):
        moved = rows.move(tx, dict(row), Lapse(tx.ambient.token(), row["lease_id"], tx.ambient.unit()))
        if isinstance(moved, Rejected):
            continue
        reaped += 1
        log.warning(
            "task %s (%s.%s): the lease of attempt %d ran out, it is %s now",
            row["id"],
            row["dag"],
            row["job"],
            row["attempt"],
            moved.row["status"],
        )
    return reaped


def _lapsed(tx: Tx, limit: int) -> sa.Select[*tuple[object, ...]]:
    late = sa.select(tasks).where(scans.running(), tasks.c.lease_expires_at <= tx.now)
    return late.order_by(tasks.c.lease_expires_at).limit(limit)
