"""The pressure loop measures how full each queue is, and decides which queues are tripped.

It counts released, unclaimed tasks in the database instead of listing a bucket: that costs no requests and does not lag
behind. The release loop derives from ``queues`` which jobs are paused.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa

from qo.core.pipeline.pressure import Measure, Thresholds, trip_reason
from qo.dispatcher.state import scans
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.schema import queues, tasks

log = logging.getLogger(__name__)

DEPTH_MAX = 100_000  # Counting stops there, far beyond any threshold.

# Built once: building a statement takes longer than executing it.
_MEASURED = sa.select(queues).order_by(queues.c.name)
_STALE = sa.select(queues).where(sa.or_(queues.c.depth > 0, queues.c.tripped_at.is_not(None)))
_OLDEST = sa.select(sa.func.min(tasks.c.released_at, type_=tasks.c.released_at.type)).where(
    tasks.c.queue == sa.bindparam("queue"), scans.released()
)


def tick(state: State, thresholds: Thresholds) -> int:
    """Measure all queues. Return how many tripped or cleared."""
    with state.read() as tx:
        if not _has_work(tx):
            return 0
    with state.write() as tx:
        return measure(tx, thresholds)


def measure(tx: Tx, thresholds: Thresholds) -> int:
    """As ``tick``, in the caller's transaction."""
    rows = {row["name"]: row for row in tx.all(tx.lock(_MEASURED))}
    names = sorted(rows.keys() | set(scans.distinct(tx, scans.RELEASED_QUEUES)))
    changed = 0
    for name in names:
        before = rows.get(name)
        measured = _measure(tx, name, max(DEPTH_MAX, thresholds.depth + 1))
        was = None if before is None or before["tripped_at"] is None else before["reason"]
        now = trip_reason(measured, thresholds, was)
        changed += (now is None) != (was is None)
        _log_change(name, was, now)
        if before is None or measured.depth or before["depth"] or was is not None:
            _store(tx, name, measured, before, now)
    return changed


def _has_work(tx: Tx) -> bool:
    return bool(scans.distinct(tx, scans.RELEASED_QUEUES)) or tx.one(_STALE) is not None


def _measure(tx: Tx, queue: str, most: int) -> Measure:
    oldest = tx.execute(_OLDEST, {"queue": queue}).scalar()
    age_s = 0.0 if oldest is None else max((tx.now - oldest).total_seconds(), 0.0)
    return Measure(scans.depth(tx, queue, most), age_s)


def _store(tx: Tx, name: str, measured: Measure, before: sa.RowMapping | None, now: str | None) -> None:
    since = None if before is None else before["tripped_at"]
    tx.upsert(
        queues,
        {
            "name": name,
            "depth": measured.depth,
            "oldest_s": measured.oldest_s,
            "tripped_at": None if now is None else since or tx.now,
            "reason": now,
            "measured_at": tx.now,
        },
    )


def _log_change(name: str, was: str | None, now: str | None) -> None:
    if was is None and now is not None:
        log.warning("queue %s is too full, its producers are paused: %s", name, now)
    if was is not None and now is None:
        log.info("queue %s has drained, its producers are resumed", name)
