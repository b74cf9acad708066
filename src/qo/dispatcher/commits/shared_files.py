"""Shared files: a job that only passes a partition on, or cuts it, writes no files.

Its commits name files of other commits, which are kept for as long as any commit that names them may be read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches

_loans = schema.loans


def record(tx: Tx, borrowed: Mapping[int, Collection[int]]) -> None:
    """Record, for each borrowing revision, the revisions that wrote the files it names."""
    makers = _makers(tx, {each for lenders in borrowed.values() for each in lenders})
    tx.insert(
        _loans,
        [
            {"revision": revision, "made_by": maker}
            for revision, lenders in borrowed.items()
            for maker in sorted({maker for each in lenders for maker in makers.get(each, {each})})
        ],
    )


def _makers(tx: Tx, revisions: Collection[int]) -> dict[int, set[int]]:
    """Return the writers of the files of those revisions that borrowed in turn."""
    makers: dict[int, set[int]] = {}
    for some in batches(sorted(revisions)):
        for row in tx.execute(sa.select(_loans).where(_loans.c.revision.in_(some))):
            makers.setdefault(row.revision, set()).add(row.made_by)
    return makers
