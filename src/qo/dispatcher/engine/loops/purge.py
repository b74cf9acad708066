"""The purge loop deletes records that are no longer needed, a few at a time.

    wake-ups that were published     after a day, because people may want to see them
    wake-ups that were given up      after ``keep_days``
    emissions                        after ``keep_days``: the events of a source by idempotency key
    checks and rejected outputs      after ``keep_days``; the files of rejected outputs are garbage then

Everything else is the audit trail: ``history_purge`` deletes what nothing depends on, if that is wished.

Repeating the key of a deleted emission creates nothing twice: the ids of its task and events are derived from the key,
and those are kept. Only the check that the key comes with the same events is lost.
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
    """Delete up to ``limit`` records of each kind; return how many. ``keep_days`` 0: only published wake-ups."""
    with state.write() as tx:
        deleted = outbox.purge(tx, limit=limit)
        if keep_days > 0:
            deleted += outbox.purge_dead(tx, kept_s=keep_days * DAY_S, limit=limit)
            deleted += _purge_emissions(tx, keep_days, limit)
            deleted += quality.purge(tx, keep_days, limit)
        return deleted


def _purge_emissions(tx: Tx, keep_days: int, limit: int) -> int:
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
