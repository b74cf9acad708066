"""The sums of generations: how much is committed, and by which revision last.

Each transaction adds to one of several shares of a sum (``Tx.share``), so that commits side by side do not wait for
each other. ``schema.generations`` shows the sums.
"""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.generation_sizes import ADDED
from qo.dispatcher.state.prepared import Prepared

_sums = schema.generation_sums


def _added(statement: postgresql.Insert | sqlite.Insert) -> Prepared:
    added = {name: _sums.c[name] + statement.excluded[name] for name in ADDED}
    later = sa.case(
        (statement.excluded.revision > _sums.c.revision, statement.excluded.revision), else_=_sums.c.revision
    )
    return Prepared(
        statement.on_conflict_do_update(
            index_elements=["generation_id", "share"], set_={**added, "revision": later}
        )
    )


_ADD = {"postgresql": _added(postgresql.insert(_sums)), "sqlite": _added(sqlite.insert(_sums))}


class Sums(Counter[tuple[str, str]]):
    """Changes of the sums of generations, by generation and column, and the revisions that cause them."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}

    def add_revision(self, generation: str, revision: int) -> None:
        self.first[generation] = min(revision, self.first.get(generation, revision))
        self.last[generation] = max(revision, self.last.get(generation, revision))


def add(tx: Tx, sums: Sums) -> None:
    """Add to the sums of generations."""
    share = tx.share
    # In order: two transactions that change the same rows must not deadlock.
    rows = [
        {
            "generation_id": generation,
            "share": share,
            **{name: sums[generation, name] for name in ADDED},
            "revision": sums.last[generation],
        }
        for generation in sorted(sums.last)
    ]
    tx.do(_ADD["postgresql" if tx.on_postgres else "sqlite"], *rows)
