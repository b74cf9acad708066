"""Steps of a sink: what changes between the revision that a table has and a later one.

A step leads from one state of a generation to another that it really had: whoever applies it in one transaction shows
the dataset as of a revision at every moment. A step is bounded, so that a first load need not be one transaction. Files
of replaced commits may have been collected; a step then goes on to where nothing of them is needed.
"""

from __future__ import annotations

import sqlalchemy as sa

from qo.api.contract.sink import SinkStep
from qo.dispatcher.commits.pieces import piece
from qo.dispatcher.state import commit_locks, schema
from qo.dispatcher.state.database import State, Tx

COMMITS_MAX = 200  # Commits that one step goes over.

_commits, _generations = schema.commits, schema.generations


def find_step(state: State, generation_id: str, after: int, limit: int = COMMITS_MAX) -> SinkStep:
    """Return the next step of a table that shows the generation as of the revision ``after``; 0: nothing of it."""
    with state.read() as tx:
        latest = tx.value(sa.select(_generations.c.revision).where(_generations.c.id == generation_id)) or 0
    # Commits under way may get earlier revisions than the latest one that is visible.
    commit_locks.await_commits_first(state, [generation_id])
    with state.read() as tx:
        upto = _choose_end(tx, generation_id, after, latest, limit)
        rows = _added(tx, generation_id, after, upto)
        while collected := [row["replaced_by"] for row in rows if row["collected_at"] is not None]:
            upto = max(collected)
            rows = _added(tx, generation_id, after, upto)
        return SinkStep(
            generation_id=generation_id,
            after=after,
            upto=upto,
            latest=latest,
            add=[piece(row) for row in rows],
            drop=_dropped(tx, generation_id, after, upto),
        )


def _choose_end(tx: Tx, generation_id: str, after: int, latest: int, limit: int) -> int:
    query = sa.select(_commits.c.revision).where(
        _commits.c.generation_id == generation_id, _commits.c.revision > after, _commits.c.revision <= latest
    )
    following = list(tx.execute(query.order_by(_commits.c.revision).limit(limit + 1)).scalars())
    return following[limit - 1] if len(following) > limit else max(after, latest)


def _added(tx: Tx, generation_id: str, after: int, upto: int) -> list[sa.RowMapping]:
    """Return the commits since ``after`` that are current at ``upto``. A removal is current at no revision."""
    current = sa.or_(_commits.c.replaced_by.is_(None), _commits.c.replaced_by > upto)
    query = schema.select_commits().where(
        _commits.c.generation_id == generation_id,
        _commits.c.revision > after,
        _commits.c.revision <= upto,
        current,
    )
    return list(tx.all(query.order_by(_commits.c.revision)))


def _dropped(tx: Tx, generation_id: str, after: int, upto: int) -> list[int]:
    """Return the commits that were current at ``after`` and are not at ``upto``."""
    query = sa.select(_commits.c.revision).where(
        _commits.c.generation_id == generation_id,
        _commits.c.revision <= after,
        _commits.c.replaced_by > after,
        _commits.c.replaced_by <= upto,
    )
    return sorted(tx.execute(query).scalars())
