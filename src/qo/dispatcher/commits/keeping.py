"""Keeping an earlier commit, for a task that cannot make it again because its inputs are gone.

The rows may be those of an older edition of its job. They are pinned as any input, so lineage shows them, and their
files are kept for as long as the task runs.
"""

from __future__ import annotations

import sqlalchemy as sa

from qo.api.contract.task import KeptAnswer
from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.commits import dataset_columns, pieces, retention
from qo.dispatcher.commits.outputs import outputs_of
from qo.dispatcher.state import commit_locks, schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks.rows import load
from qo.errors import NotFound

POSITION = 1000  # Of the reading, behind those of all inputs.

_inputs, _partitions, _generations = schema.task_inputs, schema.partitions, schema.generations


def keep(tx: Tx, task_id: str, output: int) -> KeptAnswer:
    """Return what is committed under the key of a running task: in its own generation, else in the serving version's,
    else where it was committed last. Raises NotFound if there is nothing, or more pieces than fit into one answer.
    """
    row = load(tx, task_id)
    tx.hold(retention.COLLECTION_LOCK)  # The files must not be collected while we decide to read them.
    matches = [each for each in outputs_of(tx, topology.load(tx), row) if each.index == output]
    if not matches or row["partition_key"] is None:
        raise NotFound(f"task {task_id} has no output {output} with a partition: nothing of it can be kept")
    target, key = matches[0], row["partition_key"]
    partition = _choose(tx, target.dataset_id, target.generation_id, key)
    if partition is None:
        raise NotFound(f"partition {key} was never committed before: there is nothing to keep")
    generation = partition["generation_id"]
    commit_locks.acquire(tx, alone={generation})
    pin = {
        "task_id": task_id,
        "position": POSITION,
        "partition_key": key,
        "dataset_id": target.dataset_id,
        "generation_id": generation,
        "revision": partition["revision"],
        "cursor_after": None,
        "cursor_upto": None,
    }
    tx.upsert(_inputs, pin)
    page, more = pieces.page(tx, pin, None, pieces.PIECES_MAX)
    if more is not None:
        raise NotFound(f"partition {key} has more than {pieces.PIECES_MAX} pieces: too many to be kept")
    return KeptAnswer(
        generation_id=generation,
        revision=partition["revision"],
        task_id=partition["task_id"],
        committed_at=partition["committed_at"],
        columns=dataset_columns.load_history(tx, [generation]).bodies(generation, partition["revision"]),
        pieces=page,
    )


def _choose(tx: Tx, dataset_id: str, own: str, key: str) -> sa.RowMapping | None:
    usable = sa.select(_generations.c.id).where(
        _generations.c.dataset_id == dataset_id, _generations.c.collected_at.is_(None)
    )
    # By ids: these are a few of all partitions of the dataset.
    ids = list(tx.execute(usable).scalars())
    there = tx.all(
        sa.select(_partitions).where(
            _partitions.c.dataset_id == dataset_id,
            _partitions.c.generation_id.in_(ids),
            _partitions.c.partition_key == key,
        )
    )
    serving = _serving(tx, dataset_id)
    return max(
        there,
        key=lambda row: (row["generation_id"] == own, row["generation_id"] == serving, row["revision"]),
        default=None,
    )


def _serving(tx: Tx, dataset_id: str) -> str | None:
    pointers, versions = schema.version_generations, schema.dag_versions
    query = (
        sa.select(pointers.c.generation_id)
        .join(versions, versions.c.id == pointers.c.version_id)
        .where(pointers.c.dataset_id == dataset_id, versions.c.status == VersionStatus.ACTIVE)
    )
    return tx.value(query.limit(1))
