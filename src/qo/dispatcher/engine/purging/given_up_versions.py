"""Giving up versions that ended long ago: no version can use their generations again.

Their tasks are then purged; ``qo collect`` deletes their files. A version that is live, or that a rollback leads to,
keeps its generations, and so does every other version that shares them.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from qo.core.pipeline.topology import LIVE
from qo.dispatcher.commits.retention import COLLECTION_LOCK
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx

_versions, _dags, _pointers = schema.dag_versions, schema.dags, schema.version_generations
_generations = schema.generation_rows


def find(tx: Tx, before: datetime, limit: int) -> list[str]:
    """Return up to ``limit`` generations that only versions have which ended before that time."""
    needed = (
        sa.select(_pointers.c.generation_id)
        .join(_versions, _versions.c.id == _pointers.c.version_id)
        .join(_dags, _dags.c.name == _versions.c.dag)
        .where(
            _pointers.c.generation_id == _generations.c.id,
            sa.or_(
                _versions.c.status.in_(sorted(LIVE)),
                _versions.c.ended_at.is_(None),
                _versions.c.ended_at >= before,
                _versions.c.id == _dags.c.previous_version_id,
            ),
        )
    )
    # What no version points to was made by one that was deployed anew, and is not dated: it is left alone.
    ended = sa.select(_pointers.c.generation_id).where(_pointers.c.generation_id == _generations.c.id)
    query = sa.select(_generations.c.id).where(
        _generations.c.collected_at.is_(None), ended.exists(), sa.not_(needed.exists())
    )
    return list(tx.execute(query.order_by(_generations.c.id).limit(limit)).scalars())


def give_up(tx: Tx, before: datetime, limit: int) -> list[str]:
    """Give up the generations that ``find`` returns."""
    topology.hold(tx)  # No deploy or rollback meanwhile.
    tx.hold(COLLECTION_LOCK)
    ids = find(tx, before, limit)
    if ids:
        tx.require_durable()  # Files are deleted on the strength of it.
        tx.execute(sa.update(_generations).where(_generations.c.id.in_(ids)).values(collected_at=tx.now))
    return ids
