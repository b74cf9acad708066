"""The reaper loop takes back running tasks whose lease has expired, for another attempt or as failed.

The worker may have died, or may only be late. A heartbeat renews the lease until the task is taken back, and a result
counts until the next attempt begins. After a time without a dispatcher or database, when no heartbeat could arrive,
each worker gets the time of a whole lease before its task is taken back.
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
    """Take back up to ``limit`` tasks; return how many.

    ``not_before``: since when heartbeats can arrive, by the database's clock. A task is taken back no sooner than the
    length of its lease after that.
    """
    with state.read() as tx:
        if tx.one(_expired_leases(tx, 1, not_before)) is None:
            return 0
    with state.write() as tx:
        return reap(tx, limit, not_before)


def reap(tx: Tx, limit: int, not_before: datetime | None = None) -> int:
    """As ``tick``, in the caller's transaction. Two reapers at once take different tasks."""
    reaped = 0
    expired = tx.all(tx.lock(_expired_leases(tx, limit, not_before), skip=True))
    lapses = [
        rows.Move(dict(row), Lapse(tx.ambient.token(), row["lease_id"], tx.ambient.unit())) for row in expired
    ]
    for row, moved in zip(expired, rows.move_all(tx, lapses), strict=True):
        if isinstance(moved, Rejected):
            continue
        reaped += 1
        log.warning(
            "task %s (%s.%s): the lease of attempt %d expired, the task is %s now",
            row["id"],
            row["dag"],
            row["job"],
            row["attempt"],
            moved.row["status"],
        )
    return reaped


def _expired_leases(tx: Tx, limit: int, not_before: datetime | None) -> sa.Select[*tuple[object, ...]]:
    late = sa.select(tasks).where(scans.running(), tasks.c.lease_expires_at <= tx.now)
    if not_before is not None:
        late = late.where(tasks.c.lease_s <= (tx.now - not_before).total_seconds())
    return late.order_by(tasks.c.lease_expires_at).limit(limit)
