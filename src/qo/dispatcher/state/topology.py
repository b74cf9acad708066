"""The current topology, loaded from the state database.

A transaction that routes, releases or reconciles calls ``load`` before it locks anything else. On PostgreSQL that
takes a shared lock; a transaction that deploys, cuts over or pauses holds the lock alone (``hold``) and increments the
epoch (``bump``). So no decision is based on a topology that was replaced in the meantime. The lock is advisory, since
holders of a shared row lock would overtake a waiter for the exclusive one as long as they keep coming. On SQLite,
where one writer runs at a time, no lock is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary, WeakSet

import sqlalchemy as sa

from qo.core.pipeline.topology import Topology, build_topology
from qo.dispatcher.state import schema, version_jobs
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.version_jobs import VersionJobs
from qo.errors import Unavailable
from qo.pipeline.registry import DEFAULT, Registry

_CACHE_KEY = "topology"
LOCK = 0x716F746F  # "qoto": no other lock in the database has this number.

# Building a statement takes longer than executing it, so these are built once.
_EPOCH = Prepared(sa.select(schema.topology.c.epoch).where(schema.topology.c.id == 1))
# With the time, which almost every transaction needs: one round trip less.
_EPOCH_AND_TIME = "SELECT epoch, clock_timestamp() FROM topology WHERE id = 1"
_PAUSES = sa.select(schema.pauses.c.scope, schema.pauses.c.reason)

_loaded: WeakKeyDictionary[sa.Pool, Topology] = WeakKeyDictionary()  # The last topology of each database.
_versions: WeakKeyDictionary[sa.Pool, Mapping[str, VersionJobs]] = WeakKeyDictionary()  # What it was made of.
_registries: WeakKeyDictionary[sa.Pool, Registry] = WeakKeyDictionary()  # Where it is not the default.
_changing: WeakSet[Tx] = WeakSet()  # Transactions that incremented the epoch: what they see may be rolled back.


def use_registry(state: State, registry: Registry) -> None:
    """Resolve queues and timeouts of live jobs by this registry, in all transactions of the state from now on."""
    pool = state.engine.pool
    _registries[pool] = registry
    _loaded.pop(pool, None)
    _versions.pop(pool, None)


def registry_of(tx: Tx) -> Registry:
    return _registries.get(tx.pool, DEFAULT)


def load(tx: Tx) -> Topology:
    """Return the topology, from memory if it has not changed. It stays valid until the transaction ends.

    Call it first in a transaction that writes: one that locked rows before may wait here for another that waits for
    those rows.
    """
    cached: Topology | None = tx.cache.get(_CACHE_KEY)
    if cached is not None:
        return cached
    epoch = _epoch(tx) if tx.is_read_only else _lock_epoch(tx)
    pool = tx.pool
    if tx in _changing:
        # Kept for this transaction alone. What it changes it changes before the next ``bump``, which drops it.
        live = tx.cache[_CACHE_KEY] = _read(tx, epoch)
        return live
    live = _loaded.get(pool)
    if live is None or live.epoch != epoch:
        live = _read(tx, epoch)
        _loaded[pool] = live
    tx.cache[_CACHE_KEY] = live
    return live


def hold(tx: Tx) -> int:
    """Keep all others from loading or changing the topology until the transaction ends, and return its epoch.

    Call it first in a transaction that changes the topology: two that called ``load`` before ``hold`` would wait for
    each other.
    """
    return _lock_epoch(tx, alone=True)


def bump(tx: Tx, *, rewritten: str | None = None) -> int:
    """Increment the epoch, because the topology changes in this transaction, and return it.

    ``rewritten``: the version whose jobs, inputs or outputs the transaction has written.
    """
    _changing.add(tx)
    tx.cache.pop(_CACHE_KEY, None)
    epoch = hold(tx) + 1
    tx.execute(sa.update(schema.topology).where(schema.topology.c.id == 1).values(epoch=epoch))
    if rewritten is not None:
        table = schema.dag_versions
        tx.execute(sa.update(table).where(table.c.id == rewritten).values(jobs_epoch=epoch))
    return epoch


def _lock_epoch(tx: Tx, *, alone: bool = False) -> int:
    """Lock the topology, shared or alone, and return its epoch."""
    if not tx.on_postgres:
        return _epoch(tx)
    # A separate statement reads it, to see what was committed while the transaction waited for the lock.
    return _epoch(tx, f"SELECT pg_advisory_xact_lock{'' if alone else '_shared'}({LOCK})")


def _epoch(tx: Tx, *first: str) -> int:
    rows = tx.call(*first, _EPOCH_AND_TIME) if tx.on_postgres else tx.rows(_EPOCH)
    if not rows:
        raise Unavailable("the state database has not been set up: run qo db upgrade")
    if tx.on_postgres:
        tx.offer_now(rows[0][1])
    return int(rows[0][0])


def _read(tx: Tx, epoch: int) -> Topology:
    registry = registry_of(tx)
    versions = version_jobs.read(tx, registry, _versions.get(tx.pool, {}))
    if tx not in _changing:
        _versions[tx.pool] = versions
    return build_topology(
        epoch,
        [job for version in versions.values() for job in version.jobs],
        {
            dataset: generation
            for version in versions.values()
            if version.serves
            for dataset, generation in version.generations.items()
        },
        {row.scope: row.reason for row in tx.execute(_PAUSES)},
        before=_loaded.get(tx.pool),
    )
