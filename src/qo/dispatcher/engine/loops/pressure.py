"""The pressure loop measures how full each queue is, and each job that has thresholds, and decides which are tripped.

It counts unclaimed tasks in the database instead of listing a bucket: that costs no requests and does not lag behind.
The release loop derives from ``queues`` and ``job_pressure`` which jobs are paused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.pressure import (
    TASKS,
    WAKE_UPS,
    Measure,
    Target,
    TargetKind,
    Thresholds,
    Waiting,
    trip_reason,
)
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.state import scans, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.schema import job_pressure, queues, tasks

log = logging.getLogger(__name__)

DEPTH_MAX = 100_000  # Counting stops there, far beyond any threshold.
JOB_DEPTH_MAX = 1_000  # Of jobs, whose tasks are read to count them; or one more than the threshold.

# Built once: building a statement takes longer than executing it.
_MEASURED = sa.select(queues).order_by(queues.c.name)
_MEASURED_JOBS = sa.select(job_pressure).order_by(job_pressure.c.edition_id)
_STALE = sa.select(queues.c.name).where(sa.or_(queues.c.depth > 0, queues.c.tripped_at.is_not(None)))
_OLDEST = sa.select(sa.func.min(tasks.c.released_at, type_=tasks.c.released_at.type)).where(
    tasks.c.queue == sa.bindparam("queue"), scans.released()
)


def tick(state: State, thresholds: Thresholds) -> int:
    """Measure all queues and jobs. Return how many tripped or cleared."""
    with state.read() as tx:
        if not _has_work(tx, thresholds):
            return 0
    with state.write() as tx:
        return measure(tx, thresholds)


def measure(tx: Tx, thresholds: Thresholds) -> int:
    """As ``tick``, in the caller's transaction."""
    return _measure_queues(tx, thresholds) + _measure_jobs(tx, thresholds)


def _measure_queues(tx: Tx, thresholds: Thresholds) -> int:
    rows = {row["name"]: row for row in tx.all(tx.lock(_MEASURED))}
    names = sorted(rows.keys() | set(scans.distinct(tx, scans.RELEASED_QUEUES)))
    changed = 0
    for name in names:
        limits = thresholds.of_queue(name)
        measured = _queue_measure(tx, name, max(DEPTH_MAX, (limits.depth or 0) + 1))
        changed += _record(tx, Target(TargetKind.QUEUE, name), name, measured, limits, rows.get(name))
    return changed


def _measure_jobs(tx: Tx, thresholds: Thresholds) -> int:
    limited = _limited_jobs(tx, thresholds)
    rows = {row["edition_id"]: row for row in tx.all(tx.lock(_MEASURED_JOBS))}
    ended = sorted(rows.keys() - limited.keys())
    if ended:
        tx.execute(sa.delete(job_pressure).where(job_pressure.c.edition_id.in_(ended)))
    changed = sum(rows[edition]["tripped_at"] is not None for edition in ended)
    for edition, (job, limits) in sorted(limited.items()):
        target, before = Target(TargetKind.JOB, edition), rows.get(edition)
        changed += _record(tx, target, job.name, _job_measure(tx, edition, limits), limits, before)
    return changed


def _limited_jobs(tx: Tx, thresholds: Thresholds) -> dict[str, tuple[LiveJob, Thresholds]]:
    return {
        edition: (job, limits)
        for edition, job in topology.load(tx).jobs.items()
        if (limits := thresholds.of_job(job)) is not None
    }


def _has_work(tx: Tx, thresholds: Thresholds) -> bool:
    if scans.distinct(tx, scans.RELEASED_QUEUES) or tx.one(_STALE) is not None:
        return True
    if tx.one(sa.select(job_pressure.c.edition_id).limit(1)) is not None:
        return True
    return any(scans.backlog(tx, edition, 1)[0] for edition in _limited_jobs(tx, thresholds))


def _queue_measure(tx: Tx, queue: str, most: int) -> Measure:
    return Measure(scans.depth(tx, queue, most), _age_s(tx, tx.execute(_OLDEST, {"queue": queue}).scalar()))


def _job_measure(tx: Tx, edition: str, limits: Thresholds) -> Measure:
    depth, oldest = scans.backlog(tx, edition, max(JOB_DEPTH_MAX, (limits.depth or 0) + 1))
    return Measure(depth, _age_s(tx, oldest))


def _age_s(tx: Tx, since: Any) -> float:
    return 0.0 if since is None else max((tx.now - since).total_seconds(), 0.0)


def _record(
    tx: Tx, target: Target, name: str, measured: Measure, limits: Thresholds, before: sa.RowMapping | None
) -> bool:
    """Decide whether a target is tripped, and store what has changed. Return whether it tripped or cleared."""
    was = None if before is None or before["tripped_at"] is None else before["reason"]
    now = trip_reason(measured, limits, was, _WAITING[target.kind])
    _log_change(target.kind, name, was, now)
    if before is None or measured.depth or before["depth"] or was is not None:
        _store(tx, target, measured, before, now)
    return (now is None) != (was is None)


_WAITING: Mapping[TargetKind, Waiting] = {TargetKind.QUEUE: WAKE_UPS, TargetKind.JOB: TASKS}


def _store(tx: Tx, target: Target, measured: Measure, before: sa.RowMapping | None, now: str | None) -> None:
    since = None if before is None else before["tripped_at"]
    table, key = (queues, "name") if target.kind is TargetKind.QUEUE else (job_pressure, "edition_id")
    tx.upsert(
        table,
        {
            key: target.id,
            "depth": measured.depth,
            "oldest_s": measured.oldest_s,
            "tripped_at": None if now is None else since or tx.now,
            "reason": now,
            "measured_at": tx.now,
        },
    )


def _log_change(kind: TargetKind, name: str, was: str | None, now: str | None) -> None:
    if was is None and now is not None:
        log.warning("%s %s is too full, its producers are paused: %s", kind, name, now)
    if was is not None and now is None:
        log.info("%s %s has drained, its producers are resumed", kind, name)
