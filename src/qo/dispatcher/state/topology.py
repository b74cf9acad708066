"""The topology of the moment, from the state database.

Whoever routes, releases or reconciles asks ``load`` inside its transaction, before it locks anything else. On
PostgreSQL that shares a lock; whoever deploys, cuts over or pauses has it alone (``hold``) and counts the epoch up
(``bump``). So nothing is ever decided by a topology that has been replaced in the meantime. The lock is an advisory
one: those that share a lock on a row pass by who waits to have it alone, for as long as they keep coming. On SQLite
one writer at a time does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary, WeakSet

import msgspec
import sqlalchemy as sa

from qo.core.pipeline.dag import Job
from qo.core.pipeline.plan import PlannedInput, PlannedOutput
from qo.core.pipeline.topology import LIVE, LiveJob, Topology, VersionStatus
from qo.core.pipeline.topology import topology as indexed
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared
from qo.errors import Unavailable

_HELD = "topology"
LOCK = 0x716F746F  # "qoto": nothing else in the database takes a lock of this number.

# To build a statement takes longer than to carry it out; these are built once.
_ROW = Prepared(sa.select(schema.topology.c.epoch).where(schema.topology.c.id == 1))
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

_known: WeakKeyDictionary[sa.Pool, Topology] = WeakKeyDictionary()  # By what leads to a database.
_moved: WeakSet[Tx] = WeakSet()  # Those that have counted up: what they see may yet be undone.


def load(tx: Tx) -> Topology:
    """The topology, from memory if nobody has changed it. It holds until the transaction ends.

    Comes first in a transaction that writes: who has locked rows before may wait here for somebody who waits for them.
    """
    held: Topology | None = tx.known.get(_HELD)
    if held is not None:
        return held
    if not tx.reads:
        tx.hold(LOCK, shared=True)
    epoch = _epoch(tx)
    pool = tx.connection.engine.pool
    known = _known.get(pool)
    if tx in _moved:
        return _read(tx, epoch)
    if known is None or known.epoch != epoch:
        known = _read(tx, epoch)
        _known[pool] = known
    tx.known[_HELD] = known
    return known


def hold(tx: Tx) -> int:
    """Keep everyone else from loading and changing the topology until the transaction ends; its epoch.

    Comes first in a transaction that changes it: who has loaded before and holds then waits for others like itself.
    """
    tx.hold(LOCK)
    return _epoch(tx)


def bump(tx: Tx) -> int:
    """Say that the topology is another one from now on; the new epoch."""
    _moved.add(tx)
    tx.known.pop(_HELD, None)
    epoch = hold(tx) + 1
    tx.execute(sa.update(schema.topology).where(schema.topology.c.id == 1).values(epoch=epoch))
    return epoch


def _epoch(tx: Tx) -> int:
    # A statement of its own: it sees what was committed while the lock was waited for.
    found = tx.rows(_ROW)
    if not found:
        raise Unavailable("the state database has not been set up: run qo db upgrade")
    return int(found[0][0])


def _read(tx: Tx, epoch: int) -> Topology:
    inputs, outputs = _inputs(tx), _outputs(tx)
    listed = [
        LiveJob(
            id=row.id,
            edition_id=row.edition_id,
            logical_id=row.logical_id,
            dag=row.dag,
            version_id=row.version_id,
            version_number=row.number,
            status=VersionStatus(row.status),
            queue=row.queue,
            job=msgspec.convert(row.definition, Job),
            config_hash=row.config_hash,
            inputs=tuple(inputs.get(row.id, ())),
            outputs=tuple(outputs.get((row.version_id, row.name), ())),
            timeout_s=row.timeout_seconds,
            bundle=row.bundle,
        )
        for row in tx.execute(_JOBS)
    ]
    return indexed(
        epoch,
        listed,
        {row.dataset_id: row.generation_id for row in tx.execute(_CURRENT)},
        {row.scope: row.reason for row in tx.execute(_PAUSES)},
    )


def _inputs(tx: Tx) -> Mapping[str, list[PlannedInput]]:
    """By row of a job."""
    found: dict[str, list[PlannedInput]] = {}
    for row in tx.execute(_INPUTS):
        each = PlannedInput(
            row.position, row.name, row.dataset_id, row.generation_id, row.trigger_, row.where_ or {}
        )
        found.setdefault(row.job_id, []).append(each)
    return found


def _outputs(tx: Tx) -> Mapping[tuple[str, str], list[PlannedOutput]]:
    """By version and name of a job."""
    found: dict[tuple[str, str], list[PlannedOutput]] = {}
    for row in tx.execute(_OUTPUTS):
        made = PlannedOutput(row.output, row.dataset_id, row.generation_id)
        found.setdefault((row.version_id, row.job), []).append(made)
    return found
