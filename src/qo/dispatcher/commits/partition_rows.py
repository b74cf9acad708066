"""The rows of partitions on PostgreSQL: whoever commits to a partition locks its row, and creates it if there is none.

A row that is new is written once, as it stays. For that its revision is drawn before it is known which rows there are.
One that is there needs another, drawn after the lock: somebody else may have committed it with a later one meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks.rows import Row

_partitions = schema.partitions

Place = tuple[str, str]  # Of a partition: generation and key.

# Building a statement takes longer than executing it, so these are built once.
_LOCKED = Prepared(
    postgresql.insert(_partitions)
    .on_conflict_do_update(
        index_elements=["dataset_id", "generation_id", "partition_key"],
        set_={"revision": _partitions.c.revision},
    )
    .returning(
        _partitions.c.generation_id,
        _partitions.c.partition_key,
        _partitions.c.rows,
        _partitions.c.bytes,
        _partitions.c.revision,
    )
)
_NEXT_REVISIONS = Prepared(
    sa.text("SELECT nextval('commits_revision_seq') FROM generate_series(1, :count)").bindparams(
        sa.bindparam("count", type_=sa.Integer)
    )
)


@dataclass(frozen=True, slots=True)
class Locked:
    current: Mapping[Place, Row]  # Partitions that were there.
    revisions: Mapping[Place, int]  # Of the others, whose rows are written.


def lock(tx: Tx, datasets: Mapping[Place, str], fields: Mapping[str, Any]) -> None:
    """Lock the rows of partitions, by place with their datasets. A new one has revision 0, for nobody else to see."""
    # In order: two transactions that lock the same partitions must not deadlock.
    for some in batches(sorted(datasets)):
        rows = [
            {
                "dataset_id": datasets[place],
                "generation_id": place[0],
                "partition_key": place[1],
                "revision": 0,
                **fields,
            }
            for place in some
        ]
        tx.rows(_LOCKED, *rows)


def create(tx: Tx, rows: Mapping[Place, Mapping[str, Any]]) -> Locked:
    """Lock the rows of partitions, and write those that are new as they are given."""
    places = sorted(rows)
    numbers = (int(revision) for (revision,) in tx.rows(_NEXT_REVISIONS, {"count": len(places)}))
    revisions = dict(zip(places, numbers, strict=True))
    current: dict[Place, Row] = {}
    for some in batches(places):
        new = [{**rows[place], "revision": revisions[place]} for place in some]
        for generation, key, count, size, revision in tx.rows(_LOCKED, *new):
            if revision != revisions[generation, key]:
                current[generation, key] = {"partition_key": key, "rows": count, "bytes": size}
    return Locked(current, {place: number for place, number in revisions.items() if place not in current})
