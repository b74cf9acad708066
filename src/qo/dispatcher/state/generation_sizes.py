"""Generations with their sizes and last revisions, to be read as a table.

The sums of a generation are kept in several rows, one for each share, so that commits side by side do not wait for each
other: see ``Tx.share``. Whoever writes uses ``generation_rows`` and ``generation_sums``.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.dispatcher.state.data import generation_sums as _sums
from qo.dispatcher.state.definitions import generations as _rows

ADDED = ("partitions", "segments", "rows", "bytes")


def _column(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    name = column.name
    own = _sums.c.generation_id == _rows.c.id
    if name in ADDED:
        added = sa.select(sa.cast(sa.func.coalesce(sa.func.sum(_sums.c[name]), 0), sa.BigInteger)).where(own)
        return (column + added.correlate(_rows).scalar_subquery()).label(name)
    if name == "revision":
        last = sa.select(sa.func.max(_sums.c.revision)).where(own)
        return sa.func.coalesce(last.correlate(_rows).scalar_subquery(), column).label(name)
    return column


generations = sa.select(*map(_column, _rows.c)).subquery("sized_generations")
