"""Forgets what nobody needs any more, a little at a time.

    wake-ups that were carried out   after a day: people may want to see them
    wake-ups that were given up      after ``keep_days``
    emissions                        after ``keep_days``: what a source said under a key
    checks and rejected outputs      after ``keep_days``; files of the rejected are then nobody's

Everything else is the audit trail and is kept: events and deliveries, which ``tallies`` counts; tasks and attempts;
commits and what they read.

A key whose emission is forgotten makes nothing twice: the ids of its task and events follow from the key, and these
are kept. It is only no longer refused with other events.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from qo.dispatcher.commits import quality
from qo.dispatcher.outbox import outbox
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.schema import emissions

DAY_S = 86_400.0


def tick(state: State, keep_days: int, limit: int = 1000) -> int:
    """Forget up to ``limit`` of each sort; how many. ``keep_days`` 0: only wake-ups that were carried out."""
    with state.write() as tx:
        gone = outbox.purge(tx, limit=limit)
        if keep_days > 0:
            gone += outbox.purge_dead(tx, kept_s=keep_days * DAY_S, limit=limit)
            gone += _emissions(tx, keep_days, limit)
            gone += quality.purge(tx, keep_days, limit)
        return gone


def _emissions(tx: Tx, keep_days: int, limit: int) -> int:
    key = (emissions.c.logical_id, emissions.c.key)
    old = (
        sa.select(*key)
        .where(emissions.c.at < tx.now - timedelta(days=keep_days))
        .order_by(emissions.c.at)
        .limit(limit)
    )
    keys = [tuple(row) for row in tx.execute(tx.lock(old, skip=True))]
    if keys:
        tx.execute(sa.delete(emissions).where(sa.tuple_(*key).in_(keys)))
    return len(keys)
