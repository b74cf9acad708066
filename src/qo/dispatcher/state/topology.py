"""The current topology, loaded from the state database.

A transaction that routes, releases or reconciles calls ``load`` before it locks anything else. On PostgreSQL that
takes a shared lock; a transaction that deploys, cuts over or pauses holds the lock alone (``hold``) and increments the
epoch (``bump``). So no decision is based on a topology that was replaced in the meantime. The lock is advisory, since
holders of a shared row lock would overtake a waiter for the exclusive one as long as they keep coming. On SQLite,
where one writer runs at a time, no lock is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import msgspec
import sqlalchemy as sa

from qo.core.pipeline.dag import Job
from qo.core.pipeline.plan import PlannedInput, PlannedOutput
from qo.core.pipeline.topology import LIVE, LiveJob, Topology, VersionStatus, build_topology
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.prepared import Prepared
from qo.errors import Unavailable
from qo.pipeline.registry import DEFAULT, Registry

_CACHE_KEY = "topology"
LOCK = 0x716F746F  # "qoto": no other lock in the database has this number.

# Building a statement takes longer than executing it, so these are built once.
_EPOCH = Prepared(sa.select(schema.topology.c.epoch).where(schema.topology.c.id == 1))
# With the time, which almost every transaction needs: one round trip less.
_EPOCH_AND_TIME = "SELECT epoch, clock_timestamp() FROM topology WHERE id = 1"
_IS_LIVE = schema.dag_versions.c.status.in_(sorted(LIVE))
_JOBS = (
    sa.select(schema.jobs, schema.dag_versions.c.number, schema.dag_versions.c.status)
    .join(schema.dag_versions, schema.dag_versions.c.id == schema.jobs.c.version_id)
    .where(_IS_LIVE)
    .order_by(schema.jobs.c.dag, schema.dag_versions.c.number, schema.jobs.c.name)
)
_INPUTS = (
    sa.select(schema.job_inputs)
    .join(schema.jobs, schema.jobs.c.id == schema.job_inputs.c.job_id)
    .join(schema.dag_versions, schema.dag_versions.c.id == schema.jobs.c.version_id)
    .where(_IS_LIVE)
    .order_by(schema.job_inputs.c.job_id, schema.job_inputs.c.position)
)
_OUTPUTS = (
    sa.select(schema.version_generations, schema.datasets.c.job, schema.datasets.c.output)
    .join(schema.datasets, schema.datasets.c.id == schema.version_generations.c.dataset_id)
    .join(schema.dag_versions, schema.dag_versions.c.id == schema.version_generations.c.version_id)
    .where(_IS_LIVE)
    .order_by(schema.version_generations.c.version_id, schema.datasets.c.job, schema.datasets.c.output)
)
_CURRENT = sa.select(schema.version_generations.c.dataset_id, schema.version_generations.c.generation_id).join(
    schema.dags, schema.dags.c.active_version_id == schema.version_generations.c.version_id
)
_PAUSES = sa.select(schema.pauses.c.scope, schema.pauses.c.reason)

_loaded: WeakKeyDictionary[sa.Pool, Topology] = WeakKeyDictionary()  # The last topology of each database.
_registries: WeakKeyDictionary[sa.Pool, Registry] = WeakKeyDictionary()  # Where it is not the default.
_changing: WeakSet[Tx] = WeakSet()  # Transactions that incremented the epoch: what they see may be rolled back.


def use_registry(state: State, registry: Registry) -> None:
    """Resolve queues and timeouts of live jobs by this registry, in all transactions of the state from now on."""
    pool = state.engine.pool
    _registries[pool] = registry
    _loaded.pop(pool, None)


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


def bump(tx: Tx) -> int:
    """Increment the epoch, because the topology changes in this transaction, and return it."""
    _changing.add(tx)
    tx.cache.pop(_CACHE_KEY, None)
    epoch = hold(tx) + 1
    tx.execute(sa.update(schema.topology).where(schema.topology.c.id == 1).values(epoch=epoch))
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
    inputs, outputs, registry = _inputs(tx), _outputs(tx), registry_of(tx)
    jobs = [
        _live_job(
            row,
            registry,
            tuple(inputs.get(row.id, ())),
            tuple(outputs.get((row.version_id, row.name), ())),
        )
        for row in tx.execute(_JOBS)
    ]
    return build_topology(
        epoch,
        jobs,
        {row.dataset_id: row.generation_id for row in tx.execute(_CURRENT)},
        {row.scope: row.reason for row in tx.execute(_PAUSES)},
    )


def _live_job(
    row: Any, registry: Registry, inputs: tuple[PlannedInput, ...], outputs: tuple[PlannedOutput, ...]
) -> LiveJob:
    job = msgspec.convert(row.definition, Job)
    missing, runtime = registry.missing_reason(job), registry.runtimes.get(job.runtime)
    # The row says what the registry said at the deploy; what it says now counts, if it knows the job.
    return LiveJob(
        id=row.id,
        edition_id=row.edition_id,
        logical_id=row.logical_id,
        dag=row.dag,
        version_id=row.version_id,
        version_number=row.number,
        status=VersionStatus(row.status),
        queue=(runtime.queue_of(job) if runtime is not None else None) or row.queue,
        job=job,
        config_hash=row.config_hash,
        inputs=inputs,
        outputs=outputs,
        timeout_s=row.timeout_seconds if runtime is None else runtime.timeout_s(job),
        bundle=row.bundle,
        missing=missing,
    )


def _inputs(tx: Tx) -> Mapping[str, list[PlannedInput]]:
    """Return the inputs of all live jobs, by the id of the job's row."""
    inputs: dict[str, list[PlannedInput]] = {}
    for row in tx.execute(_INPUTS):
        planned = PlannedInput(
            row.position, row.name, row.dataset_id, row.generation_id, row.trigger_, row.where_ or {}
        )
        inputs.setdefault(row.job_id, []).append(planned)
    return inputs


def _outputs(tx: Tx) -> Mapping[tuple[str, str], list[PlannedOutput]]:
    """Return the outputs of all live jobs, by version and name of the job."""
    outputs: dict[tuple[str, str], list[PlannedOutput]] = {}
    for row in tx.execute(_OUTPUTS):
        planned = PlannedOutput(row.output, row.dataset_id, row.generation_id)
        outputs.setdefault((row.version_id, row.job), []).append(planned)
    return outputs
