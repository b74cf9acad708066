"""Backpressure: which jobs are paused now because the queues and jobs behind them are overfull.

Every heartbeat asks for it. The answer is computed once for each topology and each set of tripped targets and cached,
since both change seldom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from qo.core.pipeline import pressure
from qo.core.pipeline.pressure import Target, TargetKind
from qo.core.pipeline.topology import Topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import job_pressure, queues

_TRIPPED = Prepared(
    sa.union_all(
        sa.select(sa.literal(str(TargetKind.QUEUE)), queues.c.name, queues.c.reason, queues.c.tripped_at).where(
            queues.c.tripped_at.is_not(None)
        ),
        sa.select(
            sa.literal(str(TargetKind.JOB)),
            job_pressure.c.edition_id,
            job_pressure.c.reason,
            job_pressure.c.tripped_at,
        ).where(job_pressure.c.tripped_at.is_not(None)),
    )
)


@dataclass(frozen=True, slots=True)
class Trip:
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class _Cached:
    topology: Topology
    reasons: Mapping[Target, str]
    paused: Mapping[str, str]


_cache: WeakKeyDictionary[sa.Pool, _Cached] = WeakKeyDictionary()  # The last answer of each database.


def tripped(tx: Tx) -> dict[Target, Trip]:
    """Return what is overfull now, since when, and why."""
    return {
        Target(TargetKind(kind), id_): Trip(since, reason or "it is tripped")
        for kind, id_, reason, since in tx.rows(_TRIPPED)
    }


def paused(tx: Tx, live: Topology) -> Mapping[str, str]:
    """Return the reason for each edition that is paused because it feeds a tripped target. Do not change the
    mapping."""
    trips = tripped(tx)
    if not trips:
        return {}
    pool = tx.pool
    cached = _cache.get(pool)
    # The same object, not only the same epoch: a transaction that changed the topology may still roll back.
    reasons = {target: trip.reason for target, trip in trips.items()}
    if cached is None or cached.topology is not live or cached.reasons != reasons:
        cached = _Cached(live, reasons, pressure.paused_by(live, reasons))
        _cache[pool] = cached
    return cached.paused
