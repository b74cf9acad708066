"""The reaper: a running task whose lease has run out is taken back, for another attempt or as failed.

Its holder may have died, or may only be late: until the task is taken back, it is given a new lease as soon as it is
heard of; until the next attempt begins, what it reports still counts. While nobody could be heard, because there was
no dispatcher or no database, silence says nothing: the holder then gets the time of a whole lease to be heard again.
"""

from __future__ import annotations

import logging
from datetime import datetime

import sqlalchemy as sa

from qo.core.lifecycle import Lapse, Rejected
from qo.dispatcher.state import scans
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.schema import tasks
from qo.dispatcher.tasks import rows

log = logging.getLogger(__name__)


def tick(state: State, limit: int = 100, not_before: datetime | None = None) -> int:
    """Take back up to ``limit`` tasks; how many.

    ``not_before``: since when holders can be heard, by the database's clock. A task is taken back no sooner than the
    length of its lease after that.
    """
    with state.read() as tx:
        if tx.one(_lapsed(tx, 1, not_before)) is None:
            return 0
    with state.write() as tx:
        return reap(tx, limit, not_before)


def reap(tx: Tx, limit: int, not_before: datetime | None = None) -> int:
    """As ``tick``, in the caller's transaction. Two reapers at once take different tasks."""
    reaped = 0
    found = tx.all(tx.lock(_lapsed(tx, limit, not_before), skip=True))
    lapses = [rows.Move(dict(row), Lapse(tx.ambient.token(), row["lease_id"], tx.ambient.unit())) for row in found]
    for row, moved in zip(found, rows.move_all(tx, lapses), strict=True):
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


def _lapsed(tx: Tx, limit: int, not_before: datetime | None) -> sa.Select[*tuple[object, ...]]:
    late = sa.select(tasks).where(scans.running(), tasks.c.lease_expires_at <= tx.now)
    if not_before is not None:
        late = late.where(tasks.c.lease_s <= (tx.now - not_before).total_seconds())
    return late.order_by(tasks.c.lease_expires_at).limit(limit)
