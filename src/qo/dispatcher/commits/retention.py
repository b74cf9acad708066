"""Generations whose files were collected cannot be used again; the lock that guards that decision."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.errors import Refused

# "qogc". A collection holds it until its transaction ends, and so does an attempt that decides to keep old files.
COLLECTION_LOCK = 0x716F6763


def require_kept(tx: Tx, generations: Iterable[str], what: str) -> None:
    """Raise Refused if the files of one of the generations were collected."""
    for some in batches(sorted(set(generations))):
        collected = tx.one(
            sa.select(schema.datasets.c.job)
            .join(schema.generations, schema.generations.c.dataset_id == schema.datasets.c.id)
            .where(schema.generations.c.id.in_(some), schema.generations.c.collected_at.is_not(None))
            .order_by(schema.datasets.c.job)
            .limit(1)
        )
        if collected is not None:
            raise Refused(
                f"{what} has the job {collected['job']!r} as it once was, and the files that it made were collected: "
                "write another 'code' for it, and it is built anew"
            )
