"""Backpressure: which jobs are paused now because the queues behind them are overfull.

Every heartbeat asks for it. The answer is computed once for each topology and each set of tripped queues and cached,
since both change seldom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from qo.core.pipeline import pressure
from qo.core.pipeline.topology import Topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import queues

_TRIPPED = Prepared(sa.select(queues.c.name, queues.c.reason).where(queues.c.tripped_at.is_not(None)))


@dataclass(frozen=True, slots=True)
class _Cached:
    topology: Topology
    tripped: Mapping[str, str]
    paused: Mapping[str, str]


_cache: WeakKeyDictionary[sa.Pool, _Cached] = WeakKeyDictionary()  # The last answer of each database.


def paused(tx: Tx, live: Topology) -> Mapping[str, str]:
    """Return the reason for each edition that is paused because it feeds a tripped queue. Do not change the mapping."""
    tripped = {name: reason or "it is tripped" for name, reason in tx.rows(_TRIPPED)}
    if not tripped:
        return {}
    pool = tx.connection.engine.pool
    cached = _cache.get(pool)
    # The same object, not only the same epoch: a transaction that changed the topology may still roll back.
    if cached is None or cached.topology is not live or cached.tripped != tripped:
        cached = _Cached(live, tripped, pressure.paused_by(live, tripped))
        _cache[pool] = cached
    return cached.paused
